#ifndef REFRACT_METRICS_HISTOGRAM_H_
#define REFRACT_METRICS_HISTOGRAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace refract::metrics {

// Upper bounds of the buckets of durations, ns: 50 µs to 1 s. Recommenders
// answer within 5 ms, hence most bounds are below that. Triton's own bounds (1,
// 5, 25, 50 and 100 ms) are among them, so that boards made for Triton still
// find their buckets.
inline constexpr uint64_t kDurationBounds[] = {
    50'000,     100'000,     200'000,     300'000,     500'000,
    750'000,    1'000'000,   1'500'000,   2'000'000,   3'000'000,
    4'000'000,  5'000'000,   7'500'000,   10'000'000,  25'000'000,
    50'000'000, 100'000'000, 250'000'000, 500'000'000, 1'000'000'000};

// Bounds for counts: requests or rows of an execution.
inline constexpr uint64_t kSizeBounds[] = {
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384};

// Counts of values by bucket, and their sum. Record() is wait-free and does not
// allocate; thread-safe. A snapshot taken meanwhile may hold a value in its
// buckets and not yet in its sum.
class Histogram {
 public:
  // `bounds`: upper bounds of the buckets, inclusive, ascending; a further
  // bucket holds larger values. `bounds` must outlive the histogram.
  explicit Histogram(absl::Span<const uint64_t> bounds = kDurationBounds);

  void Record(uint64_t value);
  // In ns, for kDurationBounds. A negative duration, from a clock set back,
  // counts as zero.
  void Record(absl::Duration duration);

  struct Snapshot {
    absl::Span<const uint64_t> bounds;
    std::vector<uint64_t> counts;  // per bucket, one more than bounds
    uint64_t sum = 0;              // of the values
    uint64_t count() const;        // of the values
  };
  Snapshot snapshot() const;

 private:
  const absl::Span<const uint64_t> bounds_;
  const std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<uint64_t> sum_ = 0;
};

}  // namespace refract::metrics

#endif  // REFRACT_METRICS_HISTOGRAM_H_
