// Element-wise operators that the graph compiler merges into no chain: of other
// types than float32, of numbers, and functions that chains lack.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;
using cuda::MapCode;

absl::Status No(const std::string& why) {
  return absl::UnimplementedError(why);
}

// A tensor of any type, a literal, or a size that is known.
absl::StatusOr<Emitter::Input> ElementArgument(const NodeStep& node,
                                               const char* name,
                                               Emitter& emitter) {
  Emitter::Input input;
  const int operand = NodeArgs(node.node).OperandOf(name);
  if (operand == kNoOperand) {
    const auto number = NumberArgument(node.node, name, NAN);
    if (!number || !node.node.FindArg(name)) {
      return No(absl::StrCat("its ", name, " is no number"));
    }
    input.number = static_cast<float>(*number);
    return input;
  }
  const int local = node.operands[operand];
  const models::ValueId id = emitter.plan().locals[local].id;
  if (emitter.graph().value(id).kind == models::ValueKind::kTensor) {
    REFRACT_ASSIGN_OR_RETURN(input.tensor, emitter.Get(local));
  } else if (const auto number = emitter.NumberOf(local)) {
    input.number = *number;
  } else {
    return No(absl::StrCat("its ", name, " differs between requests"));
  }
  return input;
}

absl::Status EmitMap(const NodeStep& node,
                     const std::vector<Emitter::Input>& inputs,
                     std::vector<cuda::MapInstruction> code, Emitter& emitter) {
  const int local = node.outputs[0];
  REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(local));
  REFRACT_ASSIGN_OR_RETURN(
      const Tensor out, emitter.NewResult(local, dims, emitter.compute_type()));
  emitter.Set(local, out);
  return emitter.Map(inputs, std::move(code), out);
}

struct BinaryName {
  absl::string_view op;
  MapCode code;
};
constexpr BinaryName kBinary[] = {
    {"aten.add", MapCode::kAdd},         {"aten.sub", MapCode::kSubtract},
    {"aten.rsub", MapCode::kSubtract},   {"aten.mul", MapCode::kMultiply},
    {"aten.div", MapCode::kDivide},      {"aten.minimum", MapCode::kMinimum},
    {"aten.maximum", MapCode::kMaximum}, {"aten.pow", MapCode::kPower},
};

// Of tensors that are not both float32: a mask, lengths, or a number as
// exporters write it, a constant of another type without dimensions.
std::optional<absl::Status> EmitBinary(const NodeStep& node, Emitter& emitter) {
  const auto* const known = std::find_if(
      std::begin(kBinary), std::end(kBinary), [&](const BinaryName& b) {
        const absl::string_view op = node.node.op;
        return op.substr(0, op.rfind('.')) == b.op;
      });
  if (known == std::end(kBinary)) return std::nullopt;
  const NodeArgs args(node.node);
  if (args.Has("rounding_mode") ||
      NumberArgument(node.node, "alpha", 1) != 1.0) {
    return std::nullopt;
  }
  return [&]() -> absl::Status {
    std::vector<Emitter::Input> inputs(2);
    const char* const names[2] = {"self",
                                  args.Has("exponent") ? "exponent" : "other"};
    for (int i = 0; i < 2; ++i) {
      REFRACT_ASSIGN_OR_RETURN(inputs[i],
                               ElementArgument(node, names[i], emitter));
    }
    if (absl::StartsWith(node.node.op, "aten.rsub.")) {
      std::swap(inputs[0], inputs[1]);
    }
    return EmitMap(node, inputs, {{known->code, 0, 1}}, emitter);
  }();
}

// where and masked_fill, of numbers and tensors.
std::optional<absl::Status> EmitSelect(const NodeStep& node, Emitter& emitter) {
  const bool where = absl::StartsWith(node.node.op, "aten.where.");
  if (!where && !absl::StartsWith(node.node.op, "aten.masked_fill.")) {
    return std::nullopt;
  }
  return [&]() -> absl::Status {
    std::vector<Emitter::Input> inputs(3);
    const char* const names[3] = {where ? "condition" : "mask",
                                  where ? "self" : "value",
                                  where ? "other" : "self"};
    for (int i = 0; i < 3; ++i) {
      REFRACT_ASSIGN_OR_RETURN(inputs[i],
                               ElementArgument(node, names[i], emitter));
    }
    return EmitMap(node, inputs, {{MapCode::kSelect, 0, 1, 2}}, emitter);
  }();
}

// One-operand functions that the fused forms lack.
std::optional<absl::Status> EmitFunction(const NodeStep& node,
                                         Emitter& emitter) {
  const std::string& op = node.node.op;
  const NodeArgs args(node.node);
  std::vector<Emitter::Input> inputs(1);
  std::vector<cuda::MapInstruction> code;
  const auto number = [&](float value) {
    inputs.push_back({std::nullopt, value});
  };
  if (op == "aten.pow.Tensor_Scalar") {
    const auto exponent = NumberArgument(node.node, "exponent", NAN);
    if (!exponent) return std::nullopt;
    number(static_cast<float>(*exponent));
    code = {{MapCode::kPower, 0, 1}};
  } else if (op == "aten.hardsigmoid.default") {
    number(3.0f);
    code = {{MapCode::kAdd, 0, 1},
            {MapCode::kClamp, 2, 0, 0, 0.0f, 6.0f},
            {MapCode::kScale, 3, 0, 0, 1.0f / 6.0f}};
  } else if (op == "aten.softplus.default") {
    const auto beta = NumberArgument(node.node, "beta", 1);
    const auto threshold = NumberArgument(node.node, "threshold", 20);
    if (!beta || !threshold || *beta == 0) return std::nullopt;
    number(static_cast<float>(*threshold));
    // Beyond the threshold x itself: exp(x) would overflow.
    code = {{MapCode::kScale, 0, 0, 0, static_cast<float>(*beta)},
            {MapCode::kExp, 2},
            {MapCode::kLog1p, 3},
            {MapCode::kScale, 4, 0, 0, static_cast<float>(1 / *beta)},
            {MapCode::kGreater, 2, 1},
            {MapCode::kSelect, 6, 0, 5}};
  } else if (op == "aten.prelu.default") {
    const int weight = args.OperandOf("weight");
    if (weight == kNoOperand) return std::nullopt;
    inputs.resize(2);
    const absl::StatusOr<Tensor> slopes = emitter.Get(node.operands[weight]);
    if (!slopes.ok()) return slopes.status();
    // One per channel, which is dimension 1.
    inputs[1].tensor = *slopes;
    const absl::StatusOr<Sizes> dims = emitter.DimsOfLocal(node.outputs[0]);
    if (!dims.ok()) return dims.status();
    if (slopes->rank() == 1) {
      for (size_t d = 2; d < dims->size(); ++d) {
        inputs[1].tensor =
            Unsqueezed(*inputs[1].tensor, inputs[1].tensor->rank());
      }
    }
    code = {{MapCode::kMultiply, 0, 1},
            {MapCode::kScale, 0, 0, 0, 0.0f},
            {MapCode::kLess, 0, 3},
            {MapCode::kSelect, 4, 2, 0}};
  } else {
    return std::nullopt;
  }
  return [&]() -> absl::Status {
    REFRACT_ASSIGN_OR_RETURN(const Tensor self, emitter.Get(node.operands[0]));
    REFRACT_RETURN_IF_ERROR(FloatingOnly(self));
    inputs[0].tensor = self;
    REFRACT_ASSIGN_OR_RETURN(
        const Tensor out,
        emitter.NewResult(node.outputs[0], self.dims, emitter.compute_type()));
    emitter.Set(node.outputs[0], out);
    return emitter.Map(inputs, std::move(code), out);
  }();
}

// zeros, ones, full, and what makes one like a tensor: a number everywhere.
std::optional<double> FilledWith(const models::Node& node) {
  const absl::string_view op = node.op;
  for (const char* const form : {"aten.%s.", "aten.%s_like.", "aten.new_%s."}) {
    const auto is = [&](absl::string_view name) {
      return absl::StartsWith(op, absl::StrReplaceAll(form, {{"%s", name}}));
    };
    if (is("zeros")) return 0.0;
    if (is("ones")) return 1.0;
    if (is("full")) return NumberArgument(node, "fill_value", NAN);
  }
  return std::nullopt;
}

std::optional<absl::Status> EmitFilled(const NodeStep& node, Emitter& emitter) {
  const std::optional<double> number = FilledWith(node.node);
  if (!number) return std::nullopt;
  const int local = node.outputs[0];
  const std::optional<DType> dtype =
      Emitter::TypeOf(emitter.plan().locals[local].dtype);
  if (!dtype) return std::nullopt;
  return [&]() -> absl::Status {
    if (cuda::IsFloating(*dtype)) {
      return EmitMap(node, {{std::nullopt, static_cast<float>(*number)}},
                     {{MapCode::kCopy, 0}}, emitter);
    }
    // Beyond that the argument was no double.
    if (!(std::abs(*number) <= 0x1p53))
      return No("it is filled with no integer");
    REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(local));
    REFRACT_ASSIGN_OR_RETURN(const Tensor out,
                             emitter.NewResult(local, dims, *dtype));
    emitter.Set(local, out);
    // True is what is not 0, not what its whole part is not.
    const int64_t filled = *dtype == DType::kBool
                               ? int64_t{*number != 0}
                               : static_cast<int64_t>(*number);
    return emitter.Integers(cuda::IntegerCode::kCopy, {{std::nullopt, filled}},
                            out);
  }();
}

}  // namespace

std::optional<absl::Status> EmitElements(const NodeStep& node,
                                         Emitter& emitter) {
  // All of these have one result.
  if (node.outputs[0] == kNoLocal) return std::nullopt;
  if (auto filled = EmitFilled(node, emitter)) return filled;
  if (auto done = EmitFunction(node, emitter)) return done;
  if (emitter.plan().locals[node.outputs[0]].dtype != base::DType::kFloat32) {
    return std::nullopt;
  }
  if (auto done = EmitBinary(node, emitter)) return done;
  return EmitSelect(node, emitter);
}

}  // namespace refract::runtime::cuda_plan
