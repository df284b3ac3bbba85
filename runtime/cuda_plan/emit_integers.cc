// Ids, lengths, positions and masks on the device: exact, as on the CPU.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/compile/dims.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;
using cuda::IntegerFold;
using models::IntegerCode;
using models::Lowering;
using Integer = Emitter::Integer;

absl::Status EmitArange(const NodeStep& node, Emitter& emitter) {
  const NodeArgs args(node.node);
  const int local = node.outputs[0];
  // Offsets of bags of equal size are no tensor on the device: the bags'
  // operator computes them.
  if (const std::optional<int64_t> step = EvenOffsets(node, emitter)) {
    emitter.SetEvenSteps(local, *step);
    return absl::OkStatus();
  }
  const auto number = [&](absl::string_view name,
                          int64_t missing) -> absl::StatusOr<int64_t> {
    if (!args.Has(name)) return missing;
    const std::optional<IntSource> source = args.Int(name);
    if (!source)
      return absl::UnimplementedError(
          absl::StrCat("its argument ", name, " is not a size"));
    REFRACT_ASSIGN_OR_RETURN(const Size size,
                             emitter.SizeOf(*source, node.operands));
    if (!size.constant())
      return absl::UnimplementedError("its length depends on the batch");
    return *size.constant();
  };
  REFRACT_ASSIGN_OR_RETURN(const int64_t start, number("start", 0));
  REFRACT_ASSIGN_OR_RETURN(const int64_t end, number("end", 0));
  REFRACT_ASSIGN_OR_RETURN(const int64_t step, number("step", 1));
  // Ranges are views of one weight 0, 1, 2, … (Emitter::Range()): strides may
  // not be negative, and the weight must not become too long.
  if (step < 1 || start < 0 || end <= start || end > Emitter::kMaxRange) {
    return absl::UnimplementedError(
        absl::StrCat("it is a range from ", start, " to ", end, " by ", step));
  }
  Tensor range = emitter.Range(start, step, (end - start + step - 1) / step);
  const std::optional<DType> dtype =
      Emitter::TypeOf(emitter.plan().locals[local].dtype);
  if (dtype == DType::kInt64) {
    emitter.Set(local, std::move(range));
    return absl::OkStatus();
  }
  if (!dtype || !cuda::IsFloating(*dtype)) {
    return absl::UnimplementedError(absl::StrCat(
        "its result is ", base::Name(emitter.plan().locals[local].dtype)));
  }
  REFRACT_ASSIGN_OR_RETURN(
      Tensor out, emitter.NewResult(local, range.dims, emitter.compute_type()));
  REFRACT_RETURN_IF_ERROR(emitter.Copy(range, out));
  emitter.Set(local, std::move(out));
  return absl::OkStatus();
}

// --- Operands ---------------------------------------------------------------

bool IsTensor(const Emitter& emitter, const NodeStep& node, int operand) {
  if (operand == kNoOperand) return false;
  const Local& local = emitter.plan().locals[node.operands[operand]];
  return emitter.graph().value(local.id).kind == models::ValueKind::kTensor;
}

// A tensor of integers or truth values, a literal, or a known size.
absl::StatusOr<Integer> IntegerArgument(const NodeStep& node,
                                        absl::string_view name,
                                        Emitter& emitter) {
  const NodeArgs args(node.node);
  Integer integer;
  const int operand = args.OperandOf(name);
  if (IsTensor(emitter, node, operand)) {
    const int local = node.operands[operand];
    REFRACT_ASSIGN_OR_RETURN(integer.tensor, emitter.Get(local));
    if (cuda::IsFloating(integer.tensor->dtype)) {
      return absl::UnimplementedError(
          absl::StrCat("its ", name, " is ",
                       base::Name(emitter.plan().locals[local].dtype)));
    }
    return integer;
  }
  const models::Argument* const argument = node.node.FindArg(name);
  if (const auto* truth =
          argument == nullptr ? nullptr : std::get_if<bool>(argument)) {
    integer.number = *truth ? 1 : 0;
    return integer;
  }
  const std::optional<IntSource> source = args.Int(name);
  if (!source)
    return absl::UnimplementedError(
        absl::StrCat("its ", name, " is not a whole number"));
  REFRACT_ASSIGN_OR_RETURN(const Size size,
                           emitter.SizeOf(*source, node.operands));
  if (!size.constant()) {
    return absl::UnimplementedError(
        absl::StrCat("its ", name, " depends on the batch"));
  }
  integer.number = *size.constant();
  return integer;
}

// A number or a tensor without dimensions takes the type of the tensors beside
// it, as in PyTorch. Kernels compute in 64 bits, so it must fit that type.
absl::Status CheckWidth(const std::vector<Integer>& operands) {
  bool has_narrow = false;
  for (const Integer& operand : operands) {
    if (!operand.tensor || operand.tensor->rank() == 0) continue;
    if (operand.tensor->dtype == DType::kInt64) return absl::OkStatus();
    has_narrow |= operand.tensor->dtype == DType::kInt32;
  }
  if (!has_narrow) return absl::OkStatus();
  for (const Integer& operand : operands) {
    if (operand.tensor
            ? operand.tensor->rank() == 0 &&
                  operand.tensor->dtype == DType::kInt64
            : operand.number < std::numeric_limits<int32_t>::min() ||
                  operand.number > std::numeric_limits<int32_t>::max()) {
      return absl::UnimplementedError("an operand may be too large for int32");
    }
  }
  return absl::OkStatus();
}

// Divisors must be known not to be 0: PyTorch refuses such a request on a CPU
// and returns arbitrary results on a GPU.
absl::Status CheckDivisor(const NodeStep& node, const Integer& divisor,
                          const Emitter& emitter) {
  if (!divisor.tensor) {
    return divisor.number != 0 ? absl::OkStatus()
                               : absl::UnimplementedError("it divides by 0");
  }
  const int operand = NodeArgs(node.node).OperandOf("other");
  const auto values = emitter.IntegersOf(node.operands[operand]);
  if (!values)
    return absl::UnimplementedError("requests may make it divide by 0");
  return std::find(values->begin(), values->end(), 0) == values->end()
             ? absl::OkStatus()
             : absl::UnimplementedError("it divides by 0");
}

// The result, of the graph's type, which must not be a float type.
absl::StatusOr<Tensor> IntegerResult(int local, Emitter& emitter) {
  const base::DType wanted = emitter.plan().locals[local].dtype;
  const std::optional<DType> dtype = Emitter::TypeOf(wanted);
  if (!dtype || cuda::IsFloating(*dtype)) {
    return absl::UnimplementedError(
        absl::StrCat("its result is ", base::Name(wanted)));
  }
  REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(local));
  return emitter.NewResult(local, dims, *dtype);
}

absl::Status Emit(const NodeStep& node, IntegerCode code,
                  const std::vector<Integer>& operands, Emitter& emitter) {
  REFRACT_RETURN_IF_ERROR(CheckWidth(operands));
  REFRACT_ASSIGN_OR_RETURN(const Tensor out,
                           IntegerResult(node.outputs[0], emitter));
  emitter.Set(node.outputs[0], out);
  return emitter.Integers(code, operands, out);
}

// --- Operators --------------------------------------------------------------

absl::Status EmitUnary(const NodeStep& node, IntegerCode code,
                       Emitter& emitter) {
  REFRACT_ASSIGN_OR_RETURN(const Integer self,
                           IntegerArgument(node, "self", emitter));
  if (!self.tensor)
    return absl::UnimplementedError("its operand is not a tensor");
  // `~` of truth values is "not": inverting the bits of 1 gives −2, also true.
  if (code == IntegerCode::kInvert && self.tensor->dtype == DType::kBool) {
    code = IntegerCode::kNot;
  }
  return Emit(node, code, {self}, emitter);
}

absl::Status EmitBinaryInteger(const NodeStep& node, IntegerCode code,
                               Emitter& emitter) {
  const NodeArgs args(node.node);
  if (args.Has("alpha") && args.IntLiteral("alpha") != 1) {
    return absl::UnimplementedError("its alpha is not 1");
  }
  if (args.Has("rounding_mode")) {
    const auto* const mode =
        std::get_if<std::string>(node.node.FindArg("rounding_mode"));
    if (mode == nullptr || (*mode != "floor" && *mode != "trunc")) {
      return absl::UnimplementedError(
          "its rounding_mode is not floor or trunc");
    }
    if (*mode == "floor") code = IntegerCode::kFloorDivide;
  }
  REFRACT_ASSIGN_OR_RETURN(Integer self,
                           IntegerArgument(node, "self", emitter));
  REFRACT_ASSIGN_OR_RETURN(Integer other,
                           IntegerArgument(node, "other", emitter));
  switch (code) {
    case IntegerCode::kFloorDivide:
    case IntegerCode::kTruncDivide:
    case IntegerCode::kRemainder:
    case IntegerCode::kModulo:
      REFRACT_RETURN_IF_ERROR(CheckDivisor(node, other, emitter));
      break;
    default:
      break;
  }
  // rsub(self, other) is other − self.
  if (models::LoweringOf(node.node.op) == Lowering::kReverseSubtract) {
    std::swap(self, other);
  }
  return Emit(node, code, {std::move(self), std::move(other)}, emitter);
}

// clamp, clamp_min, clamp_max.
absl::Status EmitClamp(const NodeStep& node, Emitter& emitter) {
  const NodeArgs args(node.node);
  std::vector<Integer> operands(1);
  REFRACT_ASSIGN_OR_RETURN(operands[0], IntegerArgument(node, "self", emitter));
  for (const char* const name : {"min", "max"}) {
    if (!args.Has(name)) continue;
    operands.emplace_back();
    REFRACT_ASSIGN_OR_RETURN(operands.back(),
                             IntegerArgument(node, name, emitter));
  }
  if (operands.size() < 2)
    return absl::UnimplementedError("it has neither min nor max");
  // A missing bound leaves a maximum or a minimum.
  const IntegerCode code = operands.size() == 3 ? IntegerCode::kClamp
                           : args.Has("min")    ? IntegerCode::kMaximum
                                                : IntegerCode::kMinimum;
  return Emit(node, code, operands, emitter);
}

// where, masked_fill: of integers or truth values.
absl::Status EmitSelect(const NodeStep& node, const char* condition,
                        const char* then, const char* otherwise,
                        Emitter& emitter) {
  std::vector<Integer> operands;
  for (const char* const name : {condition, then, otherwise}) {
    const models::Argument* argument = node.node.FindArg(name);
    const double* const number =
        argument == nullptr ? nullptr : std::get_if<double>(argument);
    // Exporters write the number of masked_fill(ids, mask, 0) as a float.
    if (number != nullptr && std::abs(*number) <= Emitter::kMaxRange &&
        *number == std::floor(*number)) {
      operands.push_back({std::nullopt, static_cast<int64_t>(*number)});
      continue;
    }
    operands.emplace_back();
    REFRACT_ASSIGN_OR_RETURN(operands.back(),
                             IntegerArgument(node, name, emitter));
  }
  return Emit(node, IntegerCode::kSelect, operands, emitter);
}

// sum, amin, amax, any, all.
absl::Status EmitFold(const NodeStep& node, IntegerFold fold, IntegerCode code,
                      Emitter& emitter) {
  const NodeArgs args(node.node);
  REFRACT_ASSIGN_OR_RETURN(const Integer self,
                           IntegerArgument(node, "self", emitter));
  if (!self.tensor)
    return absl::UnimplementedError("its operand is not a tensor");
  const size_t rank = self.tensor->rank();
  const auto listed = args.Ints("dim");
  // As in EmitSum(): no list and an empty list mean all dimensions.
  std::vector<bool> folded(rank, !listed || listed->empty());
  if (listed) {
    for (const IntSource& source : *listed) {
      if (!source.is_literal())
        return absl::UnimplementedError("its dimensions are not constants");
      REFRACT_ASSIGN_OR_RETURN(const size_t dim, WrapDim(source.literal, rank));
      if (dim < rank) folded[dim] = true;
    }
  }
  std::vector<size_t> dims;
  for (size_t d = 0; d < rank; ++d) {
    if (!folded[d]) continue;
    if (!self.tensor->dims[d].constant())
      return absl::UnimplementedError("it computes along the batch dimension");
    dims.push_back(d);
  }
  REFRACT_ASSIGN_OR_RETURN(Tensor out, IntegerResult(node.outputs[0], emitter));
  emitter.Set(node.outputs[0], out);
  if (out.rank() == rank) {
    // Drops the dimensions of one element.
    for (size_t i = dims.size(); i-- > 0;) out = Selected(out, dims[i], 0);
  }
  return emitter.FoldIntegers(fold, code, *self.tensor, dims, out);
}

// tril, triu: one side of a diagonal, and zeros elsewhere.
absl::Status EmitTriangle(const NodeStep& node, bool lower, Emitter& emitter) {
  const int local = node.outputs[0];
  const NodeArgs args(node.node);
  const auto diagonal = args.Has("diagonal") ? args.IntLiteral("diagonal")
                                             : std::optional<int64_t>(0);
  REFRACT_ASSIGN_OR_RETURN(const Tensor self, emitter.Get(node.operands[0]));
  if (!diagonal || self.rank() < 2)
    return absl::UnimplementedError("its diagonal is not a constant");
  const auto rows = self.dims[self.rank() - 2].constant();
  const auto cols = self.dims[self.rank() - 1].constant();
  if (!rows || !cols || *rows < 1 || *cols < 1 ||
      std::abs(*diagonal) > Emitter::kMaxRange - std::max(*rows, *cols)) {
    return absl::UnimplementedError(
        "the size of its matrices depends on the batch");
  }
  // Column c belongs to the lower half of row r where c ≤ r + diagonal, that is
  // where c + max(−diagonal, 0) ≤ r + max(diagonal, 0). Ranges may not begin
  // below 0.
  const Tensor row =
      Unsqueezed(emitter.Range(std::max<int64_t>(*diagonal, 0), 1, *rows), 1);
  const Tensor col = emitter.Range(std::max<int64_t>(-*diagonal, 0), 1, *cols);
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor kept,
      emitter.New(absl::StrCat(emitter.plan().locals[local].name, ".half"),
                  {*rows, *cols}, DType::kBool));
  REFRACT_RETURN_IF_ERROR(emitter.Integers(
      lower ? IntegerCode::kLessEqual : IntegerCode::kGreaterEqual,
      {{col}, {row}}, kept));
  if (!cuda::IsFloating(self.dtype)) {
    return Emit(node, IntegerCode::kSelect, {{kept}, {self}, {}}, emitter);
  }
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor out,
      emitter.NewResult(local, self.dims, emitter.compute_type()));
  emitter.Set(local, out);
  return emitter.Map({{kept}, {self}, {}},
                     {{models::ElementCode::kSelect, 0, 1, 2}}, out);
}

}  // namespace

std::optional<absl::Status> EmitIntegers(const NodeStep& node,
                                         Emitter& emitter) {
  const models::Operator& op = models::OperatorOf(node.node.op);
  const Lowering lowering = models::LoweringOf(node.node.op);
  if (lowering == Lowering::kArange) return EmitArange(node, emitter);
  if (lowering == Lowering::kTril || lowering == Lowering::kTriu) {
    return EmitTriangle(node, lowering == Lowering::kTril, emitter);
  }
  if (!GivesIntegers(node, emitter)) return std::nullopt;
  switch (lowering) {
    case Lowering::kUnary:
      if (!op.integer) return std::nullopt;
      return EmitUnary(node, *op.integer, emitter);
    case Lowering::kBinary:
    case Lowering::kReverseSubtract:
      if (!op.integer) return std::nullopt;
      return EmitBinaryInteger(node, *op.integer, emitter);
    case Lowering::kLogical:
      return NodeArgs(node.node).Has("other")
                 ? EmitBinaryInteger(node, *op.integer, emitter)
                 : EmitUnary(node, *op.integer, emitter);
    case Lowering::kClamp:
    case Lowering::kClampMin:
    case Lowering::kClampMax:
      return EmitClamp(node, emitter);
    case Lowering::kWhere:
      return EmitSelect(node, "condition", "self", "other", emitter);
    case Lowering::kMaskedFill:
      return EmitSelect(node, "mask", "value", "self", emitter);
    case Lowering::kSum: {
      // 1 and -1 add up to 0, but sum(dtype=torch.bool) converts them to truth
      // values first.
      const bool truths =
          emitter.plan().locals[node.outputs[0]].dtype == base::DType::kBool;
      return EmitFold(node, IntegerFold::kSum,
                      truths ? IntegerCode::kTruth : IntegerCode::kCopy,
                      emitter);
    }
    case Lowering::kAmax:
      return EmitFold(node, IntegerFold::kMaximum, IntegerCode::kCopy, emitter);
    case Lowering::kAny:
      return EmitFold(node, IntegerFold::kMaximum, IntegerCode::kTruth,
                      emitter);
    case Lowering::kAmin:
      return EmitFold(node, IntegerFold::kMinimum, IntegerCode::kCopy, emitter);
    case Lowering::kAll:
      return EmitFold(node, IntegerFold::kMinimum, IntegerCode::kTruth,
                      emitter);
    default:
      return std::nullopt;
  }
}

}  // namespace refract::runtime::cuda_plan
