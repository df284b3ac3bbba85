// The way of a request through an instance: slots, copies, computation, errors.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/cuda/index_math.h"
#include "runtime/cuda/instance.h"
#include "runtime/cuda/instance_slot.h"

namespace refract::runtime::cuda {
namespace {

bool IsFinite(const Value& value, const std::byte* data, int64_t rows) {
  if (!IsFloating(value.dtype)) return true;
  const int64_t count = rows * value.cols;
  // All exponent bits set: infinity or NaN.
  if (value.dtype == DType::kFloat32) {
    uint32_t any = 0;
    for (int64_t i = 0; i < count; ++i) {
      uint32_t bits;
      std::memcpy(&bits, data + 4 * i, sizeof(bits));
      any |= static_cast<uint32_t>((bits & 0x7F800000u) == 0x7F800000u);
    }
    return any == 0;
  }
  const uint16_t mask = value.dtype == DType::kFloat16 ? 0x7C00 : 0x7F80;
  uint32_t any = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * i, sizeof(bits));
    any |= static_cast<uint32_t>((bits & mask) == mask);
  }
  return any == 0;
}

}  // namespace

Status Instance::Fail(Status status) {
  state_ = State::kFailed;
  failure_ =
      Status(status.code(), "model " + program_.name + ": " + status.message());
  return failure_;
}

Status Instance::CheckSlot(SlotId slot, Phase phase) const {
  if (state_ == State::kFailed) return failure_;
  if (state_ != State::kReady || slot < 0 ||
      static_cast<size_t>(slot) >= slots_.size() ||
      slots_[static_cast<size_t>(slot)]->phase != phase) {
    return Status(Code::kFailedPrecondition,
                  "model " + program_.name + ": slot " + std::to_string(slot) +
                      " is not in the state for this call");
  }
  return {};
}

Result<SlotId> Instance::Acquire(int64_t batch) {
  if (state_ == State::kFailed) return failure_;
  if (state_ == State::kUnloaded) {
    return Status(Code::kFailedPrecondition,
                  "model " + program_.name + " is not loaded");
  }
  const int bucket = BucketOf(buckets_, batch);
  if (bucket < 0) {
    return InvalidArgument("model " + program_.name + ": batch " +
                           std::to_string(batch) + " is outside 1 to " +
                           std::to_string(options_.max_batch));
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = *slots_[i];
    if (slot.phase != Phase::kFree) continue;
    slot.phase = Phase::kFilling;
    slot.batch = batch;
    slot.bucket = static_cast<size_t>(bucket);
    return static_cast<SlotId>(i);
  }
  return Status(Code::kResourceExhausted, "model " + program_.name + ": all " +
                                              std::to_string(slots_.size()) +
                                              " slots are taken");
}

std::byte* Instance::input(SlotId slot, size_t i) {
  Slot& s = *slots_[static_cast<size_t>(slot)];
  return s.host + s.host_inputs[i];
}
const std::byte* Instance::output(SlotId slot, size_t i) const {
  const Slot& s = *slots_[static_cast<size_t>(slot)];
  return s.host + s.host_outputs[i];
}
int64_t Instance::input_bytes(SlotId slot, size_t i) const {
  const Value& value = program_.value(program_.inputs[i]);
  return value.rows.At(slots_[static_cast<size_t>(slot)]->batch) *
         DenseRowBytes(value);
}
int64_t Instance::output_bytes(SlotId slot, size_t i) const {
  const Value& value = program_.value(program_.outputs[i]);
  return value.rows.At(slots_[static_cast<size_t>(slot)]->batch) *
         DenseRowBytes(value);
}

Status Instance::Upload(SlotId id) {
  REFRACT_CUDA_RETURN_IF_ERROR(CheckSlot(id, Phase::kFilling));
  Slot& slot = *slots_[static_cast<size_t>(id)];
  // From here on the device may hold on to the slot, whatever fails.
  slot.phase = Phase::kUploading;
  Status status = StartUpload(slot);
  return status.ok() ? status : Fail(std::move(status));
}

Result<bool> Instance::Uploaded(SlotId id) {
  REFRACT_CUDA_RETURN_IF_ERROR(CheckSlot(id, Phase::kUploading));
  auto happened = device_.Happened(slots_[static_cast<size_t>(id)]->uploaded);
  if (!happened.ok()) return Fail(happened.status());
  return happened;
}

Status Instance::Submit(SlotId id) {
  if (state_ == State::kReady && id >= 0 &&
      static_cast<size_t>(id) < slots_.size() &&
      slots_[static_cast<size_t>(id)]->phase == Phase::kFilling) {
    REFRACT_CUDA_RETURN_IF_ERROR(Upload(id));
  }
  REFRACT_CUDA_RETURN_IF_ERROR(CheckSlot(id, Phase::kUploading));
  Slot& slot = *slots_[static_cast<size_t>(id)];
  slot.phase = Phase::kSubmitted;
  Status status = SubmitTo(slot);
  if (!status.ok()) return Fail(std::move(status));
  ++stats_.requests;
  stats_.items += static_cast<uint64_t>(slot.batch);
  stats_.padding_items +=
      static_cast<uint64_t>(buckets_[slot.bucket] - slot.batch);
  return {};
}

Status Instance::StartUpload(Slot& slot) {
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const ValueId id = program_.inputs[i];
    const Value& value = program_.value(id);
    REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToDevice(
        {Address(id, slot.bucket, slot), value.ld * SizeOf(value.dtype),
         slot.host + slot.host_inputs[i], DenseRowBytes(value),
         DenseRowBytes(value), value.rows.At(slot.batch)},
        upload_));
  }
  // A copy takes its microseconds whatever its size: only where it is read.
  if (program_.reads_batch() || program_.counts_faults()) {
    const auto control_bytes = static_cast<int64_t>(sizeof(Control));
    const Control control = {static_cast<int32_t>(slot.batch), 0};
    std::memcpy(slot.host + slot.host_control, &control, sizeof(control));
    std::byte* device_control = slot.device + plans_[0].slot_bytes;
    REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToDevice(
        {device_control, control_bytes, slot.host + slot.host_control,
         control_bytes, control_bytes, 1},
        upload_));
  }
  return device_.Record(slot.uploaded, upload_);
}

Status Instance::SubmitTo(Slot& slot) {
  const auto control_bytes = static_cast<int64_t>(sizeof(Control));
  std::byte* device_control = slot.device + plans_[0].slot_bytes;
  REFRACT_CUDA_RETURN_IF_ERROR(device_.StreamWait(compute_, slot.uploaded));
  REFRACT_CUDA_RETURN_IF_ERROR(Compute(slot));
  REFRACT_CUDA_RETURN_IF_ERROR(device_.Record(slot.computed, compute_));

  REFRACT_CUDA_RETURN_IF_ERROR(device_.StreamWait(download_, slot.computed));
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    const ValueId id = program_.outputs[i];
    const Value& value = program_.value(id);
    REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToHost(
        {slot.host + slot.host_outputs[i], DenseRowBytes(value),
         Address(id, slot.bucket, slot), value.ld * SizeOf(value.dtype),
         DenseRowBytes(value), value.rows.At(slot.batch)},
        download_));
  }
  if (program_.counts_faults()) {
    REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToHost(
        {slot.host + slot.host_control + control_bytes, control_bytes,
         device_control, control_bytes, control_bytes, 1},
        download_));
  }
  return device_.Record(slot.downloaded, download_);
}

Result<bool> Instance::Done(SlotId id) {
  REFRACT_CUDA_RETURN_IF_ERROR(CheckSlot(id, Phase::kSubmitted));
  auto happened = device_.Happened(slots_[static_cast<size_t>(id)]->downloaded);
  if (!happened.ok()) return Fail(happened.status());
  return happened;
}

Status Instance::Wait(SlotId id) {
  REFRACT_CUDA_RETURN_IF_ERROR(CheckSlot(id, Phase::kSubmitted));
  Slot& slot = *slots_[static_cast<size_t>(id)];
  Status status = device_.Synchronize(slot.downloaded);
  if (!status.ok()) return Fail(std::move(status));
  slot.phase = Phase::kDone;
  return Finish(slot);
}

Status Instance::ComputeAgain(SlotId id) {
  REFRACT_CUDA_RETURN_IF_ERROR(CheckSlot(id, Phase::kDone));
  Status status = Compute(*slots_[static_cast<size_t>(id)]);
  return status.ok() ? status : Fail(std::move(status));
}

Status Instance::WaitForCompute() {
  if (state_ != State::kReady) return CheckSlot(0, Phase::kDone);
  Status status = device_.Synchronize(compute_);
  return status.ok() ? status : Fail(std::move(status));
}

Status Instance::Compute(Slot& slot) {
  slot.refused = Status();
  for (size_t i = 0; i < segments_.size(); ++i) {
    Status status =
        options_.use_graphs && !segments_[i].foreign
            ? device_.Launch(slot.graphs[slot.bucket][i], compute_)
            : LaunchSegment(segments_[i], slot.bucket, slot, slot.batch);
    if (segments_[i].foreign && status.code() == Code::kInvalidArgument) {
      // Of this request: the device is none the worse for it.
      slot.refused = std::move(status);
      return {};
    }
    REFRACT_CUDA_RETURN_IF_ERROR(std::move(status));
  }
  return {};
}

Status Instance::Finish(Slot& slot) {
  if (!slot.refused.ok()) return slot.refused;
  bool finite = true;
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    const Value& value = program_.value(program_.outputs[i]);
    finite = finite && IsFinite(value, slot.host + slot.host_outputs[i],
                                value.rows.At(slot.batch));
  }
  if (!finite) ++stats_.non_finite_requests;
  if (!program_.counts_faults()) return {};
  Control control;
  std::memcpy(&control, slot.host + slot.host_control + sizeof(Control),
              sizeof(control));
  if (control.faults == 0) return {};
  stats_.bad_indices += static_cast<uint64_t>(control.faults);
  return InvalidArgument("model " + program_.name + ": " +
                         std::to_string(control.faults) +
                         " indices name no row");
}

void Instance::Release(SlotId id) {
  if (id < 0 || static_cast<size_t>(id) >= slots_.size()) return;
  Slot& slot = *slots_[static_cast<size_t>(id)];
  const bool uploading = slot.phase == Phase::kUploading;
  if ((uploading || slot.phase == Phase::kSubmitted) &&
      state_ == State::kReady) {
    Status status =
        device_.Synchronize(uploading ? slot.uploaded : slot.downloaded);
    if (!status.ok()) (void)Fail(std::move(status));
  }
  slot.phase = Phase::kFree;
}

}  // namespace refract::runtime::cuda
