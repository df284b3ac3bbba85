#ifndef REFRACT_BASE_HISTOGRAM_H_
#define REFRACT_BASE_HISTOGRAM_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace refract::base {

// Durations from 1 ns to about 18 min (longer ones count in the last bucket) in
// log-linear buckets, 64 per power of two: a percentile is off by at most 1/64
// (1.6 %) of its value. Record() is wait-free and allocates nothing.
// Thread-safe; readers see a recent, not an exact, snapshot.
class LatencyHistogram {
 public:
  LatencyHistogram() = default;
  LatencyHistogram(const LatencyHistogram&) = delete;
  LatencyHistogram& operator=(const LatencyHistogram&) = delete;

  void Record(absl::Duration value);

  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  absl::Duration sum() const;
  absl::Duration mean() const;  // zero when empty
  absl::Duration max() const;

  // The smallest bucket bound with at least `fraction` (0…1) of the values at
  // or under it, never above max(); zero when empty.
  absl::Duration Percentile(double fraction) const;

 private:
  static constexpr int kSubBits = 6;
  static constexpr int kMaxShift = 34;
  static constexpr int kBuckets = (kMaxShift + 2) << kSubBits;
  static int BucketOf(uint64_t ns);
  static uint64_t UpperBoundNs(int bucket);

  std::array<std::atomic<uint64_t>, kBuckets> buckets_ = {};
  std::atomic<uint64_t> count_ = 0;
  std::atomic<uint64_t> sum_ns_ = 0;
  std::atomic<uint64_t> max_ns_ = 0;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_HISTOGRAM_H_
