#include "runtime/cuda/instance/instance.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/instance/instance_slot.h"
#include "runtime/cuda/program/lowering.h"

namespace refract::runtime::cuda {

const char* Name(EarlyStarts starts) {
  switch (starts) {
    case EarlyStarts::kNever:
      return "never";
    case EarlyStarts::kWhereFaster:
      return "faster";
    case EarlyStarts::kAlways:
      return "always";
  }
  return "unknown";
}

Result<std::unique_ptr<Instance>> Instance::Create(
    DeviceApi& device, Program program, std::vector<WeightData> weights,
    const InstanceOptions& options) {
  REFRACT_CUDA_RETURN_IF_ERROR(Validate(program, options.max_batch));
  auto on_device =
      DeviceWeights::Create(device, program, std::move(weights),
                            {.keep_pinned = options.keep_pinned_weights});
  if (!on_device.ok()) return on_device.status();
  return Create(device, std::move(program), *std::move(on_device), options);
}

Result<std::unique_ptr<Instance>> Instance::Create(
    DeviceApi& device, Program program, std::shared_ptr<DeviceWeights> weights,
    const InstanceOptions& options) {
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

Instance::Instance(DeviceApi& device, Program program,
                   std::shared_ptr<DeviceWeights> weights,
                   const InstanceOptions& options)
    : device_(device),
      weights_(std::move(weights)),
      options_(options),
      use_graphs_(options.use_graphs && device.can_capture()) {
  variants_.push_back(std::make_unique<Variant>());
  Variant& first = *variants_[0];
  first.program = std::move(program);
  first.segments = SegmentsOf(first.program);
  PlanBuckets(options_.max_batch, first);
  first.shared_weights = first.plans[0].weight_offsets;
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
  }
}

std::vector<Instance::Segment> Instance::SegmentsOf(const Program& program) {
  std::vector<Segment> segments;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const bool foreign = std::holds_alternative<ForeignOp>(program.ops[i].kind);
    if (foreign || segments.empty() || segments.back().foreign) {
      segments.push_back({i, i, foreign});
    }
    segments.back().end = i + 1;
  }
  return segments;
}

void Instance::PlanBuckets(int64_t max_batch, Variant& variant) {
  variant.buckets = Buckets(max_batch);
  for (int64_t bucket : variant.buckets) {
    variant.plans.push_back(PlanMemory(variant.program, bucket, max_batch));
  }
}

int64_t Instance::PlacePinned(const Program& program, int64_t max_batch,
                              std::vector<int64_t>& inputs,
                              std::vector<int64_t>& outputs) {
  int64_t bytes = 0;
  const auto place = [&](ValueId id) {
    const Value& value = program.value(id);
    const int64_t offset = bytes;
    bytes += RoundUp(value.rows.At(max_batch) * DenseRowBytes(value),
                     kAllocationAlignBytes);
    return offset;
  };
  inputs.clear();
  outputs.clear();
  for (ValueId id : program.inputs) inputs.push_back(place(id));
  for (ValueId id : program.outputs) outputs.push_back(place(id));
  return bytes;
}

Instance::~Instance() { Unload(); }

const Program& Instance::program() const { return variants_[0]->program; }
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
  REFRACT_CUDA_RETURN_IF_ERROR(PrepareAll());
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
  // None that another instance holds already.
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
    // Padding columns must be zero, and nothing of another process may be read.
    REFRACT_CUDA_RETURN_IF_ERROR(device_.Clear(
        slot->device, memory_.slot_bytes / options_.num_slots, compute_));
    slot->cleared_for = variants_[0]->serial;
  }
  // Once, so that the first runs compute on numbers.
  if (memory_.arena_bytes > 0) {
    REFRACT_CUDA_RETURN_IF_ERROR(
        device_.Clear(arena_, memory_.arena_bytes, compute_));
  }
  return device_.Synchronize(compute_);
}

Status Instance::Name(const Status& status, const Program& program,
                      const Op& op, int64_t batch) const {
  return Status(status.code(),
                "model " + program.name + ", operator " + op.name + ", batch " +
                    std::to_string(batch) + ": " + status.message());
}

Status Instance::PrepareProducts(const Segment& segment, const Place& place,
                                 DeviceApi::Choice choice) {
  const Program& program = place.variant.program;
  for (size_t i = segment.begin; i < segment.end && !segment.foreign; ++i) {
    const Op& op = program.ops[i];
    if (!std::holds_alternative<LinearOp>(op.kind)) continue;
    const Call call = MakeCall(op, place);
    Status status = device_.Prepare(std::get<GemmCall>(call).shape,
                                    memory_.workspace_bytes, choice);
    if (!status.ok()) {
      return Name(status, program, op, place.variant.buckets[place.bucket]);
    }
  }
  return {};
}

Status Instance::PrepareAll() {
  Variant& first = *variants_[0];
  for (size_t bucket = 0; bucket < first.buckets.size(); ++bucket) {
    for (const Segment& segment : first.segments) {
      REFRACT_CUDA_RETURN_IF_ERROR(PrepareProducts(
          segment, {first, bucket, *slots_[0]}, DeviceApi::Choice::kMeasured));
    }
  }
  return {};
}

Status Instance::CaptureAll() {
  Variant& first = *variants_[0];
  first.captured.resize(slots_.size());
  first.starts.resize(first.buckets.size(), Variant::Starts::kUnknown);
  // The first run of a kernel may load its code, which no capture allows.
  for (auto& slot : slots_) {
    auto& captured = first.captured[slot->index];
    captured.resize(first.buckets.size());
    for (size_t bucket = 0; bucket < first.buckets.size(); ++bucket) {
      const Place place = {first, bucket, *slot};
      const bool early = early_starts() == EarlyStarts::kAlways;
      for (const Segment& segment : first.segments) {
        REFRACT_CUDA_RETURN_IF_ERROR(
            LaunchSegment(segment, place, first.buckets[bucket], early));
      }
      REFRACT_CUDA_RETURN_IF_ERROR(device_.Synchronize(compute_));
      if (!use_graphs_) {
        first.starts[bucket] =
            early ? Variant::Starts::kEarly : Variant::Starts::kAfter;
        continue;
      }
      REFRACT_CUDA_RETURN_IF_ERROR(
          CaptureFaster(place, captured[bucket].graphs));
    }
  }
  return {};
}

EarlyStarts Instance::early_starts() const {
  const EarlyStarts device = device_.early_starts();
  return options_.early_starts == EarlyStarts::kWhereFaster ||
                 device == EarlyStarts::kNever
             ? device
             : options_.early_starts;
}

bool Instance::starts_early(size_t bucket) const {
  const auto& starts = variants_[0]->starts;
  return bucket < starts.size() && starts[bucket] == Variant::Starts::kEarly;
}

bool Instance::HasEarlyStarts(const Place& place) const {
  const Program& program = place.variant.program;
  for (const Segment& segment : place.variant.segments) {
    if (segment.foreign) continue;
    Call before = MakeCall(program.ops[segment.begin], place);
    for (size_t i = segment.begin + 1; i < segment.end; ++i) {
      const Call call = MakeCall(program.ops[i], place);
      if (device_.CanStartEarly(before, call)) return true;
      before = call;
    }
  }
  return false;
}

Status Instance::CaptureFaster(const Place& place, std::vector<Graph>& graphs) {
  using Starts = Variant::Starts;
  Starts& starts = place.variant.starts[place.bucket];
  const EarlyStarts wanted = early_starts();
  if (starts == Starts::kUnknown &&
      (wanted == EarlyStarts::kNever || !HasEarlyStarts(place))) {
    starts = Starts::kAfter;
  }
  if (starts != Starts::kAfter && wanted == EarlyStarts::kAlways) {
    starts = Starts::kEarly;
    return CaptureSegments(place, true, graphs);
  }
  // From here on: what a device refuses, short of being lost, is not used. The
  // plain form is there.
  if (starts == Starts::kEarly) {
    Status status = CaptureSegments(place, true, graphs);
    if (status.ok() || status.code() == Code::kUnavailable) return status;
    Destroy(graphs);
    graphs.clear();
    starts = Starts::kAfter;
  }
  REFRACT_CUDA_RETURN_IF_ERROR(CaptureSegments(place, false, graphs));
  if (starts == Starts::kAfter) return {};

  std::vector<Graph> early;
  Result<bool> faster = false;
  Status status = CaptureSegments(place, true, early);
  if (status.ok()) {
    faster = device_.AreFaster(early, graphs, compute_);
    status = faster.status();
  }
  starts = status.ok() && *faster ? Starts::kEarly : Starts::kAfter;
  if (starts == Starts::kEarly) graphs.swap(early);
  Destroy(early);
  return status.code() == Code::kUnavailable ? status : Status();
}

Status Instance::CaptureSegments(const Place& place, bool early,
                                 std::vector<Graph>& graphs) {
  for (const Segment& segment : place.variant.segments) {
    graphs.emplace_back();
    if (segment.foreign) continue;
    auto graph = Capture(segment, place, early);
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

Result<Graph> Instance::Capture(const Segment& segment, const Place& place,
                                bool early) {
  REFRACT_CUDA_RETURN_IF_ERROR(device_.BeginCapture(compute_));
  Status launched =
      LaunchSegment(segment, place, place.variant.buckets[place.bucket], early);
  // Always: a stream that keeps capturing is of no use to anybody.
  auto graph = device_.EndCapture(compute_);
  if (launched.ok()) return graph;
  if (graph.ok()) (void)device_.DestroyGraph(*graph);
  return launched;
}

std::byte* Instance::Address(ValueId id, const Place& place) const {
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
                               int64_t items, bool early) {
  const Program& program = place.variant.program;
  // What was given to the stream last, if it is of this segment.
  std::optional<Call> before;
  for (size_t i = segment.begin; i < segment.end; ++i) {
    const Op& op = program.ops[i];
    Status status;
    if (const auto* foreign = std::get_if<ForeignOp>(&op.kind)) {
      before.reset();
      status = device_.Run(
          LowerForeign(*foreign, ContextOf(place), items,
                       [&](ValueId id) -> void* { return Address(id, place); }),
          compute_);
    } else {
      const Call call = MakeCall(op, place);
      const bool starts_early =
          early && before.has_value() && device_.CanStartEarly(*before, call);
      status = device_.Launch(call, compute_,
                              starts_early ? Start::kEarly : Start::kAfter);
      before = call;
    }
    if (!status.ok()) return Name(status, program, op, items);
  }
  return {};
}

void Instance::Unload() {
  // Errors have no reader here: memory of a lost device is gone with it.
  for (Stream stream : {upload_, compute_, download_}) {
    if (stream.handle != nullptr) (void)device_.Synchronize(stream);
  }
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
