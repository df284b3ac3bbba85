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
#include "transport/loop/stream.h"
#include "transport/session/session_socket.h"

namespace refract::transport {

// Accepted connections whose first frame has not come; with TLS, the handshake
// comes before it. Any host that reaches
// the port can open connections and say nothing. So a connection costs a
// descriptor and a few hundred bytes, but no thread; it must send its frame in
// time; and there are a bounded number of them, in all and per host. A
// connection beyond a bound replaces the oldest: a good client's hello comes
// within milliseconds, so the oldest is least likely to be good.
//
// Time is an argument. Belongs to the acceptor's thread.
class Lobby {
 public:
  struct Options {
    absl::Duration timeout = absl::Seconds(2);
    size_t max_connections = 512;
    // Generous: many nodes may share an address.
    size_t max_per_host = 128;
  };
  struct Visitor {
    SessionSocket session;
    std::string host;    // PeerHost
    bool local = false;  // came through the unix socket
  };
  // The first frame, or an error: FailedPrecondition for another major version,
  // DeadlineExceeded, ResourceExhausted for a connection that lost its place.
  using OnFrame =
      std::function<void(Visitor visitor, absl::StatusOr<SessionFrame> frame)>;

  // Add, Step and DropOldest call `on_frame`.
  Lobby(const Options& options, OnFrame on_frame)
      : options_(options), on_frame_(std::move(on_frame)) {}

  void Add(Stream socket, bool local, absl::Time now);
  // Appends the descriptors to wait for, one per connection.
  void Arm(std::vector<pollfd>* fds) const;
  // `fds`: those of the last Arm, after the wait. Add() was not called since.
  void Step(absl::Span<const pollfd> fds, absl::Time now);
  absl::Time next_timer() const {
    return waiting_.empty() ? absl::InfiniteFuture() : waiting_.front().until;
  }
  // Makes room when the process has no descriptor left.
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
