// Launches of our kernels for the stand-ins of fake_cuda.h.

#include "runtime/cuda/kernels/launch.h"
#include "tests/runtime/cuda/device/fake_streams.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda {

template <typename KernelCall>
cudaError_t LaunchKernel(const KernelCall& call, cudaStream_t stream) {
  return testing::Do(stream, [call] {
    // Shared, because the stacks of its fibers are large.
    static testing::EmulatedLauncher launcher(7);
    Dispatch(call, launcher);
  });
}
REFRACT_INSTANTIATE_LAUNCHES();

cudaError_t LaunchEmpty(cudaStream_t stream) {
  return testing::Do(stream, [] {});
}

}  // namespace refract::runtime::cuda
