#ifndef REFRACT_TRANSPORT_PATHS_RAIL_HEALTH_H_
#define REFRACT_TRANSPORT_PATHS_RAIL_HEALTH_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace refract::transport {

// Decides which rails to a peer may be tried. A rail is a route to the peer
// that fails on its own: a data path, or a port of a device ("tcp", "verbs",
// "verbs:mlx5_0:1"). A rail that fails again and again is paused, so that
// reconnections lose no time on it: each attempt over a dead fabric takes a
// probe time-out.
//
// RailHealth is separate from the peer's state (PeerHealth): a rail may be
// paused while the peer is ready over another rail, and a port that goes down
// says nothing about the peer. A peer has one state and several rails.
//
// Policy only: no clock, no threads. Not thread-safe. Unknown names are
// healthy.
class RailHealth {
 public:
  struct Options {
    // This many errors within `window` pause a rail. Mooncake's transfer engine
    // uses the same figures.
    int errors = 3;
    absl::Duration window = absl::Seconds(10);
    // Each further pause is twice as long, up to last_pause.
    absl::Duration first_pause = absl::Seconds(30);
    absl::Duration last_pause = absl::Seconds(300);
  };

  explicit RailHealth(const Options& options) : options_(options) {}
  RailHealth() : RailHealth(Options()) {}

  // Call for a failed set-up, or a connection lost by the rail's fault. Errors
  // while the rail is paused or down do not count. After last_pause without
  // errors since a pause, the next pause is first_pause again.
  void OnError(absl::string_view rail, absl::Time now);
  // Call when the device reports that its port went down or came up. Up also
  // ends a pause, because it explains the errors.
  void SetDown(absl::string_view rail, bool down);

  bool usable(absl::string_view rail, absl::Time now) const;
  bool down(absl::string_view rail) const {
    return paused_until(rail) == absl::InfiniteFuture();
  }
  // InfinitePast: not paused. InfiniteFuture: down.
  absl::Time paused_until(absl::string_view rail) const;
  // Pauses so far, of all rails.
  uint64_t pauses() const { return pauses_; }

 private:
  struct Rail {
    std::deque<absl::Time>
        errors;  // within the window, at most options_.errors
    absl::Time paused_until = absl::InfinitePast();
    absl::Duration last_pause;
    bool excused = false;  // the port's return ended the pause
    bool down = false;
  };

  const Options options_;
  absl::flat_hash_map<std::string, Rail> rails_;
  uint64_t pauses_ = 0;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PATHS_RAIL_HEALTH_H_
