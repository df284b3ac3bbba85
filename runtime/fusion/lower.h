#ifndef REFRACT_RUNTIME_FUSION_LOWER_H_
#define REFRACT_RUNTIME_FUSION_LOWER_H_

#include <optional>
#include <string>

#include "runtime/fusion/fused_op.h"
#include "runtime/kernel.h"

namespace refract::runtime {

// The node as a fused operator of one; nullopt when it is none. Looks at the
// graph alone, never at the part, so that a node is computed the same way
// wherever it lands.
std::optional<FusedOp> Lower(const KernelRequest& request);

// Its families.
std::optional<MatMulOp> LowerMatMul(const KernelRequest& request);
std::optional<ElementChainOp> LowerElements(const KernelRequest& request);

// aten.{gru,lstm,rnn_tanh,rnn_relu}.input without dropout and projections, and
// their cells. Not one of Lower()'s: for devices that run RecurrentOp.
std::optional<RecurrentOp> LowerRecurrent(const KernelRequest& request);

// The equation of an aten.einsum of two operands that says its result, without
// ellipses; nullopt for any other. Nothing is said of how often letters occur.
struct EinsumEquation {
  int operands[2];
  std::string letters[2];
  std::string result;
};
std::optional<EinsumEquation> EinsumOfTwo(const KernelRequest& request);

// Whether an operand of a product may be copied into the order in which kernels
// read it: up to 2^28 elements, or as many as a request brings. Larger ones are
// left to LibTorch, which reads them as they lie.
bool MayBePacked(const KernelRequest& request, int operand);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_LOWER_H_
