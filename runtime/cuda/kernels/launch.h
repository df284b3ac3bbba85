#ifndef REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_H_

// Launches on a CUDA stream. Asynchronous; a launch that the driver refuses
// gives its error, one that fails later shows at the next synchronisation. May
// be captured. Calls without rows do nothing.

#include <cuda_runtime_api.h>

#include "runtime/cuda/calls.h"
#include "runtime/cuda/kernels/copy_rows.h"

namespace refract::runtime::cuda {

// Without cuBLASLt: by call.kernel.
cudaError_t LaunchKernel(const GemmCall& call, cudaStream_t stream);
cudaError_t LaunchKernel(const InteractionCall& call, cudaStream_t stream);
cudaError_t LaunchKernel(const ChainCall& call, cudaStream_t stream);
cudaError_t LaunchKernel(const CrossCall& call, cudaStream_t stream);
cudaError_t LaunchKernel(const GatherCall& call, cudaStream_t stream);
cudaError_t LaunchKernel(const RowNormCall& call, cudaStream_t stream);
cudaError_t LaunchKernel(const MapCall& call, cudaStream_t stream);
cudaError_t LaunchKernel(const MatMulCall& call, cudaStream_t stream);
cudaError_t LaunchKernel(const ReduceCall& call, cudaStream_t stream);
cudaError_t LaunchKernel(const LookUpCall& call, cudaStream_t stream);
// Either side may be pinned memory of the host.
cudaError_t LaunchKernel(const CopyRowsCall& call, cudaStream_t stream);

// An empty kernel: what a launch costs at least.
cudaError_t LaunchEmpty(cudaStream_t stream);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_H_
