#include "runtime/cuda/instance.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "runtime/cuda/index_math.h"
#include "runtime/cuda/instance_slot.h"
#include "runtime/cuda/lowering.h"

namespace refract::runtime::cuda {

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
      program_(std::move(program)),
      weights_(std::move(weights)),
      options_(options),
      buckets_(Buckets(options.max_batch)) {
  for (size_t i = 0; i < program_.ops.size(); ++i) {
    const bool foreign =
        std::holds_alternative<ForeignOp>(program_.ops[i].kind);
    if (foreign || segments_.empty() || segments_.back().foreign) {
      segments_.push_back({i, i, foreign});
    }
    segments_.back().end = i + 1;
  }
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

Instance::~Instance() { Unload(); }

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
  REFRACT_CUDA_RETURN_IF_ERROR(PrepareProducts());
  return CaptureAll();
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
        "model " + program_.name + " needs " + std::to_string(bytes) +
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
  }
  // Once, so that the first runs compute on numbers.
  if (memory_.arena_bytes > 0) {
    REFRACT_CUDA_RETURN_IF_ERROR(
        device_.Clear(arena_, memory_.arena_bytes, compute_));
  }
  return device_.Synchronize(compute_);
}

Status Instance::PrepareProducts() {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const Op& op : program_.ops) {
      if (std::holds_alternative<ForeignOp>(op.kind)) continue;
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
      for (const Segment& segment : segments_) {
        REFRACT_CUDA_RETURN_IF_ERROR(
            LaunchSegment(segment, bucket, *slot, buckets_[bucket]));
      }
      REFRACT_CUDA_RETURN_IF_ERROR(device_.Synchronize(compute_));
      if (!options_.use_graphs) continue;
      slot->graphs.emplace_back();
      for (const Segment& segment : segments_) {
        slot->graphs.back().emplace_back();
        if (segment.foreign) continue;
        auto graph = Capture(segment, bucket, *slot);
        if (!graph.ok()) return graph.status();
        slot->graphs.back().back() = *graph;
      }
    }
  }
  return {};
}

Result<Graph> Instance::Capture(const Segment& segment, size_t bucket,
                                Slot& slot) {
  REFRACT_CUDA_RETURN_IF_ERROR(device_.BeginCapture(compute_));
  Status launched = LaunchSegment(segment, bucket, slot, buckets_[bucket]);
  // Always: a stream that keeps capturing is of no use to anybody.
  auto graph = device_.EndCapture(compute_);
  if (launched.ok()) return graph;
  if (graph.ok()) (void)device_.DestroyGraph(*graph);
  return launched;
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

LoweringContext Instance::ContextOf(size_t bucket, const Slot& slot) const {
  auto* control =
      reinterpret_cast<Control*>(slot.device + plans_[0].slot_bytes);
  return {
      .program = program_,
      .batch = buckets_[bucket],
      .workspace = workspace_,
      .workspace_bytes = memory_.workspace_bytes,
      .device_batch = &control->batch,
      .faults = &control->faults,
  };
}

Call Instance::MakeCall(const Op& op, size_t bucket, Slot& slot) const {
  return Lower(op, ContextOf(bucket, slot),
               [&](ValueId id) -> void* { return Address(id, bucket, slot); });
}

Status Instance::LaunchSegment(const Segment& segment, size_t bucket,
                               Slot& slot, int64_t items) {
  for (size_t i = segment.begin; i < segment.end; ++i) {
    const Op& op = program_.ops[i];
    const auto* foreign = std::get_if<ForeignOp>(&op.kind);
    Status status =
        foreign == nullptr
            ? device_.Launch(MakeCall(op, bucket, slot), compute_)
            : device_.Run(LowerForeign(*foreign, ContextOf(bucket, slot), items,
                                       [&](ValueId id) -> void* {
                                         return Address(id, bucket, slot);
                                       }),
                          compute_);
    if (!status.ok()) {
      return Status(status.code(), "model " + program_.name + ", operator " +
                                       op.name + ", batch " +
                                       std::to_string(items) + ": " +
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
    for (const std::vector<Graph>& graphs : slot->graphs) {
      for (Graph graph : graphs) {
        if (graph.handle != nullptr) (void)device_.DestroyGraph(graph);
      }
    }
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
