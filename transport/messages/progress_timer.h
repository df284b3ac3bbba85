#ifndef REFRACT_TRANSPORT_MESSAGES_PROGRESS_TIMER_H_
#define REFRACT_TRANSPORT_MESSAGES_PROGRESS_TIMER_H_

#include "absl/time/time.h"

namespace refract::transport {

// Measures how long the oldest operation of a kind has been without completion,
// on a path that completes operations in order. A path can stop working without
// an error: a connection that a firewall has forgotten, one of several routes
// that drops everything, a peer that reads its session and nothing else. Time
// is an argument. Not thread-safe.
class ProgressTimer {
 public:
  // `timeout` infinite: never expires.
  explicit ProgressTimer(absl::Duration timeout)
      : timeout_(timeout), pause_(timeout / 2) {}

  // Call after a polling round: whether operations completed in it, and whether
  // operations are outstanding now.
  void OnRound(bool completed, bool outstanding, absl::Time now) {
    // Rounds come several times per timeout. If not, the polling thread was
    // kept from running, and later rounds may find completions.
    const bool paused = now - last_round_ > pause_;
    last_round_ = now;
    if (!outstanding) {
      expires_at_ = absl::InfiniteFuture();
    } else if (completed || paused || expires_at_ == absl::InfiniteFuture()) {
      expires_at_ = now + timeout_;
    }
  }

  bool expired(absl::Time now) const { return now >= expires_at_; }
  // InfiniteFuture: no operation is outstanding.
  absl::Time expires_at() const { return expires_at_; }

 private:
  const absl::Duration timeout_;
  const absl::Duration pause_;  // kept: rounds are shorter than its division
  absl::Time expires_at_ = absl::InfiniteFuture();
  absl::Time last_round_ = absl::InfinitePast();
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_PROGRESS_TIMER_H_
