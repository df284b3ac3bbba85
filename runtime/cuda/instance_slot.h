#ifndef REFRACT_RUNTIME_CUDA_INSTANCE_SLOT_H_
#define REFRACT_RUNTIME_CUDA_INSTANCE_SLOT_H_

// What instance.cc, which loads, and instance_requests.cc, which serves, know
// of a slot. Internal to the two.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/cuda/instance.h"

namespace refract::runtime::cuda {

// Numbers that pass between host and device with each request.
struct Control {
  int32_t batch = 0;
  int32_t faults = 0;
};

inline int64_t DenseRowBytes(const Value& value) {
  return value.cols * SizeOf(value.dtype);
}

// Memory of the slot on the host and on the device, laid out alike:
// roots of inputs and outputs, then the control block. Host rows are dense.
struct Instance::Slot {
  Phase phase = Phase::kFree;
  int64_t batch = 0;
  size_t bucket = 0;
  Status refused;  // by an operator of somebody else's

  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::vector<int64_t> host_inputs, host_outputs;  // offsets
  int64_t host_control = 0;

  Event uploaded, computed, downloaded;
  // Per bucket and segment; none for a segment that cannot be captured.
  std::vector<std::vector<Graph>> graphs;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_INSTANCE_SLOT_H_
