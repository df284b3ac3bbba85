#include "runtime/cuda/instance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/cuda/index_math.h"
#include "runtime/cuda/lowering.h"

namespace refract::runtime::cuda {

// Memory of the slot on the host and on the device, laid out alike:
// roots of inputs and outputs, then the control block. Host rows are dense.
struct Instance::Slot {
  Phase phase = Phase::kFree;
  int64_t batch = 0;
  size_t bucket = 0;

  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::vector<int64_t> host_inputs, host_outputs;  // offsets
  int64_t host_control = 0;

  Event uploaded, computed, downloaded;
  std::vector<Graph> graphs;  // per bucket
};

namespace {

// Numbers that pass between host and device with each request.
struct Control {
  int32_t batch = 0;
  int32_t faults = 0;
};

int64_t DenseRowBytes(const Value& value) {
  return value.cols * SizeOf(value.dtype);
}

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

Result<std::unique_ptr<Instance>> Instance::Create(
    DeviceApi& device, Program program, std::vector<WeightData> weights,
    const InstanceOptions& options) {
  REFRACT_CUDA_RETURN_IF_ERROR(Validate(program, options.max_batch));
  const std::string model = "model " + program.name + ": ";
  if (options.num_slots < 1) {
    return InvalidArgument(model + "num_slots is below 1");
  }
  if (options.workspace_bytes < 0) {
    return InvalidArgument(model + "workspace_bytes is negative");
  }
  if (weights.size() != program.weights.size()) {
    return InvalidArgument(model + "needs " +
                           std::to_string(program.weights.size()) +
                           " weights, got " + std::to_string(weights.size()));
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const Value& value = program.value(program.weights[i]);
    if (!IsFloating(value.dtype) && value.dtype != DType::kInt32) {
      return Status(Code::kUnimplemented, model + "weight " + value.name +
                                              " is " + Name(value.dtype));
    }
    const bool given = IsFloating(value.dtype) ? weights[i].data != nullptr
                                               : weights[i].indices != nullptr;
    if (!given || weights[i].count != value.rows.fixed * value.cols) {
      return InvalidArgument(model + "weight " + value.name + " has " +
                             std::to_string(weights[i].count) +
                             " elements, not " +
                             std::to_string(value.rows.fixed * value.cols));
    }
  }
  return std::unique_ptr<Instance>(
      new Instance(device, std::move(program), std::move(weights), options));
}

Instance::Instance(DeviceApi& device, Program program,
                   std::vector<WeightData> weights,
                   const InstanceOptions& options)
    : device_(device),
      program_(std::move(program)),
      weights_(std::move(weights)),
      options_(options),
      buckets_(Buckets(options.max_batch)) {
  for (int64_t bucket : buckets_) {
    plans_.push_back(PlanMemory(program_, bucket, options_.max_batch));
    memory_.arena_bytes =
        std::max(memory_.arena_bytes, plans_.back().arena_bytes);
  }
  const auto control = static_cast<int64_t>(sizeof(Control));
  memory_.weight_bytes = plans_[0].weight_bytes;
  memory_.slot_bytes =
      options_.num_slots *
      (plans_[0].slot_bytes + RoundUp(control, kAllocationAlignBytes));
  memory_.workspace_bytes = options_.workspace_bytes;

  for (int i = 0; i < options_.num_slots; ++i) {
    auto slot = std::make_unique<Slot>();
    int64_t bytes = 0;
    auto place = [&](ValueId id) {
      const Value& value = program_.value(id);
      const int64_t offset = bytes;
      bytes += RoundUp(value.rows.At(options_.max_batch) * DenseRowBytes(value),
                       kAllocationAlignBytes);
      return offset;
    };
    for (ValueId id : program_.inputs) slot->host_inputs.push_back(place(id));
    for (ValueId id : program_.outputs) slot->host_outputs.push_back(place(id));
    slot->host_control = bytes;
    bytes += 2 * control;  // as sent, as returned
    memory_.pinned_bytes += bytes;
    slots_.push_back(std::move(slot));
  }
}

Instance::~Instance() {
  Unload();
  DropPinnedWeights();
}

void Instance::DropPinnedWeights() {
  if (staging_ != nullptr) (void)device_.FreePinned(staging_);
  staging_ = nullptr;
  staged_ = false;
}

Status Instance::Load() {
  if (state_ != State::kUnloaded) {
    return Status(Code::kFailedPrecondition,
                  "model " + program_.name + ": Load() needs Unload() first");
  }
  Status status = LoadOrFail();
  if (status.ok()) {
    state_ = State::kReady;
  } else {
    Unload();
  }
  return status;
}

Status Instance::LoadOrFail() {
  REFRACT_CUDA_RETURN_IF_ERROR(AllocateAll());
  REFRACT_CUDA_RETURN_IF_ERROR(UploadWeights());
  REFRACT_CUDA_RETURN_IF_ERROR(PrepareProducts());
  return CaptureAll();
}

Status Instance::AllocateAll() {
  auto info = device_.Memory();
  if (!info.ok()) return info.status();
  auto explain = [&](Status status) {
    if (status.code() != Code::kResourceExhausted) return status;
    return Status(
        Code::kResourceExhausted,
        "model " + program_.name + " needs " +
            std::to_string(memory_.device_bytes()) +
            " bytes of device memory (weights " +
            std::to_string(memory_.weight_bytes) + ", intermediates " +
            std::to_string(memory_.arena_bytes) + ", slots " +
            std::to_string(memory_.slot_bytes) + ", workspace " +
            std::to_string(memory_.workspace_bytes) + ") and " +
            std::to_string(memory_.pinned_bytes) + " pinned; " +
            std::to_string(info->free_bytes) + " of " +
            std::to_string(info->total_bytes) + " on the device are free" +
            (status.message().empty() ? "" : ": " + status.message()));
  };
  if (memory_.device_bytes() > info->free_bytes) {
    return explain(Status(Code::kResourceExhausted, ""));
  }
  auto allocate = [&](int64_t bytes, std::byte** memory) -> Status {
    if (bytes == 0) return {};
    void* address = nullptr;
    Status status = device_.Allocate(bytes, &address);
    *memory = static_cast<std::byte*>(address);
    return explain(std::move(status));
  };
  REFRACT_CUDA_RETURN_IF_ERROR(allocate(memory_.weight_bytes, &weight_memory_));
  REFRACT_CUDA_RETURN_IF_ERROR(allocate(memory_.arena_bytes, &arena_));
  REFRACT_CUDA_RETURN_IF_ERROR(allocate(memory_.workspace_bytes, &workspace_));
  for (Stream* stream : {&upload_, &compute_, &download_}) {
    auto created = device_.CreateStream();
    if (!created.ok()) return created.status();
    *stream = *created;
  }
  for (auto& slot : slots_) {
    REFRACT_CUDA_RETURN_IF_ERROR(
        allocate(memory_.slot_bytes / options_.num_slots, &slot->device));
    void* host = nullptr;
    REFRACT_CUDA_RETURN_IF_ERROR(explain(device_.AllocatePinned(
        memory_.pinned_bytes / options_.num_slots, &host)));
    slot->host = static_cast<std::byte*>(host);
    for (Event* event : {&slot->uploaded, &slot->computed, &slot->downloaded}) {
      auto created = device_.CreateEvent();
      if (!created.ok()) return created.status();
      *event = *created;
    }
    // Padding columns must be zero, and nothing of another process may be read.
    REFRACT_CUDA_RETURN_IF_ERROR(device_.Clear(
        slot->device, memory_.slot_bytes / options_.num_slots, compute_));
  }
  // Once, so that the first runs compute on numbers.
  if (memory_.arena_bytes > 0) {
    REFRACT_CUDA_RETURN_IF_ERROR(
        device_.Clear(arena_, memory_.arena_bytes, compute_));
  }
  return {};
}

Status Instance::UploadWeights() {
  if (memory_.weight_bytes == 0) return device_.Synchronize(compute_);
  if (!staged_) REFRACT_CUDA_RETURN_IF_ERROR(StageWeights());
  REFRACT_CUDA_RETURN_IF_ERROR(
      device_.CopyToDevice({weight_memory_, memory_.weight_bytes, staging_,
                            memory_.weight_bytes, memory_.weight_bytes, 1},
                           compute_));
  REFRACT_CUDA_RETURN_IF_ERROR(device_.Synchronize(compute_));
  if (options_.keep_pinned_weights) return {};
  staged_ = false;
  return device_.FreePinned(std::exchange(staging_, nullptr));
}

Status Instance::StageWeights() {
  void* staging = nullptr;
  REFRACT_CUDA_RETURN_IF_ERROR(
      device_.AllocatePinned(memory_.weight_bytes, &staging));
  staging_ = static_cast<std::byte*>(staging);
  std::memset(staging, 0, static_cast<size_t>(memory_.weight_bytes));
  for (size_t i = 0; i < weights_.size(); ++i) {
    const ValueId id = program_.weights[i];
    const Value& value = program_.value(id);
    std::byte* to =
        staging_ + plans_[0].weight_offsets[static_cast<size_t>(id)];
    for (int64_t row = 0; row < value.rows.fixed; ++row) {
      if (value.dtype == DType::kInt32) {
        std::memcpy(to + row * value.ld * SizeOf(value.dtype),
                    weights_[i].indices + row * value.cols,
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

Status Instance::PrepareProducts() {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const Op& op : program_.ops) {
      const Call call = MakeCall(op, bucket, *slots_[0]);
      if (const auto* gemm = std::get_if<GemmCall>(&call)) {
        Status status = device_.Prepare(gemm->shape, memory_.workspace_bytes);
        if (!status.ok()) {
          return Status(status.code(), "model " + program_.name +
                                           ", operator " + op.name + ": " +
                                           status.message());
        }
      }
    }
  }
  return {};
}

Status Instance::CaptureAll() {
  // The first run of a kernel may load its code, which no capture allows.
  for (auto& slot : slots_) {
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      REFRACT_CUDA_RETURN_IF_ERROR(LaunchOps(bucket, *slot));
      REFRACT_CUDA_RETURN_IF_ERROR(device_.Synchronize(compute_));
      if (!options_.use_graphs) continue;
      REFRACT_CUDA_RETURN_IF_ERROR(device_.BeginCapture(compute_));
      Status launched = LaunchOps(bucket, *slot);
      // Always: a stream that keeps capturing is of no use to anybody.
      auto graph = device_.EndCapture(compute_);
      if (!launched.ok()) {
        if (graph.ok()) (void)device_.DestroyGraph(*graph);
        return launched;
      }
      if (!graph.ok()) return graph.status();
      slot->graphs.push_back(*graph);
    }
  }
  return {};
}

std::byte* Instance::Address(ValueId id, size_t bucket,
                             const Slot& slot) const {
  const Value& value = program_.value(id);
  const auto root = static_cast<size_t>(value.root);
  const MemoryPlan& plan = plans_[bucket];
  std::byte* base;
  if (plan.weight_offsets[root] >= 0) {
    base = weight_memory_ + plan.weight_offsets[root];
  } else if (plan.slot_offsets[root] >= 0) {
    base = slot.device + plan.slot_offsets[root];
  } else {
    base = arena_ + plan.arena_offsets[root];
  }
  return base + value.first_col * SizeOf(value.dtype);
}

Call Instance::MakeCall(const Op& op, size_t bucket, Slot& slot) const {
  auto* control =
      reinterpret_cast<Control*>(slot.device + plans_[0].slot_bytes);
  const LoweringContext context = {
      .program = program_,
      .batch = buckets_[bucket],
      .workspace = workspace_,
      .workspace_bytes = memory_.workspace_bytes,
      .device_batch = &control->batch,
      .faults = &control->faults,
  };
  return Lower(op, context,
               [&](ValueId id) -> void* { return Address(id, bucket, slot); });
}

Status Instance::LaunchOps(size_t bucket, Slot& slot) {
  for (const Op& op : program_.ops) {
    Status status = device_.Launch(MakeCall(op, bucket, slot), compute_);
    if (!status.ok()) {
      return Status(status.code(), "model " + program_.name + ", operator " +
                                       op.name + ", batch " +
                                       std::to_string(buckets_[bucket]) + ": " +
                                       status.message());
    }
  }
  return {};
}

void Instance::Unload() {
  // Errors have no reader here: memory of a lost device is gone with it.
  for (Stream stream : {upload_, compute_, download_}) {
    if (stream.handle != nullptr) (void)device_.Synchronize(stream);
  }
  for (auto& slot : slots_) {
    for (Graph graph : slot->graphs) (void)device_.DestroyGraph(graph);
    slot->graphs.clear();
    for (Event* event : {&slot->uploaded, &slot->computed, &slot->downloaded}) {
      if (event->handle != nullptr) (void)device_.DestroyEvent(*event);
      *event = {};
    }
    if (slot->host != nullptr) (void)device_.FreePinned(slot->host);
    if (slot->device != nullptr) (void)device_.Free(slot->device);
    slot->host = slot->device = nullptr;
    slot->phase = Phase::kFree;
  }
  for (Stream* stream : {&upload_, &compute_, &download_}) {
    if (stream->handle != nullptr) (void)device_.DestroyStream(*stream);
    *stream = {};
  }
  if (!staged_ || !options_.keep_pinned_weights) DropPinnedWeights();
  for (std::byte** memory : {&weight_memory_, &arena_, &workspace_}) {
    if (*memory != nullptr) (void)device_.Free(*memory);
    *memory = nullptr;
  }
  state_ = State::kUnloaded;
  failure_ = Status();
}

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
  const auto control_bytes = static_cast<int64_t>(sizeof(Control));
  const Control control = {static_cast<int32_t>(slot.batch), 0};
  std::memcpy(slot.host + slot.host_control, &control, sizeof(control));
  std::byte* device_control = slot.device + plans_[0].slot_bytes;
  REFRACT_CUDA_RETURN_IF_ERROR(device_.CopyToDevice(
      {device_control, control_bytes, slot.host + slot.host_control,
       control_bytes, control_bytes, 1},
      upload_));
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
  if (!options_.use_graphs) return LaunchOps(slot.bucket, slot);
  return device_.Launch(slot.graphs[slot.bucket], compute_);
}

Status Instance::Finish(Slot& slot) {
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
