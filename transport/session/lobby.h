#ifndef REFRACT_TRANSPORT_SESSION_LOBBY_H_
#define REFRACT_TRANSPORT_SESSION_LOBBY_H_

#include <poll.h>

#include <cstddef>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/loop/fd.h"
#include "transport/session/session_socket.h"

namespace refract::transport {

// Accepted connections whose first frame has not come. Anybody who reaches the
// port can open connections and say nothing, so one costs a descriptor and a
// few hundred bytes, no thread; it must say something in time; and there are a
// bounded number of them, of which each host has a part. A connection beyond a
// bound takes the place of the oldest: a good client's hello comes within
// milliseconds, so the oldest is the one that is least likely to be good.
//
// Time is an argument. Belongs to the acceptor's thread.
class Lobby {
 public:
  struct Options {
    absl::Duration timeout = absl::Seconds(2);
    size_t max_connections = 512;
    // Many nodes may share an address.
    size_t max_per_host = 128;
  };
  struct Visitor {
    SessionSocket session;
    std::string host;    // PeerHost
    bool local = false;  // came through the unix socket
  };
  // The first frame, or why there is none: FailedPrecondition for another major
  // version, DeadlineExceeded, ResourceExhausted for one that lost its place.
  using OnFrame =
      std::function<void(Visitor visitor, absl::StatusOr<SessionFrame> frame)>;

  // `on_frame` is called by Add, Step and DropOldest.
  Lobby(const Options& options, OnFrame on_frame)
      : options_(options), on_frame_(std::move(on_frame)) {}

  void Add(UniqueFd socket, bool local, absl::Time now);
  // Appends what to wait for, one entry per connection.
  void Arm(std::vector<pollfd>* fds) const;
  // `fds` are those of the last Arm, after the wait. None was added since.
  void Step(absl::Span<const pollfd> fds, absl::Time now);
  absl::Time next_timer() const {
    return waiting_.empty() ? absl::InfiniteFuture() : waiting_.front().until;
  }
  // Makes room where the process has no descriptor left.
  void DropOldest();
  size_t size() const { return waiting_.size(); }

 private:
  struct Waiting {
    Visitor visitor;
    absl::Time until;
  };
  using List = std::list<Waiting>;  // the oldest first

  void Take(List::iterator at, absl::StatusOr<SessionFrame> frame);

  const Options options_;
  const OnFrame on_frame_;
  List waiting_;
  absl::flat_hash_map<std::string, size_t> per_host_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_LOBBY_H_
