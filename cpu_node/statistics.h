#ifndef REFRACT_CPU_NODE_STATISTICS_H_
#define REFRACT_CPU_NODE_STATISTICS_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace refract::cpu_node {

// Where a request spent its time. Named as Triton's statistics are.
struct StageTimes {
  absl::Duration queue;           // waiting for a worker
  absl::Duration compute_input;   // CN-pre; zero when the model is not split
  absl::Duration compute_infer;   // HN and the way there and back, or the whole
  absl::Duration compute_output;  // CN-post; zero when the model is not split
};

// Sums over the requests of one model version. Thread-safe and wait-free;
// a snapshot taken while requests end may be torn between its fields.
class ModelStatistics {
 public:
  struct Sum {
    uint64_t count = 0;
    uint64_t ns = 0;
  };
  struct Snapshot {
    Sum success, fail;                                        // whole requests
    Sum queue, compute_input, compute_infer, compute_output;  // successful ones
    uint64_t rows = 0;          // of successful requests
    uint64_t executions = 0;    // successful requests: there is no batching
    uint64_t replaced_ids = 0;  // outside their table, zero or default row
    uint64_t non_finite = 0;    // answers with a NaN or an infinity
    absl::Time last = absl::UnixEpoch();  // end of the last request
  };

  // `wall` is calendar time; batch in rows; `non_finite`: whether the answer
  // holds a NaN or an infinity.
  void RecordSuccess(absl::Duration total, const StageTimes& times,
                     int64_t batch, uint64_t replaced_ids, bool non_finite,
                     absl::Time wall);
  void RecordFailure(absl::Duration total, absl::Time wall);
  Snapshot snapshot() const;

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
  std::atomic<uint64_t> non_finite_ = 0;
  std::atomic<int64_t> last_ms_ = 0;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_STATISTICS_H_
