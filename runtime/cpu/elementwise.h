#ifndef REFRACT_RUNTIME_CPU_ELEMENTWISE_H_
#define REFRACT_RUNTIME_CPU_ELEMENTWISE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// float32 arithmetic with broadcasting:
//   aten.{add,sub,mul,div}.{Tensor,Scalar}: out[i] = a[i] op b[i]
//   aten.relu.default: out[i] = a[i] < 0 ? 0 : a[i]   (keeps NaN and -0)
// The other operand is a float32 tensor or a number, which is rounded to
// float32 first. One IEEE operation per element, so bit-identical to LibTorch.
// Shapes that do not broadcast are InvalidArgument. Null for anything else:
// other dtypes, alpha, rounding modes, unknown ranks.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateElementwiseKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_ELEMENTWISE_H_
