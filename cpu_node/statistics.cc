#include "cpu_node/statistics.h"

#include <algorithm>

namespace refract::cpu_node {

void ModelStatistics::AtomicSum::Add(absl::Duration value) {
  count.fetch_add(1, std::memory_order_relaxed);
  ns.fetch_add(std::max<int64_t>(0, absl::ToInt64Nanoseconds(value)),
               std::memory_order_relaxed);
}

ModelStatistics::Sum ModelStatistics::AtomicSum::Load() const {
  return {count.load(std::memory_order_relaxed),
          ns.load(std::memory_order_relaxed)};
}

void ModelStatistics::RecordSuccess(absl::Duration total,
                                    const StageTimes& times, int64_t batch,
                                    uint64_t replaced_ids, bool non_finite,
                                    absl::Time wall) {
  // Counters are independent and relaxed: a snapshot taken meanwhile may have a
  // request in some sums and not in others.
  success_.Add(total);
  queue_.Add(times.queue);
  compute_input_.Add(times.compute_input);
  compute_infer_.Add(times.compute_infer);
  compute_output_.Add(times.compute_output);
  durations_.request.Record(total);
  durations_.queue.Record(times.queue);
  durations_.compute_input.Record(times.compute_input);
  durations_.compute_infer.Record(times.compute_infer);
  durations_.compute_output.Record(times.compute_output);
  rows_.fetch_add(batch, std::memory_order_relaxed);
  replaced_ids_.fetch_add(replaced_ids, std::memory_order_relaxed);
  if (non_finite) non_finite_.fetch_add(1, std::memory_order_relaxed);
  last_ms_.store(absl::ToUnixMillis(wall), std::memory_order_relaxed);
}

FailureReason ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
      return FailureReason::kInvalid;
    case absl::StatusCode::kDeadlineExceeded:
      return FailureReason::kExpired;
    case absl::StatusCode::kResourceExhausted:
      return FailureReason::kShed;
    case absl::StatusCode::kCancelled:
      return FailureReason::kCancelled;
    case absl::StatusCode::kUnavailable:
      return FailureReason::kNoNode;
    default:
      return FailureReason::kInternal;
  }
}

void ModelStatistics::RecordFailure(absl::Duration total,
                                    const absl::Status& status,
                                    absl::Time wall) {
  fail_.Add(total);
  failures_[static_cast<size_t>(ReasonOf(status))].fetch_add(
      1, std::memory_order_relaxed);
  last_ms_.store(absl::ToUnixMillis(wall), std::memory_order_relaxed);
}

ModelStatistics::Snapshot ModelStatistics::snapshot() const {
  Snapshot result;
  result.success = success_.Load();
  result.fail = fail_.Load();
  result.queue = queue_.Load();
  result.compute_input = compute_input_.Load();
  result.compute_infer = compute_infer_.Load();
  result.compute_output = compute_output_.Load();
  result.rows = rows_.load(std::memory_order_relaxed);
  result.executions = result.success.count;
  result.replaced_ids = replaced_ids_.load(std::memory_order_relaxed);
  result.lost_ids = lost_ids_.load(std::memory_order_relaxed);
  result.non_finite = non_finite_.load(std::memory_order_relaxed);
  result.retries = retries_.load(std::memory_order_relaxed);
  result.local_runs = local_runs_.load(std::memory_order_relaxed);
  result.older_answers = older_answers_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < kNumHedgeOutcomes; ++i) {
    result.hedges[i] = hedges_[i].load(std::memory_order_relaxed);
  }
  for (size_t i = 0; i < kNumFailureReasons; ++i) {
    result.failures[i] = failures_[i].load(std::memory_order_relaxed);
  }
  result.last = absl::FromUnixMillis(last_ms_.load(std::memory_order_relaxed));
  return result;
}

}  // namespace refract::cpu_node
