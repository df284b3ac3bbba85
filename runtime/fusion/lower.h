#ifndef REFRACT_RUNTIME_FUSION_LOWER_H_
#define REFRACT_RUNTIME_FUSION_LOWER_H_

#include <optional>
#include <string>

#include "runtime/fusion/fused_op.h"
#include "runtime/kernel.h"

namespace refract::runtime {

// The node as a fused operator; nullopt if it is none. Depends on the graph
// alone, never on the part, so that a node is computed the same way in every
// part.
std::optional<FusedOp> Lower(const KernelRequest& request);

// The operator families of Lower().
std::optional<MatMulOp> LowerMatMul(const KernelRequest& request);
std::optional<ElementChainOp> LowerElements(const KernelRequest& request);

// aten.{gru,lstm,rnn_tanh,rnn_relu}.input without dropout and projections, and
// their cells. Not part of Lower(): only for devices that support RecurrentOp.
std::optional<RecurrentOp> LowerRecurrent(const KernelRequest& request);

// The equation of an aten.einsum of two operands with an explicit result and
// without ellipses; nullopt for any other. Letters may repeat.
struct EinsumEquation {
  int operands[2];
  std::string letters[2];
  std::string result;
};
std::optional<EinsumEquation> EinsumOfTwo(const KernelRequest& request);

// Whether an operand of a product may be copied into the kernels' layout: up to
// 2^28 elements, or any size that a request brings. Larger operands are left to
// LibTorch, which reads them in place.
bool MayBePacked(const KernelRequest& request, int operand);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_LOWER_H_
