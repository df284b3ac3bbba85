#ifndef REFRACT_SCHEDULING_BATCH_POLICY_H_
#define REFRACT_SCHEDULING_BATCH_POLICY_H_

// Chooses which waiting requests of a model share an execution, and whether it
// pays to wait for more. Pure; the scheduler asks each time that an instance
// could begin.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "scheduling/execution_times.h"

namespace refract::scheduling {

struct BatchingOptions {
  // False: every request is executed alone.
  bool enabled = false;
  // Longest time that a request waits for others while an instance is free.
  // Zero: requests are merged only with waiting requests.
  absl::Duration window;
  // Most rows of an execution.
  int64_t max_rows = std::numeric_limits<int64_t>::max();
  // Batch sizes that are executed at once when requests add up to exactly that
  // size; rows, ascending. May be empty.
  std::vector<int64_t> preferred_rows;
};

// A waiting request that may be merged with the first one.
struct BatchCandidate {
  int64_t rows = 1;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time arrival;
};

// Statistics of a model's arriving requests.
struct ArrivalRate {
  absl::Duration gap = absl::InfiniteDuration();  // mean, between two requests
  double rows = 1;                                // mean, of a request
  absl::Time last = absl::InfinitePast();

  // Call when a request came.
  void Count(int64_t request_rows, absl::Time now);
};

struct BatchDecision {
  // Indexes into the candidates, ascending; the first is always 0.
  std::vector<size_t> members;
  // In the past or now: execute the members. Otherwise decide again at that
  // time, or when another request has come.
  absl::Time wait_until = absl::InfinitePast();
};

// `candidates`: at least one, in the order of execution. The result is made in
// the memory of `decision`, whose contents are lost.
//
// Merging: a candidate becomes a member while the rows allow it, every member
// would still meet its deadline by the 90th percentile of the larger execution,
// and the larger execution typically takes less than two executions.
//
// Waiting: never longer than the window, counted from the oldest member's
// arrival, nor than the tightest deadline of the members allows with one more
// request merged. And only while the device time that merging the next request
// saves is more than the device is expected to stand idle for it: the mean gap
// between requests, or the time since the last request if that is more.
BatchDecision DecideBatch(absl::Span<const BatchCandidate> candidates,
                          const BatchingOptions& options,
                          const ExecutionTimes& times,
                          const ArrivalRate& arrivals, absl::Time now,
                          BatchDecision decision = {});

}  // namespace refract::scheduling

#endif  // REFRACT_SCHEDULING_BATCH_POLICY_H_
