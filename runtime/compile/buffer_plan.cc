// Greedy best fit. The number of buffers equals the largest number of values
// alive at once, because a free buffer is always used before a new one.

#include "runtime/compile/buffer_plan.h"

#include <algorithm>

namespace refract::runtime {

BufferPlan PlanBuffers(absl::Span<const Lifetime> lifetimes) {
  struct Buffer {
    int64_t nominal_bytes;
    int busy_until;  // last step
  };
  std::vector<Buffer> buffers;
  BufferPlan plan;
  for (const Lifetime& lifetime : lifetimes) {
    int best = -1;
    for (size_t i = 0; i < buffers.size(); ++i) {
      // `>=`: a buffer that the step itself reads is still busy, because a
      // kernel may write its result before it has read all operands.
      if (buffers[i].busy_until >= lifetime.first_step) continue;
      if (best < 0) {
        best = static_cast<int>(i);
        continue;
      }
      const bool fits = buffers[i].nominal_bytes >= lifetime.nominal_bytes;
      const bool best_fits =
          buffers[best].nominal_bytes >= lifetime.nominal_bytes;
      const bool smaller =
          buffers[i].nominal_bytes < buffers[best].nominal_bytes;
      // Prefer the smallest buffer that fits; if none fits, the largest.
      if (fits ? (!best_fits || smaller) : (!best_fits && !smaller)) {
        best = static_cast<int>(i);
      }
    }
    if (best < 0) {
      best = static_cast<int>(buffers.size());
      buffers.push_back({});
    }
    buffers[best].nominal_bytes =
        std::max(buffers[best].nominal_bytes, lifetime.nominal_bytes);
    buffers[best].busy_until = lifetime.last_step;
    plan.buffer_of.push_back(best);
  }
  plan.num_buffers = static_cast<int>(buffers.size());
  return plan;
}

}  // namespace refract::runtime
