#ifndef REFRACT_CPU_NODE_DISPATCH_HEDGING_H_
#define REFRACT_CPU_NODE_DISPATCH_HEDGING_H_

// When a request is sent to a second GPU node because the first GPU node has
// not answered it: Dean and Barroso, "The Tail at Scale", CACM 56(2), 2013,
// "Hedged requests". engine/hedge.cc sends it.

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "metrics/histogram.h"

namespace refract::cpu_node {

struct HedgeOptions {
  // Time at the first GPU node after which a request is sent to a second GPU
  // node. Infinite: as `quantile` says.
  absl::Duration after = absl::InfiniteDuration();
  // Without `after`: the time within which this share of the model's latest
  // requests were answered, in (0, 1). 0: no request is sent twice.
  double quantile = 0;

  bool on() const {
    return after < absl::InfiniteDuration() || quantile > 0;
  }
};

// Outcome of a request that a GPU node did not answer within the time of
// HedgeOptions.
enum class HedgeOutcome : uint8_t {
  kWon,       // the second GPU node answered first
  kLost,      // sent, or about to be, and the second node was not first
  kNoBudget,  // not sent: the retry budget was used up
  kNoNode,    // not sent: no other GPU node was ready and had room
};
inline constexpr size_t kNumHedgeOutcomes = 4;

// The quantile of a model's latest round trips to GPU nodes.
class HedgeDelay {
 public:
  // Round trips that a quantile is taken of, so that a few slow requests are
  // not taken for the usual time.
  static constexpr uint64_t kLeastRequests = 100;

  // Infinite until kLeastRequests were learned of. Thread-safe, wait-free.
  absl::Duration Get() const {
    const int64_t ns = ns_.load(std::memory_order_relaxed);
    return ns == kUnknown ? absl::InfiniteDuration() : absl::Nanoseconds(ns);
  }
  // Takes the quantile of the round trips since the last quantile, if there are
  // enough of them. `round_trips`: all round trips so far. One caller at a
  // time.
  void Learn(const metrics::Histogram::Snapshot& round_trips, double quantile);

 private:
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> ns_ = kUnknown;
  std::vector<uint64_t> before_;
};

// Upper limit of the smallest values that make up the share `quantile` of the
// values in `snapshot` that are not in `before` (empty: of all); the values of
// a bucket are spread evenly. Beyond the last bound: the last bound.
double QuantileOf(const metrics::Histogram::Snapshot& snapshot,
                  const std::vector<uint64_t>& before, double quantile);

// Calls `on_due` for each request whose time has come and which still lives,
// and `on_tick` about once a second, on a thread of its own and under no lock.
// Thread-safe.
class HedgeTimer {
 public:
  using Request = std::shared_ptr<void>;
  static constexpr absl::Duration kTick = absl::Seconds(1);

  HedgeTimer(base::Clock* clock, std::function<void(Request)> on_due,
             std::function<void()> on_tick);
  ~HedgeTimer() { Stop(); }

  // The timer does not keep `request` alive. No effect after Stop().
  void Add(absl::Time due, std::weak_ptr<void> request);
  // No call runs afterwards. May be called again; not from a call.
  void Stop();

 private:
  struct Entry {
    absl::Time due;
    std::weak_ptr<void> request;
    bool operator<(const Entry& other) const { return due > other.due; }
  };
  void Run();
  bool MustWake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stop_ || (!entries_.empty() && entries_.top().due < wake_at_);
  }

  base::Clock& clock_;
  const std::function<void(Request)> on_due_;
  const std::function<void()> on_tick_;
  absl::Mutex mu_;
  // Earliest first. Requests that have ended stay until their time has come,
  // so that an ordinary request costs one insertion and wakes nobody.
  std::priority_queue<Entry> entries_ ABSL_GUARDED_BY(mu_);
  absl::Time wake_at_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISPATCH_HEDGING_H_
