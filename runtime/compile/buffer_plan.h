#ifndef REFRACT_RUNTIME_COMPILE_BUFFER_PLAN_H_
#define REFRACT_RUNTIME_COMPILE_BUFFER_PLAN_H_

// Which intermediate values may share memory.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace refract::runtime {

// A value that needs memory from the step that makes it to the last step that
// reads it, both included.
struct Lifetime {
  int first_step = 0;
  int last_step = 0;
  // Size at a typical request, 0 if unknown: only decides what shares with
  // what.
  int64_t nominal_bytes = 0;
};

struct BufferPlan {
  std::vector<int> buffer_of;  // per lifetime
  int num_buffers = 0;
};

// Best fit in order of first_step: a value takes the free buffer that wastes
// least, else the largest free one (it will grow), else a new one. Lifetimes
// that share a step never share a buffer. `lifetimes` ascend by first_step.
BufferPlan PlanBuffers(absl::Span<const Lifetime> lifetimes);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_BUFFER_PLAN_H_
