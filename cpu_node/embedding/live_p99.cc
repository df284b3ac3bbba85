#include "cpu_node/embedding/live_p99.h"

#include <algorithm>
#include <numeric>

namespace refract::cpu_node {
namespace {

// Least part of the share: a delta that is being applied holds its version, so
// applying never stops altogether.
constexpr double kLeastPart = 1.0 / 16;

}  // namespace

double CountAbove(const metrics::Histogram::Snapshot& snapshot,
                  const std::vector<uint64_t>& before, double limit) {
  double above = 0;
  for (size_t i = 0; i < snapshot.counts.size(); ++i) {
    const uint64_t count =
        snapshot.counts[i] - (before.empty() ? 0 : before[i]);
    const double low = i == 0 ? 0 : static_cast<double>(snapshot.bounds[i - 1]);
    if (low >= limit) {
      above += static_cast<double>(count);
    } else if (i < snapshot.bounds.size() &&
               static_cast<double>(snapshot.bounds[i]) > limit) {
      const auto high = static_cast<double>(snapshot.bounds[i]);
      above += static_cast<double>(count) * (high - limit) / (high - low);
    } else if (i == snapshot.bounds.size()) {
      above += static_cast<double>(count);  // beyond the last bound
    }
  }
  return above;
}

void P99Throttle::Add(const std::string& model,
                      const metrics::Histogram::Snapshot& requests) {
  std::vector<uint64_t>& before = before_[model];
  const auto sum = [](const std::vector<uint64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  };
  const uint64_t now = sum(requests.counts);
  // A version that was loaded again counts from zero.
  if (before.empty() || now < sum(before)) {
    before.assign(requests.counts.size(), 0);
  }
  const uint64_t count = now - sum(before);
  if (count < kLeastRequests) return;
  judged_ = true;
  slow_ |= CountAbove(requests, before, absl::ToDoubleNanoseconds(limit_)) >
           0.01 * static_cast<double>(count);
  before = requests.counts;
}

void P99Throttle::Decide() {
  if (slow_) {
    now_ = std::max(now_ / 2, share_ * kLeastPart);
  } else if (judged_) {
    now_ = std::min(now_ * 1.25, share_);
  }
  slow_ = judged_ = false;
}

}  // namespace refract::cpu_node
