#ifndef REFRACT_RUNTIME_CUDA_DEVICE_MODULE_H_
#define REFRACT_RUNTIME_CUDA_DEVICE_MODULE_H_

// The shared library through which programs that must start without CUDA reach
// a GPU. Program and library are of one build: the name of the function changes
// with the interfaces between them.

#include "runtime/cuda/instance/device_api.h"
#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

inline constexpr char kModuleFile[] = "librefract_cuda_module.so";
inline constexpr char kOpenFunction[] = "refract_cuda_open_4";

// Opens GPU `index`, owned by the caller; null with `*status` as
// CudaRuntime::Create().
using OpenFunction = DeviceApi*(int index, Status* status);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_DEVICE_MODULE_H_
