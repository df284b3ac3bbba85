#ifndef REFRACT_GPU_NODE_DEVICE_CUDA_SETUP_H_
#define REFRACT_GPU_NODE_DEVICE_CUDA_SETUP_H_

#include <memory>
#include <string>

#include "gpu_node/device/cuda_device.h"
#include "gpu_node/gpu_node.h"
#include "gpu_node/model/device_model.h"
#include "runtime/cuda/instance/device_api.h"

namespace refract::gpu_node {

// Arguments of GpuNode::Create() for a GPU.
struct CudaSetup {
  GpuNode::MakeDevice make_device;  // may be called once
  std::function<GpuNodeOptions::DeviceFacts(const DeviceModel&)> facts;
};

// Loads `models` onto the GPU. A model that cannot run there is left out; the
// reason is logged and sent to CPU nodes that offer the model.
CudaSetup SetUpCuda(std::unique_ptr<runtime::cuda::DeviceApi> api,
                    const CudaDevice::Options& options, DeviceModels& models);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_DEVICE_CUDA_SETUP_H_
