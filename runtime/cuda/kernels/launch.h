#ifndef REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_H_

// Launches of our kernels on a CUDA stream. Asynchronous: a launch that the
// driver refuses returns its error, a kernel that fails shows at the next
// synchronisation. Legal in a capture. A call without rows launches nothing.

#include <cuda_runtime_api.h>

#include "runtime/cuda/calls/calls.h"

namespace refract::runtime::cuda {

// Defined for each alternative of Call but GemmCall, which cuBLASLt computes.
template <typename KernelCall>
cudaError_t LaunchKernel(const KernelCall& call, cudaStream_t stream);
// The list of these alternatives, for launch.cu and its stand-in in the tests.
#define REFRACT_INSTANTIATE_LAUNCH(KernelCall) \
  template cudaError_t LaunchKernel<KernelCall>(const KernelCall&, cudaStream_t)
#define REFRACT_INSTANTIATE_LAUNCHES()         \
  REFRACT_INSTANTIATE_LAUNCH(InteractionCall); \
  REFRACT_INSTANTIATE_LAUNCH(MapCall);         \
  REFRACT_INSTANTIATE_LAUNCH(MatMulCall);      \
  REFRACT_INSTANTIATE_LAUNCH(ReduceCall);      \
  REFRACT_INSTANTIATE_LAUNCH(LookUpCall);      \
  REFRACT_INSTANTIATE_LAUNCH(IntegerCall);     \
  REFRACT_INSTANTIATE_LAUNCH(TakesCall);       \
  REFRACT_INSTANTIATE_LAUNCH(BagsCall)

// An empty kernel: its time is the least that any launch takes.
cudaError_t LaunchEmpty(cudaStream_t stream);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_H_
