#ifndef REFRACT_TRANSPORT_PATHS_RAIL_HEALTH_H_
#define REFRACT_TRANSPORT_PATHS_RAIL_HEALTH_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace refract::transport {

// Which rails to one peer may be tried. A rail is a way to the peer that fails
// on its own: a data path, or a port of a device ("tcp", "verbs",
// "verbs:mlx5_0:1"). A rail that fails again and again is paused, so that
// reconnections do not lose their time on it: each attempt over a dead fabric
// takes a probe time-out.
//
// Not part of the peer's state (PeerHealth): a rail may be paused while the
// peer is ready over another one, and the port of a device that goes down says
// nothing about the peer. A peer has one state and several rails.
//
// Policy only: no clock, no threads. Not thread-safe. Unknown names are
// healthy.
class RailHealth {
 public:
  struct Options {
    // This many errors within `window` pause a rail. The figures are those of
    // Mooncake's transfer engine.
    int errors = 3;
    absl::Duration window = absl::Seconds(10);
    // Each further pause is twice as long, up to the last.
    absl::Duration first_pause = absl::Seconds(30);
    absl::Duration last_pause = absl::Seconds(300);
  };

  explicit RailHealth(const Options& options) : options_(options) {}
  RailHealth() : RailHealth(Options()) {}

  // A set-up that failed, or a connection that was lost to the rail's fault.
  // Errors while the rail is paused or down count for nothing. A rail without
  // errors for last_pause after a pause begins anew with the first.
  void OnError(absl::string_view rail, absl::Time now);
  // The device's own word: its port went down or came up. Up also ends a pause,
  // because the errors are explained.
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
    bool excused = false;  // the pause ended with the port's return
    bool down = false;
  };

  const Options options_;
  absl::flat_hash_map<std::string, Rail> rails_;
  uint64_t pauses_ = 0;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_PATHS_RAIL_HEALTH_H_
