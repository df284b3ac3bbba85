#include "scheduling/batch_policy.h"

#include <algorithm>
#include <cmath>

namespace refract::scheduling {
namespace {

// Far more members than pay off; bounds the time of a decision.
constexpr size_t kMostMembers = 256;

// Device time that merging saves: two executions of `a` and `b` rows against
// one of `a + b` rows. Negative if the larger execution falls into a padded
// bucket that costs more than both together.
absl::Duration Saving(const ExecutionTimes& times, int64_t a, int64_t b,
                      absl::Time now) {
  return times.Typical(a, now) + times.Typical(b, now) -
         times.Typical(a + b, now);
}

// Weight of the latest request in the exponential means of gap and rows: a mean
// follows a change of the load within about 8 requests.
constexpr double kLatestWeight = 1.0 / 8;

double Smooth(double mean, double latest) {
  return mean + kLatestWeight * (latest - mean);
}

}  // namespace

void ArrivalRate::Count(int64_t request_rows, absl::Time now) {
  const auto latest = static_cast<double>(request_rows);
  const absl::Duration pause = now - last;
  rows = last == absl::InfinitePast() ? latest : Smooth(rows, latest);
  // The first request has no gap, and the second request gives the first gap:
  // smoothing starts there, since a mean with an infinite gap would stay
  // infinite.
  if (last == absl::InfinitePast()) {
    gap = absl::InfiniteDuration();
  } else if (gap == absl::InfiniteDuration()) {
    gap = pause;
  } else {
    gap = absl::Seconds(
        Smooth(absl::ToDoubleSeconds(gap), absl::ToDoubleSeconds(pause)));
  }
  last = now;
}

BatchDecision DecideBatch(absl::Span<const BatchCandidate> candidates,
                          const BatchingOptions& options,
                          const ExecutionTimes& times,
                          const ArrivalRate& arrivals, absl::Time now,
                          BatchDecision decision) {
  // Greedy, in the order of execution: the first request is always a member,
  // and each further candidate joins if the batch with it is still in time and
  // saves device time. The deadline of the batch is the tightest of its
  // members, because all of them are answered when the execution ends.
  decision.wait_until = absl::InfinitePast();
  decision.members.clear();
  decision.members.push_back(0);
  int64_t rows = candidates[0].rows;
  if (!options.enabled || rows >= options.max_rows) return decision;
  absl::Time tightest = candidates[0].deadline;
  absl::Time oldest = candidates[0].arrival;
  const auto preferred = [&](int64_t size) {
    return std::binary_search(options.preferred_rows.begin(),
                              options.preferred_rows.end(), size);
  };
  size_t preferred_members = preferred(rows) ? 1 : 0;
  for (size_t i = 1;
       i < candidates.size() && decision.members.size() < kMostMembers; ++i) {
    const BatchCandidate& next = candidates[i];
    // Skips a candidate that does not fit: a later, smaller candidate may fit.
    if (next.rows > options.max_rows - rows) continue;
    // High(), because a member that was in time alone must not become late by
    // being merged. While no time is known, High() is zero: candidates merge.
    const absl::Time deadline = std::min(tightest, next.deadline);
    if (now + times.High(rows + next.rows, now) > deadline) continue;
    if (times.known(now) &&
        Saving(times, rows, next.rows, now) <= absl::ZeroDuration()) {
      continue;
    }
    rows += next.rows;
    tightest = deadline;
    oldest = std::min(oldest, next.arrival);
    decision.members.push_back(i);
    // The largest preferred size counts, so the loop goes on after a hit.
    if (preferred(rows)) preferred_members = decision.members.size();
  }
  // The last preferred size reached; later requests wait for the next batch.
  if (preferred_members > 0) {
    decision.members.resize(preferred_members);
    return decision;
  }
  // Whether to wait for the next request, of which only the means are known.
  // Waiting is useless if it would not fit or if no times say what it saves.
  const auto next_rows = std::max<int64_t>(1, std::llround(arrivals.rows));
  if (options.window <= absl::ZeroDuration() || !times.known(now) ||
      next_rows > options.max_rows - rows) {
    return decision;
  }
  const absl::Duration saving = Saving(times, rows, next_rows, now);
  // An instance that waits stands idle for the gap, and gains the saving.
  if (arrivals.gap >= saving) return decision;
  // The second bound ends the wait when the arrivals pause: then the time since
  // the last request has used up what merging could save. The third bound
  // leaves time for the execution with the next request in it.
  decision.wait_until =
      std::min({oldest + options.window, arrivals.last + saving,
                tightest - times.High(rows + next_rows, now)});
  return decision;
}

}  // namespace refract::scheduling
