#ifndef REFRACT_GPU_NODE_SCHEDULER_EXECUTION_TIMES_H_
#define REFRACT_GPU_NODE_SCHEDULER_EXECUTION_TIMES_H_

// How long a device needs for so many rows of a model, learnt from what it has
// needed lately. Admission, batching windows and fair shares all predict with
// it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace refract::gpu_node {

// Executions of about as many rows are one bucket: 1, 2, 3–4, 5–8, … rows. A
// device that pads batches pads them to RowsOfBucket().
inline constexpr int kNumBuckets = 32;
int BucketOf(int64_t rows);        // below 1 counts as 1
int64_t RowsOfBucket(int bucket);  // the most that are in it

// Of one model on one kind of device. Not thread-safe.
class ExecutionTimes {
 public:
  // Of the last so many executions of a bucket.
  static constexpr size_t kWindow = 32;
  // What was measured longer ago says nothing any more. The value measured at
  // load takes its place.
  static constexpr absl::Duration kMemory = absl::Seconds(10);
  // After a pause of so long, one that takes less than half of the median shows
  // that this was wrong: nothing before it is remembered. Requests may have
  // been refused for that, and then few come that could show it.
  static constexpr absl::Duration kPause = absl::Milliseconds(500);

  // From a warm-up: used for its bucket as long as that has no execution of its
  // own to tell.
  void Prime(int64_t rows, absl::Duration time);
  void Record(int64_t rows, absl::Duration time, absl::Time now);

  // The median of the bucket. For a bucket without any: interpolated between
  // its neighbours; beyond the largest one known, along the line through the
  // largest two, or growing with the square root of the rows where only one is
  // known: hopeful enough for larger batches to be tried, and thus measured.
  // Zero when nothing is known.
  absl::Duration Typical(int64_t rows, absl::Time now) const;
  // The 90th percentile, and in proportion to the rows beyond the largest
  // bucket known: what a deadline is held against. At least Typical().
  absl::Duration High(int64_t rows, absl::Time now) const;

  bool known(absl::Time now) const;

 private:
  struct Bucket {
    std::array<absl::Duration, kWindow> window;  // a ring
    size_t count = 0;                            // that are in it
    size_t next = 0;
    absl::Duration median;
    absl::Duration high;
    absl::Time last = absl::InfinitePast();
    std::optional<absl::Duration> primed;
  };
  enum class Which : uint8_t { kTypical, kHigh };
  static std::optional<absl::Duration> Of(const Bucket& bucket, Which which,
                                          absl::Time now);
  absl::Duration Estimate(int64_t rows, Which which, absl::Time now) const;

  std::array<Bucket, kNumBuckets> buckets_;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_SCHEDULER_EXECUTION_TIMES_H_
