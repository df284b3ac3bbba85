#ifndef REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_H_

// Launches on a CUDA stream. Asynchronous; a launch that the driver refuses
// gives its error, one that fails later shows at the next synchronisation. May
// be captured. Calls without rows do nothing.
//
// Start::kEarly is legal where what was given to the stream last, in the same
// capture, is a launch by one of these functions that did something, and
// KernelsCanStartEarly(). launch.cu says why that is enough.

#include <cuda_runtime_api.h>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/kernels/copy_rows.h"

namespace refract::runtime::cuda {

// Of each alternative of Call, products without cuBLASLt (by call.kernel), and
// of CopyRowsCall, either side of which may be pinned memory of the host.
template <typename KernelCall>
cudaError_t LaunchKernel(const KernelCall& call, cudaStream_t stream,
                         Start start);
// What is defined for each kind of call, on a GPU and where it is emulated.
#define REFRACT_INSTANTIATE_LAUNCH(KernelCall)                     \
  template cudaError_t LaunchKernel<KernelCall>(const KernelCall&, \
                                                cudaStream_t, Start)
#define REFRACT_INSTANTIATE_LAUNCHES()         \
  REFRACT_INSTANTIATE_LAUNCH(GemmCall);        \
  REFRACT_INSTANTIATE_LAUNCH(InteractionCall); \
  REFRACT_INSTANTIATE_LAUNCH(ChainCall);       \
  REFRACT_INSTANTIATE_LAUNCH(CrossCall);       \
  REFRACT_INSTANTIATE_LAUNCH(GatherCall);      \
  REFRACT_INSTANTIATE_LAUNCH(RowNormCall);     \
  REFRACT_INSTANTIATE_LAUNCH(MapCall);         \
  REFRACT_INSTANTIATE_LAUNCH(MatMulCall);      \
  REFRACT_INSTANTIATE_LAUNCH(ReduceCall);      \
  REFRACT_INSTANTIATE_LAUNCH(LookUpCall);      \
  REFRACT_INSTANTIATE_LAUNCH(IntegerCall);     \
  REFRACT_INSTANTIATE_LAUNCH(TakesCall);       \
  REFRACT_INSTANTIATE_LAUNCH(BagsCall);        \
  REFRACT_INSTANTIATE_LAUNCH(CopyRowsCall)

// An empty kernel: what a launch costs at least.
cudaError_t LaunchEmpty(cudaStream_t stream, Start start);

// Whether the kernels, as the current device runs them, wait for the launch
// before them by themselves: its driver and the code that was compiled for it.
cudaError_t KernelsCanStartEarly(bool* can);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_H_
