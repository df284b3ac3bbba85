#ifndef REFRACT_TESTS_RUNTIME_CUDA_DEVICE_FAKE_STREAMS_H_
#define REFRACT_TESTS_RUNTIME_CUDA_DEVICE_FAKE_STREAMS_H_

// Shared by the stand-ins of CUDA's runtime, of cuBLASLt and of our kernels:
// streams that do or record work, and errors that were planted. Internal to
// them.

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/runtime/cuda/device/fake_cuda.h"

namespace refract::runtime::cuda::testing {

using Work = std::function<void()>;

struct FakeStream {
  bool capturing = false;
  std::vector<Work> captured;
};
using FakeGraph = std::vector<Work>;

inline FakeStream* Of(cudaStream_t stream) {
  return reinterpret_cast<FakeStream*>(stream);
}

void Violation(const std::string& what);

// Streams that capture now. As one thread does all here, a capture of the mode
// "thread-local" forbids it what may wait for or change the device.
int& Capturing();

// The error that a call of this name returns.
cudaError_t Planted(const char* name);

cudaError_t Do(cudaStream_t stream, Work work);

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_DEVICE_FAKE_STREAMS_H_
