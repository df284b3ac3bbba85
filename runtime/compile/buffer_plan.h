#ifndef REFRACT_RUNTIME_COMPILE_BUFFER_PLAN_H_
#define REFRACT_RUNTIME_COMPILE_BUFFER_PLAN_H_

// Assignment of intermediate values to shared buffers.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace refract::runtime {

// A value needs memory from the step that computes it to the last step that
// reads it, both included.
struct Lifetime {
  int first_step = 0;
  int last_step = 0;
  // Size in a typical request, 0 if unknown. Only decides which values share a
  // buffer.
  int64_t nominal_bytes = 0;
};

struct BufferPlan {
  std::vector<int> buffer_of;  // per lifetime
  int num_buffers = 0;
};

// Best fit in order of first_step: a value takes the smallest free buffer that
// is large enough, else the largest free buffer (which grows), else a new one.
// Lifetimes that share a step never share a buffer. `lifetimes` ascend by
// first_step.
BufferPlan PlanBuffers(absl::Span<const Lifetime> lifetimes);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_BUFFER_PLAN_H_
