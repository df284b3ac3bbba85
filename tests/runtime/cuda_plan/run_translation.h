#ifndef REFRACT_TESTS_RUNTIME_CUDA_PLAN_RUN_TRANSLATION_H_
#define REFRACT_TESTS_RUNTIME_CUDA_PLAN_RUN_TRANSLATION_H_

// Runs a translated part on the checked device (emulated kernels), or on a GPU
// with REFRACT_TEST_GPU=N in the environment.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/tensor.h"
#include "runtime/cuda_plan/translate.h"
#include "tests/runtime/cuda/testing/checked_device.h"
#include "tests/runtime/cuda/testing/gpu.h"

namespace refract::runtime::cuda_plan::testing {

// One loaded translation.
class OnDevice {
 public:
  static absl::StatusOr<std::unique_ptr<OnDevice>> Load(Translation translation,
                                                        int64_t max_batch,
                                                        unsigned seed) {
    auto loaded = std::unique_ptr<OnDevice>(new OnDevice(seed));
    loaded->inputs_ = translation.inputs;
    loaded->outputs_ = translation.outputs;
    loaded->owned_ = translation.owned;
    loaded->bags_ = translation.bags;
    loaded->is_of_bags_ = translation.is_of_bags;
    loaded->bag_checks_ = translation.bag_checks;
    auto instance = cuda::Instance::Create(
        *loaded->device_, std::move(translation.program),
        std::move(translation.weights),
        {.max_batch = max_batch,
         .num_slots = 1,
         .workspace_bytes = loaded->checked_ == nullptr ? 32 << 20 : 256});
    if (!instance.ok()) {
      return absl::InternalError(instance.status().ToString());
    }
    loaded->instance_ = *std::move(instance);
    const cuda::Status status = loaded->instance_->Load();
    if (!status.ok()) return absl::InternalError(status.ToString());
    return loaded;
  }

  // The bytes of each output, in the order of the part.
  absl::StatusOr<std::vector<std::vector<std::byte>>> Run(
      const std::vector<base::TensorView>& inputs, int64_t batch) {
    const auto slot = instance_->Acquire(batch);
    if (!slot.ok()) return absl::InternalError(slot.status().ToString());
    const absl::Status filled =
        FillBags(bags_, *instance_, *slot, inputs, 0, 0, batch);
    if (!filled.ok()) {
      instance_->Release(*slot);
      return filled;
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (is_of_bags_[i]) continue;
      const base::TensorView& view = inputs[inputs_[i]];
      if (static_cast<int64_t>(view.bytes) !=
          instance_->input_bytes(*slot, i)) {
        return absl::InternalError(absl::StrCat(
            "input ", inputs_[i], " has ", view.bytes,
            " bytes, the device wants ", instance_->input_bytes(*slot, i)));
      }
      if (view.bytes > 0) {
        std::memcpy(instance_->input(*slot, i), view.data, view.bytes);
      }
    }
    cuda::Status status = instance_->Submit(*slot);
    if (status.ok()) status = instance_->Wait(*slot);
    std::vector<std::vector<std::byte>> outputs;
    for (const int output : outputs_) {
      const auto i = static_cast<size_t>(output);
      const std::byte* data = instance_->output(*slot, i);
      outputs.emplace_back(data, data + instance_->output_bytes(*slot, i));
    }
    instance_->Release(*slot);
    if (!status.ok()) return absl::InvalidArgumentError(status.message());
    return outputs;
  }

  // Violations of the checked device; none on a GPU.
  std::vector<std::string> violations() const {
    return checked_ == nullptr ? std::vector<std::string>()
                               : checked_->violations();
  }
  const cuda::DeviceProgram& program() const { return instance_->program(); }
  const std::vector<BagRoom>& bags() const { return bags_; }
  absl::Status Check(const std::vector<base::TensorView>& inputs) const {
    return CheckBags(bag_checks_, inputs);
  }

 private:
  explicit OnDevice(unsigned seed) {
    if (const int gpu = cuda::testing::TestGpu(); gpu >= 0) {
      device_ = cuda::testing::OpenTestGpu(gpu);
      return;
    }
    auto checked =
        std::make_unique<cuda::testing::CheckedDevice>(seed, int64_t{4} << 30);
    checked_ = checked.get();
    device_ = std::move(checked);
  }

  std::unique_ptr<cuda::DeviceApi> device_;
  const cuda::testing::CheckedDevice* checked_ = nullptr;
  std::shared_ptr<const void> owned_;
  std::vector<int> inputs_, outputs_;
  std::vector<BagRoom> bags_;
  std::vector<bool> is_of_bags_;
  std::vector<BagCheck> bag_checks_;
  std::unique_ptr<cuda::Instance> instance_;
};

// The largest difference between `got` and `want`, relative to the largest
// wanted value (at least 1). Infinity where sizes or NaNs differ, or where a
// bit of another type than float32 differs.
inline double Difference(const std::vector<std::byte>& got,
                         const base::TensorView& want) {
  if (got.size() != want.bytes) return INFINITY;
  if (want.dtype != base::DType::kFloat32) {
    return want.bytes == 0 ||
                   std::memcmp(got.data(), want.data, want.bytes) == 0
               ? 0
               : INFINITY;
  }
  double largest = 0;
  double scale = 1;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    float a;
    std::memcpy(&a, got.data() + 4 * i, sizeof(a));
    const float b = want.as<float>()[i];
    if (std::isnan(a) != std::isnan(b)) return INFINITY;
    if (a == b || std::isnan(b)) continue;
    scale = std::max<double>(scale, std::abs(b));
    largest = std::max<double>(largest, std::abs(a - b));
  }
  return largest / scale;
}

}  // namespace refract::runtime::cuda_plan::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_PLAN_RUN_TRANSLATION_H_
