#include "cpu_node/dispatch/hedging.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace refract::cpu_node {

double QuantileOf(const metrics::Histogram::Snapshot& snapshot,
                  const std::vector<uint64_t>& before, double quantile) {
  const auto count = [&](size_t bucket) {
    return static_cast<double>(snapshot.counts[bucket] -
                               (before.empty() ? 0 : before[bucket]));
  };
  double all = 0;
  for (size_t i = 0; i < snapshot.counts.size(); ++i) all += count(i);
  // Walks to the bucket that holds the quantile, and interpolates within it.
  // Only counts since `before` are used, so old times are forgotten.
  double left = quantile * all;
  for (size_t i = 0; i < snapshot.bounds.size(); ++i) {
    if (count(i) >= left && count(i) > 0) {
      const double low =
          i == 0 ? 0 : static_cast<double>(snapshot.bounds[i - 1]);
      const auto high = static_cast<double>(snapshot.bounds[i]);
      return low + (high - low) * left / count(i);
    }
    left -= count(i);
  }
  return static_cast<double>(snapshot.bounds.back());
}

void HedgeDelay::Learn(const metrics::Histogram::Snapshot& round_trips,
                       double quantile) {
  const auto sum = [](const std::vector<uint64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  };
  if (sum(round_trips.counts) - sum(before_) < kLeastRequests) return;
  ns_.store(
      static_cast<int64_t>(QuantileOf(round_trips, before_, quantile)),
      std::memory_order_relaxed);
  before_ = round_trips.counts;
}

HedgeTimer::HedgeTimer(base::Clock* clock, std::function<void(Request)> on_due,
                       std::function<void()> on_tick)
    : clock_(*clock),
      on_due_(std::move(on_due)),
      on_tick_(std::move(on_tick)),
      thread_([this] { Run(); }) {}

void HedgeTimer::Add(absl::Time due, std::weak_ptr<void> request) {
  absl::MutexLock lock(&mu_);
  if (!stop_) entries_.push({due, std::move(request)});
}

void HedgeTimer::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void HedgeTimer::Run() {
  absl::Time next_tick = clock_.Now() + kTick;
  while (true) {
    Request due;
    bool tick = false;
    {
      absl::MutexLock lock(&mu_);
      while (!stop_ && due == nullptr && !tick) {
        const absl::Time now = clock_.Now();
        while (!entries_.empty() && due == nullptr) {
          // Requests that have ended go before their time, while they are the
          // earliest: the next request to wait for is then known.
          due = entries_.top().request.lock();
          if (due != nullptr && entries_.top().due > now) {
            due = nullptr;
            break;
          }
          entries_.pop();
        }
        if (due != nullptr) break;
        tick = now >= next_tick;
        if (tick) break;
        wake_at_ =
            entries_.empty() ? next_tick : std::min(next_tick,
                                                    entries_.top().due);
        clock_.AwaitWithDeadline(
            mu_, absl::Condition(this, &HedgeTimer::MustWake), wake_at_);
      }
      if (stop_) return;
    }
    if (tick) {
      on_tick_();
      next_tick = clock_.Now() + kTick;
    } else {
      on_due_(std::move(due));
    }
  }
}

}  // namespace refract::cpu_node
