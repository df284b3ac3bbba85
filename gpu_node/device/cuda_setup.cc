#include "gpu_node/device/cuda_setup.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace refract::gpu_node {

CudaSetup SetUpCuda(std::unique_ptr<runtime::cuda::DeviceApi> api,
                    const CudaDevice::Options& options, DeviceModels& models) {
  // Shared by both functions; make_device takes the device out of it.
  struct State {
    std::unique_ptr<CudaDevice> device;
    std::map<const DeviceModel*, GpuNodeOptions::DeviceFacts> facts;
  };
  auto state = std::make_shared<State>();
  state->device = std::make_unique<CudaDevice>(std::move(api), options);
  // LeaveOut() moves the models behind, so `i` stays in that case.
  for (size_t i = 0; i < models.size();) {
    const DeviceModel& model = models[i];
    absl::StatusOr<CudaDevice::Loaded> loaded = state->device->Add(model);
    if (!loaded.ok()) {
      LOG(ERROR) << model.label()
                 << " is left out: " << loaded.status().message();
      models.LeaveOut(i,
                      absl::FailedPreconditionError(loaded.status().message()));
      continue;
    }
    LOG(INFO) << model.label() << " on " << options.name << ": "
              << loaded->Describe(options);
    state->facts[&model] = {std::move(loaded->times), loaded->device_bytes};
    ++i;
  }
  CudaSetup setup;
  setup.make_device = [state](const DeviceModels& order) {
    CHECK(state->device != nullptr) << "the device was made before";
    state->device->SetOrder(order);
    return std::move(state->device);
  };
  setup.facts = [state](const DeviceModel& model) {
    return state->facts.at(&model);
  };
  return setup;
}

}  // namespace refract::gpu_node
