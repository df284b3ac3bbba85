#include "base/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace refract::base {

int LatencyHistogram::BucketOf(uint64_t ns) {
  // Values under 2^(kSubBits+1) have a bucket each; above, the top kSubBits+1
  // bits pick the bucket.
  const int shift =
      std::clamp(static_cast<int>(std::bit_width(ns)) - kSubBits - 1, 0,
                 kMaxShift);
  const uint64_t bucket =
      (static_cast<uint64_t>(shift) << kSubBits) + (ns >> shift);
  return static_cast<int>(std::min<uint64_t>(bucket, kBuckets - 1));
}

uint64_t LatencyHistogram::UpperBoundNs(int bucket) {
  const int shift = std::max(0, (bucket >> kSubBits) - 1);
  const uint64_t top = static_cast<uint64_t>(bucket) -
                       (static_cast<uint64_t>(shift) << kSubBits);
  return ((top + 1) << shift) - 1;
}

void LatencyHistogram::Record(absl::Duration value) {
  const int64_t signed_ns = absl::ToInt64Nanoseconds(value);
  const uint64_t ns = signed_ns < 0 ? 0 : static_cast<uint64_t>(signed_ns);
  buckets_[BucketOf(ns)].fetch_add(1, std::memory_order_relaxed);
  count_.fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(ns, std::memory_order_relaxed);
  uint64_t seen = max_ns_.load(std::memory_order_relaxed);
  while (ns > seen &&
         !max_ns_.compare_exchange_weak(seen, ns, std::memory_order_relaxed)) {
  }
}

absl::Duration LatencyHistogram::sum() const {
  return absl::Nanoseconds(
      static_cast<int64_t>(sum_ns_.load(std::memory_order_relaxed)));
}

absl::Duration LatencyHistogram::mean() const {
  const uint64_t n = count();
  return n == 0 ? absl::ZeroDuration() : sum() / static_cast<int64_t>(n);
}

absl::Duration LatencyHistogram::max() const {
  return absl::Nanoseconds(
      static_cast<int64_t>(max_ns_.load(std::memory_order_relaxed)));
}

absl::Duration LatencyHistogram::Percentile(double fraction) const {
  const uint64_t n = count();
  if (n == 0) return absl::ZeroDuration();
  const auto rank = std::max<uint64_t>(
      1, static_cast<uint64_t>(std::ceil(fraction * static_cast<double>(n))));
  uint64_t seen = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    seen += buckets_[bucket].load(std::memory_order_relaxed);
    if (seen >= rank) {
      return std::min(
          absl::Nanoseconds(static_cast<int64_t>(UpperBoundNs(bucket))), max());
    }
  }
  return max();
}

}  // namespace refract::base
