#include "runtime/cpu/fused_kernels.h"

#include <variant>

namespace refract::runtime::cpu {

std::unique_ptr<const Kernel> CreateFusedKernel(
    const FusedOp& op, absl::Span<const Operand* const> constants,
    WeightForm form) {
  if (const auto* matmul = std::get_if<MatMulOp>(&op)) {
    return CreateMatMulKernel(*matmul, constants, form);
  }
  if (const auto* interaction = std::get_if<InteractionOp>(&op)) {
    return CreateInteractionKernel(*interaction);
  }
  return CreateElementChainKernel(std::get<ElementChainOp>(op));
}

}  // namespace refract::runtime::cpu
