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

// The line with neither part negative whose relative errors have the least sum
// of squares: what takes a microsecond at batch 1 counts as much as what takes
// a millisecond at batch 256. Times below 1 ns count as 1 ns in that. With one
// batch size all of it is fixed.
Line FitLine(absl::Span<const BatchTime> times);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_LINE_FIT_H_
