// A request in an instance: slots, copies, computation, errors.

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/instance/instance.h"
#include "runtime/cuda/instance/instance_slot.h"

namespace refract::runtime::cuda {

Status Instance::Fail(Status status) {
  state_ = State::kFailed;
  failure_ = Status(status.code(), "model " + name() + ": " + status.message());
  return failure_;
}

Status Instance::CheckSlot(SlotId slot, Phase phase) const {
  if (state_ == State::kFailed) return failure_;
  if (state_ != State::kReady || slot < 0 ||
      static_cast<size_t>(slot) >= slots_.size() ||
      slots_[static_cast<size_t>(slot)]->phase != phase) {
    return Status(Code::kFailedPrecondition,
                  "model " + name() + ": slot " + std::to_string(slot) +
                      " is not in the state that this call needs");
  }
  return {};
}

Result<SlotId> Instance::Acquire(int64_t batch, VariantId variant) {
  if (state_ == State::kFailed) return failure_;
  if (state_ == State::kUnloaded) {
    return Status(Code::kFailedPrecondition,
                  "model " + name() + " is not loaded");
  }
  const Variant* const program = Find(variant);
  if (program == nullptr) {
    return Status(
        Code::kFailedPrecondition,
        "model " + name() + " has no program " + std::to_string(variant));
  }
  const int bucket = BucketOf(program->buckets, batch);
  if (bucket < 0) {
    return InvalidArgument("model " + name() + ": batch " +
                           std::to_string(batch) + " is outside 1 to " +
                           std::to_string(program->buckets.back()));
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = *slots_[i];
    if (slot.phase != Phase::kFree) continue;
    slot.phase = Phase::kFilling;
    slot.batch = batch;
    slot.bucket = static_cast<size_t>(bucket);
    slot.variant = variant;
    slot.counts.clear();
    for (const ValueId input : program->program.inputs) {
      slot.counts.push_back(program->program.value(input).cols);
    }
    // Staged inputs lie one behind the other without gaps for this batch,
    // because they are uploaded in one copy. All other inputs have fixed
    // places.
    slot.host_inputs = program->host_inputs;
    slot.staged_bytes = 0;
    for (const size_t input : program->staged) {
      slot.host_inputs[input] = slot.staged_bytes;
      slot.staged_bytes += StagedBytes(
          program->program.value(program->program.inputs[input]), batch);
    }
    return static_cast<SlotId>(i);
  }
  return Status(Code::kResourceExhausted, "model " + name() + ": all " +
                                              std::to_string(slots_.size()) +
                                              " slots are taken");
}

std::byte* Instance::input(SlotId id, size_t i) {
  const Slot& slot = *slots_[static_cast<size_t>(id)];
  return slot.host + slot.host_inputs[i];
}
void Instance::SetCount(SlotId id, size_t i, int64_t count) {
  Slot& slot = *slots_[static_cast<size_t>(id)];
  const DeviceProgram& program = Find(slot.variant)->program;
  slot.counts[i] =
      std::clamp<int64_t>(count, 0, program.value(program.inputs[i]).cols);
}
const std::byte* Instance::output(SlotId id, size_t i) const {
  const Slot& slot = *slots_[static_cast<size_t>(id)];
  return slot.host + Find(slot.variant)->host_outputs[i];
}
int64_t Instance::input_bytes(SlotId id, size_t i) const {
  const Slot& slot = *slots_[static_cast<size_t>(id)];
  const DeviceProgram& program = Find(slot.variant)->program;
  const Value& value = program.value(program.inputs[i]);
  return value.rows.At(slot.batch) * DenseRowBytes(value);
}
int64_t Instance::output_bytes(SlotId id, size_t i) const {
  const Slot& slot = *slots_[static_cast<size_t>(id)];
  const DeviceProgram& program = Find(slot.variant)->program;
  const Value& value = program.value(program.outputs[i]);
  return value.rows.At(slot.batch) * DenseRowBytes(value);
}

Status Instance::Upload(SlotId id) {
  REFRACT_CUDA_RETURN_IF_ERROR(CheckSlot(id, Phase::kFilling));
  Slot& slot = *slots_[static_cast<size_t>(id)];
  // From here on the device may use the slot, even after an error.
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
  return {};
}

Status Instance::StartUpload(Slot& slot) {
  const Place place = PlaceOf(slot);
  const DeviceProgram& program = place.variant.program;
  if (slot.cleared_for != place.variant.serial) {
    // The slot held the layout of another variant. Products read padding
    // columns, which must be zero, and look-ups read ids of unused rows, which
    // must be valid. Cleared on the upload stream, so that the copies come
    // after.
    if (slot_device_bytes_ > 0) {
      REFRACT_CUDA_RETURN_IF_ERROR(device_.Clear(
          slot.device, place.variant.plans[0].slot_bytes, upload_));
    }
    slot.cleared_for = place.variant.serial;
  }
  const std::vector<size_t>& staged = place.variant.staged;
  if (!staged.empty()) REFRACT_CUDA_RETURN_IF_ERROR(UploadStaged(slot));
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (std::binary_search(staged.begin(), staged.end(), i)) continue;
    const ValueId id = program.inputs[i];
    const Value& value = program.value(id);
    const int64_t row_bytes = value.counted
                                  ? slot.counts[i] * SizeOf(value.dtype)
                                  : DenseRowBytes(value);
    if (row_bytes == 0) continue;
    REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToDevice(
        {Address(id, place), value.ld * SizeOf(value.dtype),
         slot.host + slot.host_inputs[i], DenseRowBytes(value),
         row_bytes, value.rows.At(slot.batch)},
        upload_));
  }
  // Even a small copy takes microseconds, so only programs that read the
  // numbers get them.
  if (program.reads_batch() || program.counts_faults()) {
    const auto control_bytes = static_cast<int64_t>(sizeof(Control));
    const Control control = {static_cast<int32_t>(slot.batch), 0};
    std::byte* const host_control = slot.host + slot_host_bytes_;
    std::memcpy(host_control, &control, sizeof(control));
    REFRACT_CUDA_RETURN_IF_ERROR(
        device_.CopyToDevice({DeviceControl(slot), control_bytes, host_control,
                              control_bytes, control_bytes, 1},
                             upload_));
  }
  return device_.Record(slot.uploaded, upload_);
}

Status Instance::UploadStaged(Slot& slot) {
  const Place place = PlaceOf(slot);
  const DeviceProgram& program = place.variant.program;
  std::byte* const arrived =
      slot.device + place.variant.plans[slot.bucket].staging_offset;
  REFRACT_CUDA_RETURN_IF_ERROR(
      device_.CopyToDevice({arrived, slot.staged_bytes, slot.host,
                            slot.staged_bytes, slot.staged_bytes, 1},
                           upload_));
  // The kernel of look-ups moves the rows: each staged input is a table without
  // ids, whose row r goes to row r of the input's place. A launch takes
  // kMaxTakeTables inputs.
  TakesCall call;
  call.rows = slot.batch;
  const std::vector<size_t>& staged = place.variant.staged;
  for (size_t i = 0; i < staged.size(); ++i) {
    const ValueId id = program.inputs[staged[i]];
    const Value& value = program.value(id);
    TakeTable& input = call.tables[call.num_tables++];
    input.table = arrived + slot.host_inputs[staged[i]];
    input.out = Address(id, place);
    input.table_rows = slot.batch;
    input.dtype = value.host_dtype;
    input.out_dtype = value.dtype;
    // Integers are moved as words of 4 bytes.
    const auto words = static_cast<int32_t>(
        IsFloating(value.dtype) ? 1 : SizeOf(value.dtype) / 4);
    if (!IsFloating(value.dtype)) {
      input.dtype = input.out_dtype = DType::kInt32;
    }
    input.dim = static_cast<int32_t>(value.cols) * words;
    input.row_stride = input.dim;
    input.out_stride = static_cast<int32_t>(value.ld) * words;
    if (call.num_tables == kMaxTakeTables || i + 1 == staged.size()) {
      REFRACT_CUDA_RETURN_IF_ERROR(device_.Launch(call, upload_));
      call.num_tables = 0;
    }
  }
  return {};
}

Status Instance::SubmitTo(Slot& slot) {
  // Upload, computation and download are ordered by events between the three
  // streams; nothing here waits.
  REFRACT_CUDA_RETURN_IF_ERROR(device_.StreamWait(compute_, slot.uploaded));
  REFRACT_CUDA_RETURN_IF_ERROR(Compute(slot));
  REFRACT_CUDA_RETURN_IF_ERROR(device_.Record(slot.computed, compute_));

  const Place place = PlaceOf(slot);
  const DeviceProgram& program = place.variant.program;
  REFRACT_CUDA_RETURN_IF_ERROR(device_.StreamWait(download_, slot.computed));
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const ValueId id = program.outputs[i];
    const Value& value = program.value(id);
    REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToHost(
        {slot.host + place.variant.host_outputs[i], DenseRowBytes(value),
         Address(id, place), value.ld * SizeOf(value.dtype),
         DenseRowBytes(value), value.rows.At(slot.batch)},
        download_));
  }
  if (program.counts_faults()) {
    const auto control_bytes = static_cast<int64_t>(sizeof(Control));
    REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToHost(
        {slot.host + slot_host_bytes_ + control_bytes, control_bytes,
         DeviceControl(slot), control_bytes, control_bytes, 1},
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
  const Place place = PlaceOf(slot);
  Variant& variant = place.variant;
  Variant::Captured& captured = variant.captured[slot.index][slot.bucket];
  // The first program was captured at load; a program of other sizes is
  // captured when it has run often enough. By then its kernels' code is loaded,
  // which no capture allows.
  if (slot.variant != kFirstProgram && captured.graphs.empty() &&
      options_.use_graphs && captured.runs++ == kRunsBeforeCapture) {
    Status status = CaptureSegments(place, captured.graphs);
    if (!status.ok()) {
      if (status.code() != Code::kResourceExhausted) return status;
      // No memory for graphs: this bucket launches its kernels one by one.
      Destroy(captured.graphs);
      captured.graphs.clear();
    }
  }
  for (size_t i = 0; i < variant.segments.size(); ++i) {
    const Segment& segment = variant.segments[i];
    Status status = !captured.graphs.empty() && !segment.foreign
                        ? device_.Launch(captured.graphs[i], compute_)
                        : LaunchSegment(segment, place, slot.batch);
    if (segment.foreign && status.code() == Code::kInvalidArgument) {
      // An error of the request: the device goes on. Later operators are left
      // out, because their operands do not exist. Finish() reports the refusal,
      // and nobody reads the outputs.
      slot.refused = std::move(status);
      return {};
    }
    REFRACT_CUDA_RETURN_IF_ERROR(std::move(status));
  }
  return {};
}

Status Instance::Finish(Slot& slot) {
  if (!slot.refused.ok()) return slot.refused;
  if (!Find(slot.variant)->program.counts_faults()) return {};
  Control control;
  // The control block that came back lies behind the block that was sent.
  std::memcpy(&control, slot.host + slot_host_bytes_ + sizeof(Control),
              sizeof(control));
  if (control.faults == 0) return {};
  return InvalidArgument("model " + name() + ": " +
                         std::to_string(control.faults) +
                         " ids are outside their tables");
}

void Instance::Release(SlotId id) {
  if (id < 0 || static_cast<size_t>(id) >= slots_.size()) return;
  Slot& slot = *slots_[static_cast<size_t>(id)];
  // The device may still write to or read from the slot's memory, which the
  // next request will use.
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
