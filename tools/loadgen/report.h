#ifndef REFRACT_TOOLS_LOADGEN_REPORT_H_
#define REFRACT_TOOLS_LOADGEN_REPORT_H_

// The results of a run as the numbers that are shown. Pure.

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/loadgen/open_loop.h"

namespace refract::loadgen {

// Exact order statistics (nearest rank) of a set of durations; all zero when it
// is empty.
struct Distribution {
  absl::Duration mean, p50, p90, p95, p99, p999, max;
};
Distribution Describe(std::vector<absl::Duration> values);

struct Measurement {
  // Queries that were due after the warm-up; only these count below.
  int64_t queries = 0;
  int64_t dropped = 0;  // of these, never sent: too many were in flight
  int64_t succeeded = 0;
  int64_t items = 0;        // of queries that succeeded
  absl::Duration window;    // from the end of the warm-up to the end of the
                            // schedule, or to the last answer if that is later
  double offered_qps = 0;   // queries ÷ scheduled time
  double achieved_qps = 0;  // succeeded ÷ window
  double items_per_s = 0;   // items ÷ window
  Distribution latency;     // of queries that succeeded
  Distribution lateness;    // of all
  std::map<absl::StatusCode, int64_t> errors;  // of queries that were sent
  // With an SLO: queries that succeeded in time, their share of all queries,
  // and their number per second of window.
  std::optional<absl::Duration> slo;
  int64_t within_slo = 0;
  double goodput_qps = 0;

  double within_slo_share() const {
    return queries == 0 ? 0 : static_cast<double>(within_slo) / queries;
  }
  // p99 ≤ SLO, where a query without an answer is infinitely late.
  bool MeetsSlo() const { return queries > 0 && within_slo_share() >= 0.99; }
  bool NoneFailed() const { return succeeded == queries; }
};

// `schedule` and `results` go together; the schedule spans `warmup` +
// `duration`.
Measurement Measure(absl::Span<const PlannedQuery> schedule,
                    absl::Span<const QueryResult> results,
                    absl::Duration warmup, absl::Duration duration,
                    std::optional<absl::Duration> slo);

// Whether the client's own lateness spoils its latencies: p99 over 1 ms and
// over a tenth of the median latency.
bool ClientWasLate(const Measurement& measurement);

// Text for a terminal.
void Print(const Measurement& measurement, std::ostream& out);

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_REPORT_H_
