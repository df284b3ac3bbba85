#include "tools/loadgen/open_loop.h"

#include <algorithm>
#include <utility>

namespace refract::loadgen {
namespace {

// Time to get from here to the first query without being late for it.
constexpr absl::Duration kLeadIn = absl::Milliseconds(10);

}  // namespace

OpenLoopRun::OpenLoopRun(base::Clock& clock,
                         absl::Span<const PlannedQuery> schedule,
                         const OpenLoopOptions& options)
    : clock_(clock),
      schedule_(schedule),
      options_(options),
      results_(schedule.size()) {}

void OpenLoopRun::WaitUntil(absl::Time time) {
  if (clock_.Now() >= time) return;
  absl::MutexLock lock(&mu_);
  bool never = false;
  // AwaitWithDeadline() may return early; virtual clocks of tests move in
  // steps.
  while (clock_.Now() < time) {
    clock_.AwaitWithDeadline(mu_, absl::Condition(&never), time);
  }
}

std::vector<QueryResult> OpenLoopRun::Run(SystemUnderTest& system) {
  start_ = std::max(options_.start, clock_.Now() + kLeadIn);
  for (size_t i = 0; i < schedule_.size(); ++i) {
    const absl::Time due = start_ + schedule_[i].at;
    WaitUntil(due);
    results_[i].lateness = clock_.Now() - due;
    // Relaxed: the count orders nothing. A dropped query counts as answered,
    // too, so that the run ends.
    if (in_flight_.fetch_add(1, std::memory_order_relaxed) >=
        options_.max_in_flight) {
      results_[i].dropped = true;
      Done(i, absl::StatusCode::kResourceExhausted);
      continue;
    }
    system.Issue(i, schedule_[i].request, due + options_.timeout, *this);
  }
  if (!schedule_.empty()) all_answered_.WaitForNotification();
  return std::move(results_);
}

void OpenLoopRun::Done(size_t query, absl::StatusCode code) {
  results_[query].code = code;
  results_[query].latency = clock_.Now() - (start_ + schedule_[query].at);
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  // Release and acquire: the last thread, and so Run(), sees every result.
  if (answered_.fetch_add(1, std::memory_order_acq_rel) + 1 ==
      schedule_.size()) {
    all_answered_.Notify();
  }
}

}  // namespace refract::loadgen
