// Integers on the device: counting, and comparisons that float32 makes exactly.

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;
using cuda::MapCode;

absl::Status No(const std::string& why) {
  return absl::UnimplementedError(why);
}

absl::Status EmitArange(const NodeStep& node, Emitter& emitter) {
  const NodeArgs args(node.node);
  const int local = node.outputs[0];
  if (const std::optional<int64_t> step = EvenOffsets(node, emitter)) {
    emitter.SetEvenSteps(local, *step);
    return absl::OkStatus();
  }
  const auto number = [&](absl::string_view name,
                          int64_t missing) -> absl::StatusOr<int64_t> {
    if (!args.Has(name)) return missing;
    const std::optional<IntSource> source = args.Int(name);
    if (!source) return No(absl::StrCat("its argument ", name, " is no size"));
    REFRACT_ASSIGN_OR_RETURN(const Size size,
                             emitter.SizeOf(*source, node.operands));
    if (!size.constant()) return No("it counts the batch");
    return *size.constant();
  };
  REFRACT_ASSIGN_OR_RETURN(const int64_t start, number("start", 0));
  REFRACT_ASSIGN_OR_RETURN(const int64_t end, number("end", 0));
  REFRACT_ASSIGN_OR_RETURN(const int64_t step, number("step", 1));
  if (step < 1 || start < 0 || end <= start || end > Emitter::kMaxRange) {
    return No(
        absl::StrCat("it counts from ", start, " to ", end, " by ", step));
  }
  Tensor range = emitter.Range(start, step, (end - start + step - 1) / step);
  const std::optional<DType> dtype =
      Emitter::TypeOf(emitter.plan().locals[local].dtype);
  if (dtype == DType::kInt64) {
    emitter.Set(local, std::move(range));
    return absl::OkStatus();
  }
  if (!dtype || !cuda::IsFloating(*dtype)) {
    return No(absl::StrCat("it gives ",
                           base::Name(emitter.plan().locals[local].dtype)));
  }
  REFRACT_ASSIGN_OR_RETURN(
      Tensor out, emitter.NewResult(local, range.dims, emitter.compute_type()));
  REFRACT_RETURN_IF_ERROR(emitter.Copy(range, out));
  emitter.Set(local, std::move(out));
  return absl::OkStatus();
}

struct Comparison {
  absl::string_view op;
  MapCode code;
};
constexpr Comparison kComparisons[] = {
    {"aten.eq", MapCode::kEqual},   {"aten.ne", MapCode::kNotEqual},
    {"aten.lt", MapCode::kLess},    {"aten.le", MapCode::kLessEqual},
    {"aten.gt", MapCode::kGreater}, {"aten.ge", MapCode::kGreaterEqual},
};

// Of integers, one side of which is small: rounding the other to float32 keeps
// its order to every whole number up to 2^24, so the result is exact.
absl::Status EmitComparison(const NodeStep& node, MapCode code,
                            Emitter& emitter) {
  const NodeArgs args(node.node);
  const int local = node.outputs[0];
  std::vector<Emitter::Input> inputs(2);
  bool small = false;
  const char* const names[2] = {"self", "other"};
  for (int i = 0; i < 2; ++i) {
    const int operand = args.OperandOf(names[i]);
    if (operand == kNoOperand) {
      const std::optional<int64_t> literal = args.IntLiteral(names[i]);
      if (!literal || std::abs(*literal) > Emitter::kMaxRange) {
        return No(absl::StrCat("its ", names[i], " is no small number"));
      }
      inputs[i].number = static_cast<float>(*literal);
      small = true;
      continue;
    }
    REFRACT_ASSIGN_OR_RETURN(const Tensor tensor,
                             emitter.Get(node.operands[operand]));
    if (tensor.dtype != DType::kInt64 && tensor.dtype != DType::kInt32) {
      return No("it compares other things than integers");
    }
    small |= emitter.IsRange(tensor);
    inputs[i].tensor = tensor;
  }
  if (!small) return No("its integers may be too large for float32");
  REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(local));
  REFRACT_ASSIGN_OR_RETURN(const Tensor out,
                           emitter.NewResult(local, dims, DType::kBool));
  emitter.Set(local, out);
  return emitter.Map(inputs, {{code, 0, 1}}, out);
}

}  // namespace

std::optional<absl::Status> EmitIntegers(const NodeStep& node,
                                         Emitter& emitter) {
  const std::string& op = node.node.op;
  if (op == "aten.arange.default" || op == "aten.arange.start" ||
      op == "aten.arange.start_step") {
    return EmitArange(node, emitter);
  }
  const absl::string_view name = absl::string_view(op).substr(0, op.rfind('.'));
  const auto* const known =
      std::find_if(std::begin(kComparisons), std::end(kComparisons),
                   [&](const Comparison& c) { return c.op == name; });
  if (known == std::end(kComparisons)) return std::nullopt;
  return EmitComparison(node, known->code, emitter);
}

}  // namespace refract::runtime::cuda_plan
