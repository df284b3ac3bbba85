#ifndef REFRACT_CPU_NODE_EMBEDDING_LIVE_P99_H_
#define REFRACT_CPU_NODE_EMBEDDING_LIVE_P99_H_

// How much of a CPU work beside requests may take, by the latency of requests.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "metrics/histogram.h"

namespace refract::cpu_node {

// The share is halved, down to a sixteenth, after each look that finds more
// than a hundredth of a model's requests slower than the limit, and grows by a
// quarter after each other look. Not thread-safe.
class P99Throttle {
 public:
  // `limit` zero: the share never changes.
  P99Throttle(double share, absl::Duration limit)
      : share_(share), now_(share), limit_(limit) {}

  bool limited() const { return limit_ > absl::ZeroDuration(); }
  double share() const { return now_; }  // in (0, 1]

  // A look at all models: Add() for each, then Decide(). `requests`: durations
  // of the requests of `model` since it was loaded. Requests since the last
  // look are judged once there are kLeastRequests of them, so that one slow
  // request among a few is no p99.
  static constexpr uint64_t kLeastRequests = 100;
  void Add(const std::string& model,
           const metrics::Histogram::Snapshot& requests);
  void Decide();

 private:
  const double share_;
  double now_;
  const absl::Duration limit_;
  std::map<std::string, std::vector<uint64_t>> before_;
  bool slow_ = false;
  bool judged_ = false;
};

// Number of values above `limit`, where the values of its bucket are spread
// evenly. `before`: counts to leave out; empty: none.
double CountAbove(const metrics::Histogram::Snapshot& snapshot,
                  const std::vector<uint64_t>& before, double limit);

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_EMBEDDING_LIVE_P99_H_
