#ifndef REFRACT_PARTITIONER_PROFILE_LINE_FIT_H_
#define REFRACT_PARTITIONER_PROFILE_LINE_FIT_H_

// Times against the batch size: from repeated measurements to a line.

#include <cstdint>

#include "absl/types/span.h"

namespace refract::partitioner {

// fixed_s + item_s · batch.
struct Line {
  double fixed_s = 0;
  double item_s = 0;
  double At(double batch) const { return fixed_s + item_s * batch; }
};

struct BatchTime {
  int64_t batch = 1;
  double seconds = 0;
};

// The line with non-negative parts and the least sum of squared relative
// errors: a microsecond at batch 1 weighs as much as a millisecond at batch
// 256. Times below 1 ns count as 1 ns. With one batch size the whole time is
// fixed.
Line FitLine(absl::Span<const BatchTime> times);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_LINE_FIT_H_
