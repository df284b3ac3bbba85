#include "runtime/cuda/program/weights.h"

#include <cstring>
#include <string>
#include <utility>

#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/program/memory_plan.h"

namespace refract::runtime::cuda {
namespace {

int64_t DenseRowBytes(const Value& value) {
  return value.cols * SizeOf(value.dtype);
}

// The values given for this type; null: none.
const void* GivenAs(DType dtype, const WeightData& weight) {
  if (IsFloating(dtype)) return weight.data;
  return dtype == DType::kInt32 ? weight.indices : weight.bytes;
}

}  // namespace

Result<std::shared_ptr<DeviceWeights>> DeviceWeights::Create(
    DeviceApi& device, const DeviceProgram& program,
    std::vector<WeightData> weights, const WeightOptions& options) {
  const std::string model = "model " + program.name + ": ";
  if (weights.size() != program.weights.size()) {
    return InvalidArgument(model + "needs " +
                           std::to_string(program.weights.size()) +
                           " weights, got " + std::to_string(weights.size()));
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const Value& value = program.value(program.weights[i]);
    if (GivenAs(value.dtype, weights[i]) == nullptr ||
        weights[i].count != value.rows.fixed * value.cols) {
      return InvalidArgument(model + "weight " + value.name + " has " +
                             std::to_string(weights[i].count) +
                             " elements, not " +
                             std::to_string(value.rows.fixed * value.cols) +
                             " of " + Name(value.dtype));
    }
  }
  return std::shared_ptr<DeviceWeights>(
      new DeviceWeights(device, program, std::move(weights), options));
}

DeviceWeights::DeviceWeights(DeviceApi& device, const DeviceProgram& program,
                             std::vector<WeightData> weights,
                             const WeightOptions& options)
    : device_(device), weights_(std::move(weights)), options_(options) {
  // The layout of weights does not depend on the batch.
  const MemoryPlan plan = PlanMemory(program, 1, 1);
  bytes_ = plan.weight_bytes;
  for (const ValueId id : program.weights) {
    values_.push_back(program.value(id));
    offsets_.push_back(plan.weight_offsets[static_cast<size_t>(id)]);
  }
}

DeviceWeights::~DeviceWeights() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (memory_ != nullptr) (void)device_.Free(memory_);
  FreeStaging();
}

int64_t DeviceWeights::OffsetOf(const Value& value,
                                const WeightData& data) const {
  // By the address of the data: a variant is made from the same weight store.
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Value& own = values_[i];
    if (own.dtype == value.dtype && own.rows == value.rows &&
        own.cols == value.cols && own.ld == value.ld &&
        GivenAs(own.dtype, weights_[i]) == GivenAs(value.dtype, data)) {
      return offsets_[i];
    }
  }
  return -1;
}

int64_t DeviceWeights::bytes_to_load() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return holds_ > 0 ? 0 : bytes_;
}

Result<std::byte*> DeviceWeights::Hold(Stream stream) {
  // Held during the upload, so that a second instance waits for the weights
  // instead of uploading them again.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (holds_ == 0 && bytes_ > 0) {
    void* memory = nullptr;
    REFRACT_CUDA_RETURN_IF_ERROR(device_.Allocate(bytes_, &memory));
    memory_ = static_cast<std::byte*>(memory);
    Status status = Upload(stream);
    if (!status.ok()) {
      (void)device_.Synchronize(stream);  // the copy may still be reading
      // A complete pinned copy stays for the next try.
      if (!staged_ || !options_.keep_pinned) FreeStaging();
      (void)device_.Free(std::exchange(memory_, nullptr));
      return status;
    }
  }
  ++holds_;
  return memory_;
}

void DeviceWeights::Drop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--holds_ > 0 || memory_ == nullptr) return;
  (void)device_.Free(std::exchange(memory_, nullptr));
}

void DeviceWeights::DropPinned() {
  const std::lock_guard<std::mutex> lock(mutex_);
  FreeStaging();
}

void DeviceWeights::FreeStaging() {
  if (staging_ != nullptr) (void)device_.FreePinned(staging_);
  staging_ = nullptr;
  staged_ = false;
}

Status DeviceWeights::Upload(Stream stream) {
  // A pinned copy of an earlier load needs no conversion.
  if (!staged_) REFRACT_CUDA_RETURN_IF_ERROR(Stage());
  REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToDevice(
      {memory_, bytes_, staging_, bytes_, bytes_, 1}, stream));
  REFRACT_CUDA_RETURN_IF_ERROR(device_.Synchronize(stream));
  if (options_.keep_pinned) return {};
  staged_ = false;
  return device_.FreePinned(std::exchange(staging_, nullptr));
}

Status DeviceWeights::Stage() {
  void* staging = nullptr;
  REFRACT_CUDA_RETURN_IF_ERROR(device_.AllocatePinned(bytes_, &staging));
  staging_ = static_cast<std::byte*>(staging);
  // Products read the padding between rows, which must be zero.
  std::memset(staging, 0, static_cast<size_t>(bytes_));
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Value& value = values_[i];
    std::byte* const to = staging_ + offsets_[i];
    const int64_t pitch = value.ld * SizeOf(value.dtype);
    for (int64_t row = 0; row < value.rows.fixed; ++row) {
      // Integers keep their bits; floats are converted to the value's type.
      if (!IsFloating(value.dtype)) {
        const auto* from =
            static_cast<const std::byte*>(GivenAs(value.dtype, weights_[i]));
        std::memcpy(to + row * pitch, from + row * DenseRowBytes(value),
                    static_cast<size_t>(DenseRowBytes(value)));
        continue;
      }
      for (int64_t col = 0; col < value.cols; ++col) {
        Store(weights_[i].data[row * value.cols + col], to, value.dtype,
              row * value.ld + col);
      }
    }
  }
  staged_ = true;
  return {};
}

}  // namespace refract::runtime::cuda
