#ifndef REFRACT_CPU_NODE_STATISTICS_H_
#define REFRACT_CPU_NODE_STATISTICS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cpu_node/dispatch/hedging.h"
#include "metrics/histogram.h"

namespace refract::cpu_node {

// Time that a request spent in each stage, named as in Triton's statistics.
struct StageTimes {
  absl::Duration queue;           // waiting for a worker
  absl::Duration compute_input;   // CN-pre; zero when the model is not split
  absl::Duration compute_infer;   // HN part and transport, or the whole model
  absl::Duration compute_output;  // CN-post; zero when the model is not split
};

// Stages of an answered request, which follow each other without a gap
// (cpu_node/metrics.cc has their names).
enum class Stage : uint8_t {
  kDecode,   // from the bytes of the request to its tensors
  kQueue,    // until a worker takes it
  kPre,      // CN-pre, choice of GPU node and message included
  kGpuNode,  // from sending to the answer, transport included
  kResume,   // until a worker takes the answer
  kPost,     // CN-post
  kWhole,    // replaces the last four: the whole model on this node
  kEncode,   // from the tensors of the answer to its bytes
};
inline constexpr size_t kNumStages = 8;

// Why requests failed, by status.
enum class FailureReason : uint8_t {
  kInvalid,  // the request does not fit the model
  kExpired,  // DEADLINE_EXCEEDED: late, or predicted to be late
  kShed,  // RESOURCE_EXHAUSTED: no room, or predicted to be late behind others
  kCancelled,  // by the client
  kNoNode,     // UNAVAILABLE: no GPU node, or lost with one, or stopping
  kInternal,
};
inline constexpr size_t kNumFailureReasons = 6;
FailureReason ReasonOf(const absl::Status& status);

// Sums over the requests of a model version. Thread-safe and wait-free; a
// snapshot taken while requests end may mix old and new fields.
class ModelStatistics {
 public:
  struct Sum {
    uint64_t count = 0;
    uint64_t ns = 0;
  };
  struct Snapshot {
    Sum success, fail;                                        // whole requests
    Sum queue, compute_input, compute_infer, compute_output;  // of successes
    uint64_t rows = 0;          // of successful requests
    uint64_t executions = 0;    // equals successful requests: no batching
    uint64_t replaced_ids = 0;  // ids outside their table
    uint64_t lost_ids = 0;      // of lost shards, taken as zeros
    uint64_t non_finite = 0;    // answers with a NaN or an infinity
    uint64_t retries = 0;       // further attempts after failures
    std::array<uint64_t, kNumHedgeOutcomes> hedges = {};  // by HedgeOutcome
    uint64_t local_runs = 0;    // of a split model as a whole on this node
    // Answers of this version in place of a newer version that was not ready.
    uint64_t older_answers = 0;
    std::array<uint64_t, kNumFailureReasons> failures = {};  // by FailureReason
    absl::Time last = absl::UnixEpoch();  // end of the last request
  };

  // `wall` is calendar time; batch in rows; `non_finite`: whether the answer
  // holds a NaN or an infinity.
  void RecordSuccess(absl::Duration total, const StageTimes& times,
                     int64_t batch, uint64_t replaced_ids, bool non_finite,
                     absl::Time wall);
  void RecordFailure(absl::Duration total, const absl::Status& status,
                     absl::Time wall);
  // Records a stage of an answered request; once per stage.
  void RecordStage(Stage stage, absl::Duration time) {
    stages_[static_cast<size_t>(stage)].Record(time);
  }
  void RecordLostIds(uint64_t lost_ids) {
    lost_ids_.fetch_add(lost_ids, std::memory_order_relaxed);
  }
  void RecordOlderAnswer() {
    older_answers_.fetch_add(1, std::memory_order_relaxed);
  }
  void RecordLocalRun() { local_runs_.fetch_add(1, std::memory_order_relaxed); }
  // Call at the end of a request that was sent again after failures.
  void RecordRetries(int retries) {
    if (retries > 0) retries_.fetch_add(retries, std::memory_order_relaxed);
  }
  void RecordHedge(HedgeOutcome outcome) {
    hedges_[static_cast<size_t>(outcome)].fetch_add(1,
                                                    std::memory_order_relaxed);
  }
  Snapshot snapshot() const;

  // Sums over successful requests, as StageTimes.
  struct Durations {
    metrics::Histogram request, queue, compute_input, compute_infer,
        compute_output;
  };
  const Durations& durations() const { return durations_; }
  const metrics::Histogram& stage(Stage stage) const {
    return stages_[static_cast<size_t>(stage)];
  }

 private:
  struct AtomicSum {
    std::atomic<uint64_t> count = 0;
    std::atomic<uint64_t> ns = 0;
    void Add(absl::Duration value);
    Sum Load() const;
  };
  AtomicSum success_, fail_;
  AtomicSum queue_, compute_input_, compute_infer_, compute_output_;
  std::atomic<uint64_t> rows_ = 0;
  std::atomic<uint64_t> replaced_ids_ = 0;
  std::atomic<uint64_t> lost_ids_ = 0;
  std::atomic<uint64_t> non_finite_ = 0;
  std::atomic<uint64_t> retries_ = 0;
  std::array<std::atomic<uint64_t>, kNumHedgeOutcomes> hedges_ = {};
  std::atomic<uint64_t> local_runs_ = 0;
  std::atomic<uint64_t> older_answers_ = 0;
  std::array<std::atomic<uint64_t>, kNumFailureReasons> failures_ = {};
  std::atomic<int64_t> last_ms_ = 0;
  Durations durations_;
  std::array<metrics::Histogram, kNumStages> stages_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_STATISTICS_H_
