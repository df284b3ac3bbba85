#ifndef REFRACT_TRANSPORT_SESSION_RECONNECT_POLICY_H_
#define REFRACT_TRANSPORT_SESSION_RECONNECT_POLICY_H_

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace refract::transport {

// When a client tries again after a failed attempt or a lost connection:
// exponential back-off with jitter, so that many clients of a node that
// restarts do not come back at the same moment, and a circuit breaker. The
// breaker is open after kBreakerFailures failures in a row: single attempts are
// then made at long intervals, and callers had better choose another node. A
// connection counts as a success only after it lasted for kStable. A connection
// that is lost sooner counts as a failure: otherwise a peer that accepts and
// then fails would be dialled without end at the shortest interval.
//
// Policy only: no clock, no threads. Not thread-safe.
class ReconnectPolicy {
 public:
  // Long enough for the first heartbeats and requests to fail, short enough
  // that an operator who restarts a node twice waits for nothing.
  static constexpr absl::Duration kStable = absl::Seconds(5);
  // From 50 ms on, the eighth back-off is the first that would exceed 5 s.
  static constexpr int kBreakerFailures = 8;

  // 0 < first <= last.
  ReconnectPolicy(absl::Duration first, absl::Duration last)
      : first_(first), last_(last) {}

  void OnConnected(absl::Time now) { connected_at_ = now; }
  // Each returns how long to wait before the next attempt. `draw` is uniform in
  // [0, 1) and gives the jitter: from half to one and a half of the back-off.
  // kInvalidArgument means that one side broke the protocol, which a retry
  // seldom cures: the second in a row waits for the longest back-off.
  absl::Duration OnFailed(const absl::Status& why, double draw);
  absl::Duration OnLost(const absl::Status& why, absl::Time now, double draw);

  // The breaker is open: the peer failed repeatedly and has not been stable
  // since. `now` decides whether the present connection is by now.
  bool open(absl::Time now) const;
  int failures() const { return failures_; }  // in a row

 private:
  bool stable(absl::Time now) const { return now - connected_at_ >= kStable; }

  const absl::Duration first_;
  const absl::Duration last_;
  int failures_ = 0;
  int violations_ = 0;
  absl::Time connected_at_ = absl::InfiniteFuture();  // while connected
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_RECONNECT_POLICY_H_
