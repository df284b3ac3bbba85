#ifndef REFRACT_RUNTIME_CPU_DENSE_EINSUM_H_
#define REFRACT_RUNTIME_CPU_DENSE_EINSUM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// Products of two float32 tensors over named dimensions:
//   aten.einsum.default of two operands: every letter once in an operand, in
//     both or in the result
//   aten.tensordot.default, as the equivalent einsum
//   aten.matmul.default of two or more dimensions each; leading dimensions of
//     either may have size 1 or be missing
//   aten.conv1d.default of kernels of one step, without padding, stride,
//     dilation and groups: "oc,bcl->bol", + bias[o]
// A sum is one chain of fused multiply-adds in ascending order of the summed
// letters, in the order of the first operand; a product without summed letters
// is one multiplication. Both equal MatMulOp and kMultiply, whatever the order
// of the result's letters. A size of 1 broadcasts; other differing sizes are
// InvalidArgument. Null when `request` is something else, or an operand is too
// large to be copied (MayBePacked).
absl::StatusOr<std::unique_ptr<const Kernel>> CreateEinsumKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_DENSE_EINSUM_H_
