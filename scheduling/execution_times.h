#ifndef REFRACT_SCHEDULING_EXECUTION_TIMES_H_
#define REFRACT_SCHEDULING_EXECUTION_TIMES_H_

// The time a device needs for a number of rows of a model, learnt from its
// latest executions. Admission, batching and turns predict with it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace refract::scheduling {

// Executions of about as many rows are one bucket: 1, 2, 3–4, 5–8, … rows. A
// device that pads batches pads them to RowsOfBucket().
inline constexpr int kNumBuckets = 32;
int BucketOf(int64_t rows);        // below 1 counts as 1
int64_t RowsOfBucket(int bucket);  // the most rows of the bucket

// For one model on one kind of device. Not thread-safe.
class ExecutionTimes {
 public:
  // Remembered executions of a bucket.
  static constexpr size_t kWindow = 32;
  // Older executions are forgotten. The value measured at load replaces
  // them.
  static constexpr absl::Duration kMemory = absl::Seconds(10);
  // If the first execution after a pause of this length takes less than half of
  // the median, the executions before the pause are forgotten: requests may
  // have been refused for that median, so few more will come to correct it.
  static constexpr absl::Duration kPause = absl::Milliseconds(500);

  // Sets a time from a warm-up: used for its bucket while no execution of the
  // bucket is remembered.
  void Prime(int64_t rows, absl::Duration time);
  void Record(int64_t rows, absl::Duration time, absl::Time now);

  // The median of the bucket. A bucket without executions is interpolated
  // between its neighbours. Beyond the largest known bucket the time follows
  // the line through the largest two, or the square root of the rows where only
  // one is known: low enough for larger batches to be tried, and thus measured.
  // Zero when nothing is known.
  absl::Duration Typical(int64_t rows, absl::Time now) const;
  // The 90th percentile, compared with deadlines. At least Typical().
  absl::Duration High(int64_t rows, absl::Time now) const;

  // The mean, for sums of many executions. Executions that the operating system
  // interrupts are long and few, which the median does not see.
  absl::Duration Mean(int64_t rows, absl::Time now) const;

  bool known(absl::Time now) const;

 private:
  struct Bucket {
    std::array<absl::Duration, kWindow> window;  // a ring
    size_t count = 0;                            // times added to the window
    size_t next = 0;
    absl::Duration median;
    absl::Duration mean;
    absl::Duration high;
    absl::Time last = absl::InfinitePast();
    std::optional<absl::Duration> primed;
  };
  enum class Which : uint8_t { kTypical, kMean, kHigh };
  static std::optional<absl::Duration> Of(const Bucket& bucket, Which which,
                                          absl::Time now);
  absl::Duration Estimate(int64_t rows, Which which, absl::Time now) const;

  // The nearest bucket below or above `bucket` with a time; -1: there is none.
  int Below(int bucket, Which which, absl::Time now) const;
  int Above(int bucket, Which which, absl::Time now) const;

  std::array<Bucket, kNumBuckets> buckets_;
  // Buckets that ever got a time, a bit each: few, and searched for each request.
  uint32_t used_ = 0;
  static_assert(kNumBuckets <= 32);
};

}  // namespace refract::scheduling

#endif  // REFRACT_SCHEDULING_EXECUTION_TIMES_H_
