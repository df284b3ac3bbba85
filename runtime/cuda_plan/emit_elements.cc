// Element-wise operators that the graph compiler does not merge into chains: of
// other types than float32, of numbers, and functions that chains lack.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;
using models::ElementCode;
using models::Lowering;

// A tensor of any type, a literal, or a known size.
absl::StatusOr<Emitter::Input> ElementArgument(const NodeStep& node,
                                               const char* name,
                                               Emitter& emitter) {
  Emitter::Input input;
  const int operand = NodeArgs(node.node).OperandOf(name);
  if (operand == kNoOperand) {
    const auto number = NumberArgument(node.node, name, NAN);
    if (!number || !node.node.FindArg(name)) {
      return absl::UnimplementedError(
          absl::StrCat("its ", name, " is not a constant number"));
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
    return absl::UnimplementedError(absl::StrCat(
        "its ", name, " is a number that differs between requests"));
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

// For tensors that are not both float32: a mask, lengths, or a number as
// exporters write it, a constant of another type without dimensions.
std::optional<absl::Status> EmitBinary(const NodeStep& node, Emitter& emitter) {
  const Lowering lowering = models::LoweringOf(node.node.op);
  // The three lowerings differ in the order of operands and in the argument's
  // name alone.
  const std::optional<ElementCode> code =
      lowering == Lowering::kReverseSubtract ? ElementCode::kSubtract
      : lowering == Lowering::kPow           ? ElementCode::kPower
      : lowering == Lowering::kBinary ? models::OperatorOf(node.node.op).element
                                      : std::nullopt;
  if (!code) return std::nullopt;
  const NodeArgs args(node.node);
  // Left to EmitIntegers(), which knows rounding modes, or refused.
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
    if (lowering == Lowering::kReverseSubtract) std::swap(inputs[0], inputs[1]);
    return EmitMap(node, inputs, {{*code, 0, 1}}, emitter);
  }();
}

// where and masked_fill, with numbers and tensors.
std::optional<absl::Status> EmitSelect(const NodeStep& node, Emitter& emitter) {
  const Lowering lowering = models::LoweringOf(node.node.op);
  const bool where = lowering == Lowering::kWhere;
  if (!where && lowering != Lowering::kMaskedFill) return std::nullopt;
  return [&]() -> absl::Status {
    std::vector<Emitter::Input> inputs(3);
    const char* const names[3] = {where ? "condition" : "mask",
                                  where ? "self" : "value",
                                  where ? "other" : "self"};
    for (int i = 0; i < 3; ++i) {
      REFRACT_ASSIGN_OR_RETURN(inputs[i],
                               ElementArgument(node, names[i], emitter));
    }
    return EmitMap(node, inputs, {{ElementCode::kSelect, 0, 1, 2}}, emitter);
  }();
}

// One-operand functions that the fused forms lack.
std::optional<absl::Status> EmitFunction(const NodeStep& node,
                                         Emitter& emitter) {
  const Lowering lowering = models::LoweringOf(node.node.op);
  const NodeArgs args(node.node);
  std::vector<Emitter::Input> inputs(1);
  std::vector<cuda::MapInstruction> code;
  const auto number = [&](float value) {
    inputs.push_back({std::nullopt, value});
  };
  if (lowering == Lowering::kPow) {
    const auto exponent = NumberArgument(node.node, "exponent", NAN);
    if (!exponent) return std::nullopt;
    number(static_cast<float>(*exponent));
    code = {{ElementCode::kPower, 0, 1}};
  } else if (lowering == Lowering::kHardsigmoid) {
    number(3.0f);
    // relu6(x + 3) ÷ 6.
    code = {{ElementCode::kAdd, 0, 1},
            {ElementCode::kClamp, 2, 0, 0, 0.0f, 6.0f},
            {ElementCode::kScale, 3, 0, 0, 1.0f / 6.0f}};
  } else if (lowering == Lowering::kSoftplus) {
    const auto beta = NumberArgument(node.node, "beta", 1);
    const auto threshold = NumberArgument(node.node, "threshold", 20);
    if (!beta || !threshold || *beta == 0) return std::nullopt;
    number(static_cast<float>(*threshold));
    // Beyond the threshold the result is x: exp(x) would overflow.
    code = {{ElementCode::kScale, 0, 0, 0, static_cast<float>(*beta)},
            {ElementCode::kExp, 2},
            {ElementCode::kLog1p, 3},
            {ElementCode::kScale, 4, 0, 0, static_cast<float>(1 / *beta)},
            {ElementCode::kGreater, 2, 1},
            {ElementCode::kSelect, 6, 0, 5}};
  } else if (lowering == Lowering::kPrelu) {
    const int weight = args.OperandOf("weight");
    if (weight == kNoOperand) return std::nullopt;
    inputs.resize(2);
    const absl::StatusOr<Tensor> slopes = emitter.Get(node.operands[weight]);
    if (!slopes.ok()) return slopes.status();
    // `weight` has one slope per channel, and channels are dimension 1.
    inputs[1].tensor = *slopes;
    const absl::StatusOr<Sizes> dims = emitter.DimsOfLocal(node.outputs[0]);
    if (!dims.ok()) return dims.status();
    if (slopes->rank() == 1) {
      for (size_t d = 2; d < dims->size(); ++d) {
        inputs[1].tensor =
            Unsqueezed(*inputs[1].tensor, inputs[1].tensor->rank());
      }
    }
    number(0.0f);
    // x < 0 ? slope · x : x.
    code = {{ElementCode::kMultiply, 0, 1},
            {ElementCode::kLess, 0, 2},
            {ElementCode::kSelect, 4, 3, 0}};
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

// The number in zeros, ones, full, and their _like forms.
std::optional<double> FilledWith(const models::Node& node) {
  switch (models::LoweringOf(node.op)) {
    case Lowering::kZeros:
    case Lowering::kZerosLike:
      return 0.0;
    case Lowering::kOnes:
    case Lowering::kOnesLike:
      return 1.0;
    case Lowering::kFull:
    case Lowering::kFullLike:
      return NumberArgument(node, "fill_value", NAN);
    default:
      return std::nullopt;
  }
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
                     {{ElementCode::kCopy, 0}}, emitter);
    }
    // Beyond it the argument was no double.
    if (!(std::abs(*number) <= 0x1p53))
      return absl::UnimplementedError("its fill_value is not an integer");
    REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(local));
    REFRACT_ASSIGN_OR_RETURN(const Tensor out,
                             emitter.NewResult(local, dims, *dtype));
    emitter.Set(local, out);
    // For bool any nonzero number is true, also one whose whole part is 0.
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
  // Every operator here has one result.
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
