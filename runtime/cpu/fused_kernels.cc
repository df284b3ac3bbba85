#include "runtime/cpu/fused_kernels.h"

#include <variant>

namespace refract::runtime::cpu {

std::unique_ptr<const Kernel> CreateFusedKernel(
    const FusedOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing) {
  // Element-wise chains are the remaining alternative at the end.
  if (const auto* matmul = std::get_if<MatMulOp>(&op)) {
    return CreateMatMulKernel(*matmul, constants, packing);
  }
  if (const auto* interaction = std::get_if<InteractionOp>(&op)) {
    return CreateInteractionKernel(*interaction);
  }
  if (const auto* dense = std::get_if<DenseOp>(&op)) {
    return CreateDenseKernel(*dense, constants, packing);
  }
  if (const auto* attention = std::get_if<AttentionOp>(&op)) {
    return CreateWrittenAttentionKernel(*attention);
  }
  if (const auto* sum = std::get_if<ChainSumOp>(&op)) {
    return CreateChainSumKernel(*sum);
  }
  if (const auto* recurrent = std::get_if<RecurrentOp>(&op)) {
    return CreateRecurrentKernel(*recurrent, constants, packing);
  }
  return CreateElementChainKernel(std::get<ElementChainOp>(op));
}

}  // namespace refract::runtime::cpu
