#ifndef REFRACT_RUNTIME_CUDA_INSTANCE_INSTANCE_SLOT_H_
#define REFRACT_RUNTIME_CUDA_INSTANCE_INSTANCE_SLOT_H_

// A slot and a variant of an instance. Internal to instance.cc (loading),
// instance_variants.cc (programs of other sizes) and instance_requests.cc
// (serving).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/cuda/instance/instance.h"

namespace refract::runtime::cuda {

// Numbers exchanged between host and device with each request.
struct Control {
  int32_t batch = 0;
  int32_t faults = 0;
};

inline int64_t DenseRowBytes(const Value& value) {
  return value.cols * SizeOf(value.host_dtype);
}

// A program with its addresses.
struct Instance::Variant {
  DeviceProgram program;
  std::vector<Segment> segments;
  std::vector<int64_t> buckets;
  std::vector<MemoryPlan> plans;  // per bucket
  // Offsets in a slot's pinned memory; those of staged inputs depend on the
  // batch (Slot::host_inputs).
  std::vector<int64_t> host_inputs, host_outputs;
  std::vector<size_t> staged;  // StagedInputs()
  // Per value, offset in the weights of the instance; -1: not among them.
  std::vector<int64_t> shared_weights;
  // Weights that only this program has, if any; and their offsets per value.
  std::shared_ptr<DeviceWeights> own_weights;
  std::vector<int64_t> own_offsets;
  std::byte* own_memory = nullptr;
  // Unlike an id, a serial is never used again.
  uint64_t serial = 0;

  // The CUDA graphs of a bucket in a slot: one per segment, null for a foreign
  // operator.
  struct Captured {
    int runs = 0;
    std::vector<Graph> graphs;
  };
  std::vector<std::vector<Captured>> captured;  // per slot and bucket
};

// Memory of the slot on the host: staged inputs, other inputs, outputs, the
// control block, all with dense rows. On the device: roots of inputs and
// outputs, staged inputs as they lie on the host, the control block.
struct Instance::Slot {
  size_t index = 0;
  Phase phase = Phase::kFree;
  int64_t batch = 0;
  size_t bucket = 0;
  VariantId variant = kFirstProgram;
  // Serial of the program for whose layout the device memory was cleared.
  uint64_t cleared_for = 0;
  // Elements of counted inputs.
  std::vector<int64_t> counts;
  // Offsets of the inputs in `host`, and the bytes of all staged inputs.
  std::vector<int64_t> host_inputs;
  int64_t staged_bytes = 0;
  Status refused;  // the error of a foreign operator about this request

  std::byte* device = nullptr;
  std::byte* host = nullptr;

  Event uploaded, computed, downloaded;
};

inline Instance::Variant* Instance::Find(VariantId variant) const {
  return variant >= 0 && static_cast<size_t>(variant) < variants_.size()
             ? variants_[static_cast<size_t>(variant)].get()
             : nullptr;
}

inline const std::string& Instance::name() const {
  return variants_[0]->program.name;
}

inline Instance::Place Instance::PlaceOf(Slot& slot) const {
  return {*variants_[static_cast<size_t>(slot.variant)], slot.bucket, slot};
}

inline std::byte* Instance::DeviceControl(const Slot& slot) const {
  return slot.device + slot_device_bytes_;
}

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_INSTANCE_INSTANCE_SLOT_H_
