#ifndef REFRACT_RUNTIME_CUDA_DEVICE_CUDA_RUNTIME_H_
#define REFRACT_RUNTIME_CUDA_DEVICE_CUDA_RUNTIME_H_

// The device interface on a GPU, by the CUDA runtime and cuBLASLt.

#include <memory>
#include <string>

#include "runtime/cuda/instance/device_api.h"
#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

struct DeviceProperties {
  std::string name;  // "NVIDIA H200"
  int64_t l2_bytes = 0;
};

// Number of GPUs. Unavailable, with the reason, if the driver is missing or too
// old for the toolkit of this build (both versions are in the message).
Result<int> CountDevices();

class CudaRuntime : public DeviceApi {
 public:
  // Unavailable as CountDevices(); InvalidArgument: there is no GPU `index`;
  // Unimplemented: this build has no code for that GPU.
  static Result<std::unique_ptr<CudaRuntime>> Create(int index);
  ~CudaRuntime() override;

  virtual const DeviceProperties& properties() const = 0;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_DEVICE_CUDA_RUNTIME_H_
