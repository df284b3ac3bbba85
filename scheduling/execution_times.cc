#include "scheduling/execution_times.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace refract::scheduling {

int BucketOf(int64_t rows) {
  // Bucket k holds 2^(k-1) + 1 to 2^k rows: the bits of rows - 1.
  if (rows <= 1) return 0;
  return std::min<int>(std::bit_width(static_cast<uint64_t>(rows - 1)),
                       kNumBuckets - 1);
}

int64_t RowsOfBucket(int bucket) { return int64_t{1} << bucket; }

void ExecutionTimes::Prime(int64_t rows, absl::Duration time) {
  const int bucket = BucketOf(rows);
  buckets_[bucket].primed = time;
  used_ |= uint32_t{1} << bucket;
}

void ExecutionTimes::Record(int64_t rows, absl::Duration time, absl::Time now) {
  used_ |= uint32_t{1} << BucketOf(rows);
  Bucket& bucket = buckets_[BucketOf(rows)];
  // Old times, and times refuted by a faster execution, are forgotten before
  // the new time is added.
  const absl::Duration silence = now - bucket.last;
  if (silence > kMemory || (silence > kPause && 2 * time < bucket.median)) {
    bucket.count = 0;
    bucket.next = 0;
  }
  bucket.last = now;
  bucket.window[bucket.next] = time;
  bucket.next = (bucket.next + 1) % kWindow;
  bucket.count = std::min(bucket.count + 1, kWindow);
  // Quantiles are computed here, once per execution, and read many times per
  // request.
  std::array<absl::Duration, kWindow> sorted;
  const size_t count = bucket.count;
  std::copy_n(bucket.window.begin(), count, sorted.begin());
  std::sort(sorted.begin(), sorted.begin() + count);
  // Nearest ranks: the lower median, and the value at rank ⌈0.9 · count⌉.
  bucket.median = sorted[(count - 1) / 2];
  bucket.mean = std::accumulate(sorted.begin(), sorted.begin() + count,
                                absl::Duration()) /
                static_cast<int64_t>(count);
  bucket.high = sorted[(count * 9 + 9) / 10 - 1];
}

std::optional<absl::Duration> ExecutionTimes::Of(const Bucket& bucket,
                                                 Which which, absl::Time now) {
  if (bucket.count > 0 && now - bucket.last <= kMemory) {
    switch (which) {
      case Which::kTypical:
        return bucket.median;
      case Which::kMean:
        return bucket.mean;
      case Which::kHigh:
        return bucket.high;
    }
  }
  return bucket.primed;
}

int ExecutionTimes::Below(int bucket, Which which, absl::Time now) const {
  // Bits of the used buckets below `bucket`, from the nearest downwards. A used
  // bucket may have no time now: its executions are older than kMemory and it
  // was not primed.
  for (uint32_t left = used_ & ((uint32_t{1} << bucket) - 1); left != 0;) {
    const int highest = std::bit_width(left) - 1;
    if (Of(buckets_[highest], which, now)) return highest;
    left &= ~(uint32_t{1} << highest);
  }
  return -1;
}

int ExecutionTimes::Above(int bucket, Which which, absl::Time now) const {
  // Used buckets above `bucket`, from the nearest upwards; left & (left - 1)
  // clears the lowest bit.
  for (uint32_t left = used_ & ~((uint32_t{2} << bucket) - 1); left != 0;
       left &= left - 1) {
    const int lowest = std::countr_zero(left);
    if (Of(buckets_[lowest], which, now)) return lowest;
  }
  return -1;
}

absl::Duration ExecutionTimes::Estimate(int64_t rows, Which which,
                                        absl::Time now) const {
  if (used_ == 0) return absl::ZeroDuration();
  const int wanted = BucketOf(rows);
  if (const auto own = Of(buckets_[wanted], which, now)) return *own;
  const int below = Below(wanted, which, now);
  const int above = Above(wanted, which, now);
  const auto time = [&](int bucket) {
    return *Of(buckets_[bucket], which, now);
  };
  const auto size = [](int bucket) {
    return static_cast<double>(RowsOfBucket(bucket));
  };
  // The smallest known bucket bounds all smaller buckets.
  if (below < 0) return above >= 0 ? time(above) : absl::ZeroDuration();
  // Beyond the largest known bucket: the line through the two largest known
  // buckets. Its slope is at least 0: a larger bucket that was measured faster
  // is noise. Never in proportion to the rows: a time may be a fixed cost for
  // the most part, and a bucket that is thought too slow is never measured.
  if (above < 0) {
    const int second = Below(below, which, now);
    if (second < 0) return time(below) * std::sqrt(size(wanted) / size(below));
    const double slope =
        std::max(absl::ToDoubleSeconds(time(below) - time(second)), 0.0);
    return time(below) + absl::Seconds(slope * (size(wanted) - size(below)) /
                                       (size(below) - size(second)));
  }
  // Between two known buckets: the straight line through them.
  const double part =
      (size(wanted) - size(below)) / (size(above) - size(below));
  return time(below) + (time(above) - time(below)) * part;
}

absl::Duration ExecutionTimes::Typical(int64_t rows, absl::Time now) const {
  return Estimate(rows, Which::kTypical, now);
}

absl::Duration ExecutionTimes::High(int64_t rows, absl::Time now) const {
  // Beyond the largest known bucket, the line through two medians may be steeper
  // than the line through two 90th percentiles.
  return std::max(Estimate(rows, Which::kHigh, now),
                  Estimate(rows, Which::kTypical, now));
}

absl::Duration ExecutionTimes::Mean(int64_t rows, absl::Time now) const {
  return Estimate(rows, Which::kMean, now);
}

bool ExecutionTimes::known(absl::Time now) const {
  return std::any_of(buckets_.begin(), buckets_.end(), [&](const Bucket& b) {
    return Of(b, Which::kTypical, now).has_value();
  });
}

}  // namespace refract::scheduling
