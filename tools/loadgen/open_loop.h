#ifndef REFRACT_TOOLS_LOADGEN_OPEN_LOOP_H_
#define REFRACT_TOOLS_LOADGEN_OPEN_LOOP_H_

// Sends queries at scheduled times, without waiting for answers to earlier
// queries, and counts latency from the scheduled time: a server that stalls is
// charged for every query that was due meanwhile (no coordinated omission).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"

namespace refract::loadgen {

struct PlannedQuery {
  absl::Duration at;  // after the start of the run
  int64_t items = 0;
  size_t request = 0;  // which of the prepared requests
};

struct QueryResult {
  // Never sent, because too many queries were unanswered; `code` is then
  // kResourceExhausted, which a server may answer as well.
  bool dropped = false;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  absl::Duration latency;   // scheduled time → answer
  absl::Duration lateness;  // scheduled time → handed to the system
};

// Where the system under test reports. Thread-safe.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  // Once per Issue(), from any thread, also from within Issue().
  virtual void Done(size_t query, absl::StatusCode code) = 0;
};

// The system under test.
class SystemUnderTest {
 public:
  virtual ~SystemUnderTest() = default;
  // Begins a query and returns without waiting for its answer. The system
  // gives up by itself at `deadline` (of the run's clock). Called by one
  // thread; `sink` outlives the answer.
  virtual void Issue(size_t query, size_t request, absl::Time deadline,
                     CompletionSink& sink) = 0;
};

struct OpenLoopOptions {
  // From the scheduled time.
  absl::Duration timeout = absl::Seconds(10);
  // Most unanswered queries. Further queries are dropped, which counts against
  // the server: its backlog must fit in the client's memory.
  int64_t max_in_flight = 10'000;
  // Time at which the schedule begins; a time that has passed: in a moment.
  absl::Time start = absl::InfinitePast();
};

// Runs one schedule. Use once.
class OpenLoopRun : private CompletionSink {
 public:
  // `schedule` ascends in time and must outlive the run.
  OpenLoopRun(base::Clock& clock, absl::Span<const PlannedQuery> schedule,
              const OpenLoopOptions& options);

  // Sends everything, waits for all answers, returns one result per query.
  std::vector<QueryResult> Run(SystemUnderTest& system);
  // Of the schedule, by the run's clock; after Run().
  absl::Time start() const { return start_; }

 private:
  void Done(size_t query, absl::StatusCode code) override;
  void WaitUntil(absl::Time time);

  base::Clock& clock_;
  absl::Span<const PlannedQuery> schedule_;
  OpenLoopOptions options_;
  absl::Time start_;
  // Each element is written by the thread that answers its query, and read
  // when all have been answered.
  std::vector<QueryResult> results_;
  std::atomic<int64_t> in_flight_ = 0;
  std::atomic<size_t> answered_ = 0;
  absl::Notification all_answered_;
  absl::Mutex mu_;  // for waiting
};

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_OPEN_LOOP_H_
