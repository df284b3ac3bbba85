#include "metrics/histogram.h"

#include <algorithm>
#include <numeric>

namespace refract::metrics {

Histogram::Histogram(absl::Span<const uint64_t> bounds)
    : bounds_(bounds),
      counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds.size() + 1)) {}

void Histogram::Record(uint64_t value) {
  // Bounds are inclusive: the first bound that is not below the value.
  const size_t bucket =
      std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  // Relaxed: a scrape needs totals, not an order between the buckets and the
  // sum.
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

void Histogram::Record(absl::Duration duration) {
  Record(static_cast<uint64_t>(
      std::max<int64_t>(0, absl::ToInt64Nanoseconds(duration))));
}

uint64_t Histogram::Snapshot::count() const {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

Histogram::Snapshot Histogram::snapshot() const {
  Snapshot result;
  result.bounds = bounds_;
  result.counts.reserve(bounds_.size() + 1);
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    result.counts.push_back(counts_[i].load(std::memory_order_relaxed));
  }
  result.sum = sum_.load(std::memory_order_relaxed);
  return result;
}

}  // namespace refract::metrics
