// Added programs of an instance: the same model at other sizes.

#include <algorithm>
#include <utility>

#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/instance/instance.h"
#include "runtime/cuda/instance/instance_slot.h"

namespace refract::runtime::cuda {

int64_t Instance::FittingBatch(const DeviceProgram& program,
                               std::string* why) const {
  int64_t fitting = 0;
  std::vector<int64_t> inputs, outputs;
  // Memory grows with the bucket: the first that does not fit ends the search.
  for (int64_t bucket : Buckets(options_.max_variant_batch)) {
    // Sizes of more than 31 bits may appear only at larger buckets.
    const Status valid = Validate(program, bucket);
    if (!valid.ok()) {
      *why = valid.message();
      break;
    }
    const MemoryPlan plan = PlanMemory(program, bucket, bucket);
    const struct {
      const char* of;
      int64_t needed, reserved;
    } parts[] = {
        {"intermediates", plan.arena_bytes, memory_.arena_bytes},
        {"inputs and outputs", plan.slot_bytes, slot_device_bytes_},
        {"pinned inputs and outputs",
         PlacePinned(program, bucket, inputs, outputs), slot_host_bytes_},
    };
    const auto* const missing = std::find_if(
        std::begin(parts), std::end(parts),
        [](const auto& part) { return part.needed > part.reserved; });
    if (missing != std::end(parts)) {
      *why = "model " + program.name + " needs " +
             std::to_string(missing->needed) + " bytes for " + missing->of +
             " at batch " + std::to_string(bucket) + "; " +
             std::to_string(missing->reserved) + " are reserved";
      break;
    }
    fitting = bucket;
  }
  return fitting;
}

Status Instance::ShareWeights(std::vector<WeightData> weights,
                              Variant& variant) {
  const DeviceProgram& program = variant.program;
  if (weights.size() != program.weights.size()) {
    return InvalidArgument("model " + program.name + ": needs " +
                           std::to_string(program.weights.size()) +
                           " weights, got " + std::to_string(weights.size()));
  }
  variant.shared_weights.assign(program.values.size(), -1);
  variant.own_offsets.assign(program.values.size(), -1);
  // A program whose only values are the variant's own weights.
  DeviceProgram rest;
  rest.name = program.name;
  std::vector<ValueId> wanted;
  std::vector<WeightData> data;
  for (size_t i = 0; i < weights.size(); ++i) {
    const ValueId id = program.weights[i];
    const int64_t offset = weights_->OffsetOf(program.value(id), weights[i]);
    variant.shared_weights[static_cast<size_t>(id)] = offset;
    if (offset >= 0) continue;
    const auto own = static_cast<ValueId>(rest.values.size());
    rest.values.push_back(program.value(id));
    rest.values.back().root = own;
    rest.weights.push_back(own);
    wanted.push_back(id);
    data.push_back(weights[i]);
  }
  if (wanted.empty()) return {};
  const MemoryPlan plan = PlanMemory(rest, 1, 1);
  for (size_t i = 0; i < wanted.size(); ++i) {
    variant.own_offsets[static_cast<size_t>(wanted[i])] =
        plan.weight_offsets[i];
  }
  auto own = DeviceWeights::Create(device_, rest, std::move(data), {});
  if (!own.ok()) return own.status();
  // On the upload stream, so that executions are not waited for.
  auto memory = (*own)->Hold(upload_);
  if (!memory.ok()) {
    return Status(
        memory.status().code(),
        "model " + program.name + ": " + std::to_string((*own)->bytes()) +
            " bytes of weights for other sizes: " + memory.status().message());
  }
  variant.own_weights = *std::move(own);
  variant.own_memory = *memory;
  memory_.added_weight_bytes += variant.own_weights->bytes();
  return {};
}

Result<VariantId> Instance::AddVariant(DeviceProgram program,
                                       std::vector<WeightData> weights) {
  if (state_ == State::kFailed) return failure_;
  if (state_ == State::kUnloaded) {
    return Status(Code::kFailedPrecondition,
                  "model " + name() + " is not loaded");
  }
  // The lowest free id; 0 is the first program.
  size_t id = 1;
  while (id < variants_.size() && variants_[id] != nullptr) ++id;
  if (id > static_cast<size_t>(std::max(options_.max_variants, 0))) {
    return Status(Code::kResourceExhausted,
                  "model " + name() + " has " +
                      std::to_string(options_.max_variants) +
                      " programs of other sizes already");
  }
  std::string why;
  const int64_t max_batch = FittingBatch(program, &why);
  if (max_batch < 1) return Status(Code::kResourceExhausted, why);
  auto variant = std::make_unique<Variant>();
  variant->program = std::move(program);
  variant->segments = SegmentsOf(variant->program);
  PlanBuckets(max_batch, *variant);
  (void)PlacePinned(variant->program, max_batch, variant->host_inputs,
                    variant->host_outputs);
  Status shared = ShareWeights(std::move(weights), *variant);
  if (!shared.ok()) {
    // A model that does not fit leaves the instance unchanged; any other error
    // is the device's.
    const Code code = shared.code();
    return code == Code::kResourceExhausted || code == Code::kInvalidArgument
               ? shared
               : Fail(std::move(shared));
  }
  variant->serial = ++next_serial_;
  variant->captured.assign(
      slots_.size(), std::vector<Variant::Captured>(variant->buckets.size()));
  if (id == variants_.size()) variants_.emplace_back();
  variants_[id] = std::move(variant);
  return static_cast<VariantId>(id);
}

bool Instance::InUse(VariantId variant) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const auto& slot) {
    return slot->phase != Phase::kFree && slot->variant == variant;
  });
}

int64_t Instance::MaxBatch(VariantId variant) const {
  const Variant* const found = Find(variant);
  return found == nullptr ? 0 : found->buckets.back();
}

Status Instance::DropVariant(VariantId variant) {
  Variant* const found = Find(variant);
  if (found == nullptr || variant == kFirstProgram || InUse(variant)) {
    return Status(
        Code::kFailedPrecondition,
        "model " + name() + ": program " + std::to_string(variant) +
            " cannot be dropped: it is unknown, in use or the first one");
  }
  Discard(*found);
  variants_[static_cast<size_t>(variant)].reset();
  return {};
}

// Call while no execution of `variant` is under way.
void Instance::Discard(Variant& variant) {
  for (const auto& buckets : variant.captured) {
    for (const Variant::Captured& captured : buckets) Destroy(captured.graphs);
  }
  variant.captured.clear();
  if (variant.own_weights != nullptr) {
    memory_.added_weight_bytes -= variant.own_weights->bytes();
    variant.own_weights->Drop();
  }
  variant.own_weights.reset();
}

}  // namespace refract::runtime::cuda
