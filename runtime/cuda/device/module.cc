#include "runtime/cuda/device/module.h"

#include <utility>

#include "runtime/cuda/device/cuda_runtime.h"

// NOLINTNEXTLINE: the name is kOpenFunction.
extern "C" __attribute__((visibility("default")))
refract::runtime::cuda::DeviceApi*
refract_cuda_open_4(int index, refract::runtime::cuda::Status* status) {
  auto device = refract::runtime::cuda::CudaRuntime::Create(index);
  *status = device.status();
  return device.ok() ? (*std::move(device)).release() : nullptr;
}
