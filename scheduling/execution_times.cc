#include "scheduling/execution_times.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace refract::scheduling {

int BucketOf(int64_t rows) {
  if (rows <= 1) return 0;
  return std::min<int>(std::bit_width(static_cast<uint64_t>(rows - 1)),
                       kNumBuckets - 1);
}

int64_t RowsOfBucket(int bucket) { return int64_t{1} << bucket; }

void ExecutionTimes::Prime(int64_t rows, absl::Duration time) {
  buckets_[BucketOf(rows)].primed = time;
}

void ExecutionTimes::Record(int64_t rows, absl::Duration time, absl::Time now) {
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

absl::Duration ExecutionTimes::Estimate(int64_t rows, Which which,
                                        absl::Time now) const {
  const int wanted = BucketOf(rows);
  if (const auto own = Of(buckets_[wanted], which, now)) return *own;
  int below = wanted - 1;
  while (below >= 0 && !Of(buckets_[below], which, now)) --below;
  int above = wanted + 1;
  while (above < kNumBuckets && !Of(buckets_[above], which, now)) ++above;
  const auto time = [&](int bucket) {
    return *Of(buckets_[bucket], which, now);
  };
  const auto size = [](int bucket) {
    return static_cast<double>(RowsOfBucket(bucket));
  };
  // The smallest known bucket bounds all smaller ones.
  if (below < 0) return above < kNumBuckets ? time(above) : absl::Duration();
  // Beyond the largest known bucket. High() is compared with deadlines and must
  // not be optimistic: it grows with the rows. Typical() follows the slope.
  const double ratio = size(wanted) / size(below);
  if (above == kNumBuckets) {
    if (which == Which::kHigh) return time(below) * ratio;
    int second = below - 1;
    while (second >= 0 && !Of(buckets_[second], which, now)) --second;
    if (second < 0) return time(below) * std::sqrt(ratio);
    const double slope =
        std::max(absl::ToDoubleSeconds(time(below) - time(second)), 0.0);
    return time(below) + absl::Seconds(slope * (size(wanted) - size(below)) /
                                       (size(below) - size(second)));
  }
  const double part =
      (size(wanted) - size(below)) / (size(above) - size(below));
  return time(below) + (time(above) - time(below)) * part;
}

absl::Duration ExecutionTimes::Typical(int64_t rows, absl::Time now) const {
  return Estimate(rows, Which::kTypical, now);
}

absl::Duration ExecutionTimes::High(int64_t rows, absl::Time now) const {
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
