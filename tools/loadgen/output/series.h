#ifndef REFRACT_TOOLS_LOADGEN_OUTPUT_SERIES_H_
#define REFRACT_TOOLS_LOADGEN_OUTPUT_SERIES_H_

// The results of a run as points of charts and as a table of queries. Pure.

#include <cstdint>
#include <ostream>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/loadgen/open_loop.h"

namespace refract::loadgen {

struct PercentilePoint {
  double fraction = 0;  // 0 to 1
  absl::Duration latency;
};
// The latencies of the queries that were due after the warm-up and succeeded,
// at fractions that halve the rest four times for each step of two: up to the
// last that one query reaches, and 1. Empty without such queries.
std::vector<PercentilePoint> PercentileCurve(
    absl::Span<const PlannedQuery> schedule,
    absl::Span<const QueryResult> results, absl::Duration warmup);

// Queries that were due in one stretch of time.
struct TimelinePoint {
  absl::Duration at;  // begin, after the warm-up
  int64_t queries = 0;
  int64_t succeeded = 0;
  absl::Duration p50, p99, max;  // of queries that succeeded
};
// Of equal stretches that cover `duration`: 120 at most, each of 100 ms or
// more.
absl::Duration TimelineWidth(absl::Duration duration);
// Stretches of `width` > 0 that cover the schedule after the warm-up.
std::vector<TimelinePoint> Timeline(absl::Span<const PlannedQuery> schedule,
                                    absl::Span<const QueryResult> results,
                                    absl::Duration warmup,
                                    absl::Duration duration,
                                    absl::Duration width);

// A line per query after the warm-up, times after it:
// due_s,items,sent_late_ms,latency_ms,outcome. The outcome is OK, a status code
// or DROPPED. A dropped query has no latency.
void WriteQueriesCsv(absl::Span<const PlannedQuery> schedule,
                     absl::Span<const QueryResult> results,
                     absl::Duration warmup, std::ostream& out);

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_OUTPUT_SERIES_H_
