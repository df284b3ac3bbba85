// Products, element-wise chains and interactions.

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::DType;

// --- Products ---------------------------------------------------------------

absl::Status EmitMatMul(const MatMulOp& op, const Step& step,
                        Emitter& emitter) {
  const int out_local = step.outputs[0];
  const int b_local = step.operands[op.b];
  const int bias_local = op.bias < 0 ? kNoLocal : step.operands[op.bias];
  REFRACT_ASSIGN_OR_RETURN(const Tensor a, emitter.Get(step.operands[op.a]));
  REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(out_local));
  const std::string& name = emitter.plan().locals[out_local].name;
  // A product with constant weights is one cuBLASLt call with bias and ReLU in
  // its epilogue; a product of two values of a request takes the strided
  // kernel.
  const bool with_weight =
      !op.batched && emitter.IsConstant(b_local) &&
      (bias_local == kNoLocal || emitter.IsConstant(bias_local));
  if (with_weight) {
    REFRACT_ASSIGN_OR_RETURN(const cuda::ValueId in,
                             emitter.AsMatrix(a, absl::StrCat(name, ".in")));
    cuda::LinearOp linear{.in = in, .weight = cuda::kNone};
    REFRACT_ASSIGN_OR_RETURN(linear.weight,
                             emitter.Matrix(b_local, !op.b_transposed));
    linear.epilogue = op.relu ? cuda::Epilogue::kRelu : cuda::Epilogue::kNone;
    if (bias_local != kNoLocal) {
      REFRACT_ASSIGN_OR_RETURN(linear.bias, emitter.BiasRow(bias_local));
      linear.epilogue =
          op.relu ? cuda::Epilogue::kReluBias : cuda::Epilogue::kBias;
    }
    REFRACT_ASSIGN_OR_RETURN(
        Tensor out, emitter.NewRows(out_local, dims, emitter.compute_type()));
    linear.out = out.value;
    emitter.builder().Linear(linear);
    emitter.Set(out_local, std::move(out));
    return absl::OkStatus();
  }
  if (!a.dims.back().constant())
    return absl::UnimplementedError("it sums over the batch dimension");
  REFRACT_ASSIGN_OR_RETURN(Tensor b, emitter.Get(b_local));
  if (op.b_transposed) {
    std::vector<size_t> order(b.rank());
    for (size_t d = 0; d < order.size(); ++d) order[d] = d;
    std::swap(order[order.size() - 1], order[order.size() - 2]);
    b = Permuted(b, order);
  }
  std::optional<Tensor> bias;
  if (bias_local != kNoLocal) {
    REFRACT_ASSIGN_OR_RETURN(bias, emitter.Get(bias_local));
  }
  REFRACT_ASSIGN_OR_RETURN(
      Tensor out, emitter.NewResult(out_local, dims, emitter.compute_type()));
  REFRACT_RETURN_IF_ERROR(emitter.MatMul(a, b, bias, op.relu, out));
  emitter.Set(out_local, std::move(out));
  return absl::OkStatus();
}

// --- Chains -----------------------------------------------------------------

static_assert(kMaxChainInputs <= cuda::kMaxMapInputs);
static_assert(kMaxChainInstructions <= cuda::kMaxMapInstructions);

// The instructions that `wanted` needs, renumbered, with `wanted` last. A chain
// with several results becomes a MapOp per result, since a MapOp has one.
// Arguments below `num_inputs` are inputs; others are instructions, which precede
// their readers, so that one pass from the end marks all that are needed.
std::vector<cuda::MapInstruction> CodeFor(const ElementChainOp& op,
                                          int wanted) {
  const int num_inputs = static_cast<int>(op.inputs.size());
  std::vector<bool> needed(op.code.size(), false);
  needed[wanted] = true;
  for (int i = wanted; i >= 0; --i) {
    if (!needed[i]) continue;
    for (int argument : {op.code[i].a, op.code[i].b, op.code[i].c}) {
      if (argument >= num_inputs) needed[argument - num_inputs] = true;
    }
  }
  std::vector<int> place(op.code.size(), 0);
  std::vector<cuda::MapInstruction> code;
  for (int i = 0; i <= wanted; ++i) {
    if (!needed[i]) continue;
    place[i] = num_inputs + static_cast<int>(code.size());
    const auto at = [&](int argument) {
      if (argument < 0) return uint8_t{0};
      return static_cast<uint8_t>(
          argument < num_inputs ? argument : place[argument - num_inputs]);
    };
    const ElementInstruction& from = op.code[i];
    code.push_back(
        {from.code, at(from.a), at(from.b), at(from.c), from.x, from.y});
  }
  return code;
}

absl::Status EmitChain(const ElementChainOp& op, const Step& step,
                       Emitter& emitter) {
  std::vector<Emitter::Input> inputs;
  for (const ElementInput& input : op.inputs) {
    Emitter::Input operand;
    operand.number = input.number;
    if (input.operand >= 0) {
      const int local = step.operands[input.operand];
      const models::Value& value =
          emitter.graph().value(emitter.plan().locals[local].id);
      if (value.kind == models::ValueKind::kTensor) {
        REFRACT_ASSIGN_OR_RETURN(operand.tensor, emitter.Get(local));
      } else if (const auto number = emitter.NumberOf(local)) {
        operand.number = *number;
      } else {
        return absl::UnimplementedError(absl::StrCat(
            value.name, " is a number that differs between requests"));
      }
    }
    inputs.push_back(std::move(operand));
  }
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    const int local = step.outputs[i];
    if (local == kNoLocal) continue;
    REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(local));
    DType dtype = op.outputs[i].is_bool ? DType::kBool : emitter.compute_type();
    // A result that only the client reads is written in its type, which saves a
    // copy.
    if (!op.outputs[i].is_bool && emitter.IsOutputOnly(local)) {
      dtype = DType::kFloat32;
    }
    REFRACT_ASSIGN_OR_RETURN(Tensor out, emitter.NewResult(local, dims, dtype));
    REFRACT_RETURN_IF_ERROR(
        emitter.Map(inputs, CodeFor(op, op.outputs[i].instruction), out));
    emitter.Set(local, std::move(out));
  }
  return absl::OkStatus();
}

// --- Interactions -----------------------------------------------------------

// The first vector stays where it is; the others of an item lie side by side in
// the group, [batch, (count − 1) × width]. Vectors that were not computed in
// their place are copied there.
absl::Status EmitInteraction(const InteractionOp& op, const Step& step,
                             Emitter& emitter) {
  const int out_local = step.outputs[0];
  const std::string& name = emitter.plan().locals[out_local].name;
  REFRACT_ASSIGN_OR_RETURN(const Sizes dims, emitter.DimsOfLocal(out_local));
  const std::optional<int> group = emitter.GroupOf(step);
  if (!group)
    return absl::UnimplementedError("its vectors are not rows of the batch");
  REFRACT_ASSIGN_OR_RETURN(const cuda::ValueId rest, emitter.GroupRoot(*group));
  int64_t place = 0;
  for (size_t i = 1; i < step.operands.size(); ++i) {
    const int local = step.operands[i];
    Tensor to;
    REFRACT_ASSIGN_OR_RETURN(to.dims, emitter.DimsOfLocal(local));
    const int64_t cols = *to.dims[1].constant();
    if (!emitter.IsInGroup(local, *group, place)) {
      REFRACT_ASSIGN_OR_RETURN(const Tensor from, emitter.Get(local));
      to.value = emitter.builder().View(
          rest,
          absl::StrCat(name, ".vectors.", emitter.plan().locals[local].name),
          place, cols);
      to.dtype = emitter.compute_type();
      to.strides = {emitter.builder().value(rest).ld, 1};
      REFRACT_RETURN_IF_ERROR(emitter.Copy(from, to));
    }
    place += cols;
  }
  REFRACT_ASSIGN_OR_RETURN(const Tensor dense, emitter.Get(step.operands[0]));
  REFRACT_ASSIGN_OR_RETURN(
      const cuda::ValueId first,
      emitter.AsMatrix(dense, absl::StrCat(name, ".first")));
  REFRACT_ASSIGN_OR_RETURN(
      Tensor out, emitter.NewResult(out_local, dims, emitter.compute_type()));
  // The first of the places is on the diagonal if any is.
  emitter.builder().Interaction({.dense = first,
                                 .embeddings = rest,
                                 .out = out.value,
                                 .diagonal = op.places[0] == 0,
                                 .copy_dense = false});
  emitter.Set(out_local, std::move(out));
  return absl::OkStatus();
}

}  // namespace

absl::Status EmitFused(const Step& step, Emitter& emitter) {
  if (const auto* matmul = std::get_if<MatMulOp>(&*step.fused)) {
    if (step.outputs[0] == kNoLocal) return absl::OkStatus();
    return EmitMatMul(*matmul, step, emitter);
  }
  if (const auto* chain = std::get_if<ElementChainOp>(&*step.fused)) {
    return EmitChain(*chain, step, emitter);
  }
  if (const auto* interaction = std::get_if<InteractionOp>(&*step.fused)) {
    if (step.outputs[0] == kNoLocal) return absl::OkStatus();
    return EmitInteraction(*interaction, step, emitter);
  }
  return absl::UnimplementedError(
      "the CUDA runtime has no kernel for this merged step");
}

}  // namespace refract::runtime::cuda_plan
