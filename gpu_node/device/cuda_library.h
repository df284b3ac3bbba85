#ifndef REFRACT_GPU_NODE_DEVICE_CUDA_LIBRARY_H_
#define REFRACT_GPU_NODE_DEVICE_CUDA_LIBRARY_H_

// Loads CUDA code at run time: a shared library beside this program, opened
// when a GPU is asked for. The program therefore starts on machines that have
// neither driver nor toolkit, and says what is missing.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/cuda/instance/device_api.h"
#include "runtime/cuda_plan/foreign.h"

namespace refract::gpu_node {

// GPU `index`. Unavailable: this build has no CUDA code, the driver is missing
// or too old for the toolkit of the build (both versions are in the message, as
// in `refract doctor`), or CUDA's libraries do not load. InvalidArgument: there
// are fewer GPUs. The library stays loaded.
absl::StatusOr<std::unique_ptr<runtime::cuda::DeviceApi>> OpenCudaDevice(
    int index);

// PCI address of GPU `index`, "0000:3b:00.0". The GPU must be open. Empty: the
// driver does not report it.
std::string CudaPciAddress(int index);

// ATen's operators on GPU `index`, by LibTorch's CUDA library. It is loaded
// from beside LibTorch when a model first needs it, and takes half a gigabyte
// of device memory and some seconds. If it does not load, models that need it
// are refused with that reason.
std::shared_ptr<runtime::cuda_plan::ForeignOperators> AtenOperatorsOn(
    int index);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_DEVICE_CUDA_LIBRARY_H_
