#include "runtime/cuda/instance/instance.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/instance/instance_slot.h"
#include "runtime/cuda/program/lowering.h"

namespace refract::runtime::cuda {

Result<std::unique_ptr<Instance>> Instance::Create(
    DeviceApi& device, DeviceProgram program, std::vector<WeightData> weights,
    const InstanceOptions& options) {
  REFRACT_CUDA_RETURN_IF_ERROR(Validate(program, options.max_batch));
  auto on_device =
      DeviceWeights::Create(device, program, std::move(weights), {});
  if (!on_device.ok()) return on_device.status();
  return Create(device, std::move(program), *std::move(on_device), options);
}

Result<std::unique_ptr<Instance>> Instance::Create(
    DeviceApi& device, DeviceProgram program,
    std::shared_ptr<DeviceWeights> weights, const InstanceOptions& options) {
  REFRACT_CUDA_RETURN_IF_ERROR(Validate(program, options.max_batch));
  const std::string model = "model " + program.name + ": ";
  if (options.num_slots < 1) {
    return InvalidArgument(model + "num_slots is below 1");
  }
  if (options.workspace_bytes < 0) {
    return InvalidArgument(model + "workspace_bytes is negative");
  }
  return std::unique_ptr<Instance>(
      new Instance(device, std::move(program), std::move(weights), options));
}

Instance::Instance(DeviceApi& device, DeviceProgram program,
                   std::shared_ptr<DeviceWeights> weights,
                   const InstanceOptions& options)
    : device_(device), weights_(std::move(weights)), options_(options) {
  // The first variant is the program of the largest sizes: its memory serves
  // the variants of other sizes, too.
  variants_.push_back(std::make_unique<Variant>());
  Variant& first = *variants_[0];
  first.program = std::move(program);
  first.segments = SegmentsOf(first.program);
  PlanBuckets(options_.max_batch, first);
  first.shared_weights = first.plans[0].weight_offsets;
  // Buckets share the arena, because only one of them runs at a time.
  for (const MemoryPlan& plan : first.plans) {
    memory_.arena_bytes = std::max(memory_.arena_bytes, plan.arena_bytes);
  }
  const auto control = static_cast<int64_t>(sizeof(Control));
  slot_device_bytes_ = first.plans[0].slot_bytes;
  slot_host_bytes_ = PlacePinned(first.program, options_.max_batch,
                                 first.host_inputs, first.host_outputs);
  memory_.weight_bytes = first.plans[0].weight_bytes;
  memory_.slot_bytes =
      options_.num_slots *
      (slot_device_bytes_ + RoundUp(control, kAllocationAlignBytes));
  memory_.workspace_bytes = options_.workspace_bytes;
  // The control block as sent, and as returned.
  memory_.pinned_bytes = options_.num_slots * (slot_host_bytes_ + 2 * control);
  for (int i = 0; i < options_.num_slots; ++i) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->index = static_cast<size_t>(i);
    slots_.back()->counts.reserve(first.program.inputs.size());
    slots_.back()->host_inputs.reserve(first.program.inputs.size());
  }
}

std::vector<Instance::Segment> Instance::SegmentsOf(
    const DeviceProgram& program) {
  std::vector<Segment> segments;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    // A foreign operator is a segment by itself; the operators between two of
    // them are captured together.
    const bool foreign = std::holds_alternative<ForeignOp>(program.ops[i].kind);
    if (foreign || segments.empty() || segments.back().foreign) {
      segments.push_back({i, i, foreign});
    }
    segments.back().end = i + 1;
  }
  return segments;
}

void Instance::PlanBuckets(int64_t max_batch, Variant& variant) {
  variant.staged = StagedInputs(variant.program);
  variant.buckets = Buckets(max_batch);
  for (int64_t bucket : variant.buckets) {
    variant.plans.push_back(PlanMemory(variant.program, bucket, max_batch));
  }
}

int64_t Instance::PlacePinned(const DeviceProgram& program, int64_t max_batch,
                              std::vector<int64_t>& inputs,
                              std::vector<int64_t>& outputs) {
  // Dense rows, without the padding of the device: the host's tensors are
  // dense. Staged inputs of a smaller batch take a part of their room.
  int64_t bytes = 0;
  inputs.assign(program.inputs.size(), -1);
  for (const size_t i : StagedInputs(program)) {
    inputs[i] = bytes;
    bytes += StagedBytes(program.value(program.inputs[i]), max_batch);
  }
  const auto place = [&](ValueId id) {
    const Value& value = program.value(id);
    const int64_t offset = bytes;
    bytes += RoundUp(value.rows.At(max_batch) * DenseRowBytes(value),
                     kAllocationAlignBytes);
    return offset;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] < 0) inputs[i] = place(program.inputs[i]);
  }
  outputs.clear();
  for (ValueId id : program.outputs) outputs.push_back(place(id));
  return bytes;
}

Instance::~Instance() { Unload(); }

const DeviceProgram& Instance::program() const { return variants_[0]->program; }
const std::vector<int64_t>& Instance::buckets() const {
  return variants_[0]->buckets;
}

Status Instance::Load() {
  if (state_ != State::kUnloaded) {
    return Status(Code::kFailedPrecondition,
                  "model " + name() + ": Load() needs Unload() first");
  }
  Status status = LoadOrFail();
  if (status.ok()) {
    state_ = State::kReady;
    ++loads_;
  } else {
    Unload();
  }
  return status;
}

Status Instance::LoadOrFail() {
  REFRACT_CUDA_RETURN_IF_ERROR(AllocateAll());
  // CUDA graphs and code of kernels are in no plan: measured as the fall of
  // free memory.
  auto before = device_.Memory();
  if (!before.ok()) return before.status();
  REFRACT_CUDA_RETURN_IF_ERROR(CaptureAll());
  auto after = device_.Memory();
  if (!after.ok()) return after.status();
  memory_.captured_bytes =
      std::max<int64_t>(before->free_bytes - after->free_bytes, 0);
  return {};
}

Status Instance::AllocateAll() {
  auto info = device_.Memory();
  if (!info.ok()) return info.status();
  // 0 if another instance holds the weights already.
  const int64_t weight_bytes = weights_->bytes_to_load();
  const int64_t bytes =
      memory_.device_bytes() - memory_.weight_bytes + weight_bytes;
  auto explain = [&](Status status) {
    if (status.code() != Code::kResourceExhausted) return status;
    return Status(
        Code::kResourceExhausted,
        "model " + name() + " needs " + std::to_string(bytes) +
            " bytes of device memory (weights " + std::to_string(weight_bytes) +
            ", intermediates " + std::to_string(memory_.arena_bytes) +
            ", slots " + std::to_string(memory_.slot_bytes) + ", workspace " +
            std::to_string(memory_.workspace_bytes) + ") and " +
            std::to_string(memory_.pinned_bytes) + " pinned; " +
            std::to_string(info->free_bytes) + " of " +
            std::to_string(info->total_bytes) + " on the device are free" +
            (status.message().empty() ? "" : ": " + status.message()));
  };
  // Checked before any allocation: other instances of the device keep serving.
  if (bytes > info->free_bytes) {
    return explain(Status(Code::kResourceExhausted, ""));
  }
  auto allocate = [&](int64_t bytes, std::byte** memory) -> Status {
    if (bytes == 0) return {};
    void* address = nullptr;
    Status status = device_.Allocate(bytes, &address);
    *memory = static_cast<std::byte*>(address);
    return explain(std::move(status));
  };
  // Three streams, so that copies of one slot overlap the kernels of another.
  for (Stream* stream : {&upload_, &compute_, &download_}) {
    auto created = device_.CreateStream();
    if (!created.ok()) return created.status();
    *stream = *created;
  }
  auto weights = weights_->Hold(compute_);
  if (!weights.ok()) return explain(weights.status());
  weight_memory_ = *weights;
  holds_weights_ = true;
  REFRACT_CUDA_RETURN_IF_ERROR(allocate(memory_.arena_bytes, &arena_));
  REFRACT_CUDA_RETURN_IF_ERROR(allocate(memory_.workspace_bytes, &workspace_));
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
    // Padding columns must be zero; memory of other processes stays unread.
    REFRACT_CUDA_RETURN_IF_ERROR(device_.Clear(
        slot->device, memory_.slot_bytes / options_.num_slots, compute_));
    slot->cleared_for = variants_[0]->serial;
  }
  // Cleared once, so that unused rows hold numbers in the first runs, too.
  if (memory_.arena_bytes > 0) {
    REFRACT_CUDA_RETURN_IF_ERROR(
        device_.Clear(arena_, memory_.arena_bytes, compute_));
  }
  return device_.Synchronize(compute_);
}

Status Instance::Name(const Status& status, const DeviceProgram& program,
                      const Op& op, int64_t batch) const {
  return Status(status.code(),
                "model " + program.name + ", operator " + op.name + ", batch " +
                    std::to_string(batch) + ": " + status.message());
}

Status Instance::CaptureAll() {
  Variant& first = *variants_[0];
  first.captured.resize(slots_.size());
  for (auto& slot : slots_) {
    auto& captured = first.captured[slot->index];
    captured.resize(first.buckets.size());
    for (size_t bucket = 0; bucket < first.buckets.size(); ++bucket) {
      const Place place = {first, bucket, *slot};
      // The first run of a kernel may load its code, which no capture allows.
      for (const Segment& segment : first.segments) {
        REFRACT_CUDA_RETURN_IF_ERROR(
            LaunchSegment(segment, place, first.buckets[bucket]));
      }
      REFRACT_CUDA_RETURN_IF_ERROR(device_.Synchronize(compute_));
      if (!options_.use_graphs) continue;
      REFRACT_CUDA_RETURN_IF_ERROR(
          CaptureSegments(place, captured[bucket].graphs));
    }
  }
  return {};
}

Status Instance::CaptureSegments(const Place& place,
                                 std::vector<Graph>& graphs) {
  for (const Segment& segment : place.variant.segments) {
    graphs.emplace_back();
    if (segment.foreign) continue;
    auto graph = Capture(segment, place);
    if (!graph.ok()) return graph.status();
    graphs.back() = *graph;
  }
  return {};
}

void Instance::Destroy(const std::vector<Graph>& graphs) {
  for (const Graph& graph : graphs) {
    if (graph.handle != nullptr) (void)device_.DestroyGraph(graph);
  }
}

Result<Graph> Instance::Capture(const Segment& segment, const Place& place) {
  REFRACT_CUDA_RETURN_IF_ERROR(device_.BeginCapture(compute_));
  Status launched =
      LaunchSegment(segment, place, place.variant.buckets[place.bucket]);
  // The capture ends after an error, too: a capturing stream is useless.
  auto graph = device_.EndCapture(compute_);
  if (launched.ok()) return graph;
  if (graph.ok()) (void)device_.DestroyGraph(*graph);
  return launched;
}

std::byte* Instance::Address(ValueId id, const Place& place) const {
  // Weights have one address for all buckets; inputs and outputs lie in the
  // slot; intermediates lie in the arena.
  const Variant& variant = place.variant;
  const Value& value = variant.program.value(id);
  const auto root = static_cast<size_t>(value.root);
  const MemoryPlan& plan = variant.plans[place.bucket];
  std::byte* base;
  if (plan.weight_offsets[root] >= 0) {
    base = variant.shared_weights[root] >= 0
               ? weight_memory_ + variant.shared_weights[root]
               : variant.own_memory + variant.own_offsets[root];
  } else if (plan.slot_offsets[root] >= 0) {
    base = place.slot.device + plan.slot_offsets[root];
  } else {
    base = arena_ + plan.arena_offsets[root];
  }
  return base + value.first_col * SizeOf(value.dtype);
}

LoweringContext Instance::ContextOf(const Place& place) const {
  auto* control = reinterpret_cast<Control*>(DeviceControl(place.slot));
  return {
      .program = place.variant.program,
      .batch = place.variant.buckets[place.bucket],
      .workspace = workspace_,
      .workspace_bytes = memory_.workspace_bytes,
      .device_batch = &control->batch,
      .faults = &control->faults,
  };
}

Call Instance::MakeCall(const Op& op, const Place& place) const {
  return Lower(op, ContextOf(place),
               [&](ValueId id) -> void* { return Address(id, place); });
}

Status Instance::LaunchSegment(const Segment& segment, const Place& place,
                               int64_t items) {
  // Kernels compute the bucket's rows; LibTorch sees the request's rows alone,
  // because its operators may mix them.
  const DeviceProgram& program = place.variant.program;
  for (size_t i = segment.begin; i < segment.end; ++i) {
    const Op& op = program.ops[i];
    const auto* foreign = std::get_if<ForeignOp>(&op.kind);
    const Status status =
        foreign == nullptr
            ? device_.Launch(MakeCall(op, place), compute_)
            : device_.Run(LowerForeign(*foreign, ContextOf(place), items,
                                       [&](ValueId id) -> void* {
                                         return Address(id, place);
                                       }),
                          compute_);
    if (!status.ok()) return Name(status, program, op, items);
  }
  return {};
}

void Instance::Unload() {
  // Errors are not reported: memory of a lost device is gone with it.
  for (Stream stream : {upload_, compute_, download_}) {
    if (stream.handle != nullptr) (void)device_.Synchronize(stream);
  }
  // CUDA graphs name the memory below, so they go first.
  for (auto& variant : variants_) {
    if (variant != nullptr) Discard(*variant);
  }
  variants_.resize(1);
  memory_.captured_bytes = 0;
  for (auto& slot : slots_) {
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
  if (holds_weights_) weights_->Drop();
  holds_weights_ = false;
  weight_memory_ = nullptr;
  for (std::byte** memory : {&arena_, &workspace_}) {
    if (*memory != nullptr) (void)device_.Free(*memory);
    *memory = nullptr;
  }
  state_ = State::kUnloaded;
  failure_ = Status();
}

}  // namespace refract::runtime::cuda
