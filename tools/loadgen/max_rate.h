#ifndef REFRACT_TOOLS_LOADGEN_MAX_RATE_H_
#define REFRACT_TOOLS_LOADGEN_MAX_RATE_H_

#include <functional>
#include <optional>

#include "absl/status/statusor.h"

namespace refract::loadgen {

// The highest rate that passes, found by doubling from `start` > 0 (halving,
// when `start` itself fails) and then bisecting until the bracket's ends are
// within 5 %, as MLPerf LoadGen's FindPeakPerformance does. Assumes that a
// service that passes a rate passes every lower rate.
//
// Returns the highest rate that was seen to pass; nullopt when not even
// start / 1024 does. FailedPrecondition when start × 1024 passes still: the
// start was no guess. Errors of `passes` end the search.
absl::StatusOr<std::optional<double>> FindMaxRate(
    double start,
    const std::function<absl::StatusOr<bool>(double rate)>& passes);

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_MAX_RATE_H_
