#include "transport/session/lobby.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "transport/loop/socket.h"
#include "transport/session/handshake.h"

namespace refract::transport {
namespace {

absl::Status LostItsPlace() {
  return absl::ResourceExhaustedError(
      "too many connections have sent no hello, and this connection is the "
      "oldest of them");
}

}  // namespace

void Lobby::Add(Stream socket, bool local, absl::Time now) {
  std::string host = PeerHost(socket.fd());
  if (per_host_[host] >= options_.max_per_host) {
    const auto oldest = std::find_if(
        waiting_.begin(), waiting_.end(),
        [&](const Waiting& waiting) { return waiting.visitor.host == host; });
    Take(oldest, LostItsPlace());
  } else if (waiting_.size() >= options_.max_connections) {
    DropOldest();
  }
  ++per_host_[host];
  waiting_.push_back(
      {{SessionSocket(std::move(socket)), std::move(host), local},
       now + options_.timeout});
}

void Lobby::Arm(std::vector<pollfd>* fds) const {
  for (const Waiting& waiting : waiting_) {
    fds->push_back({waiting.visitor.session.fd(),
                    FrameEvents(waiting.visitor.session), 0});
  }
}

void Lobby::Step(absl::Span<const pollfd> fds, absl::Time now) {
  auto next = waiting_.begin();
  for (const pollfd& fd : fds) {
    const auto at = next++;
    // Arm() made `fds` in the order of waiting_, which has not changed since.
    // The next position is taken first, because Take() erases `at`.
    if (fd.revents == 0) continue;
    absl::StatusOr<std::optional<SessionFrame>> frame =
        TryFrame(at->visitor.session);
    if (!frame.ok()) {
      Take(at, frame.status());
    } else if (frame->has_value()) {
      Take(at, **std::move(frame));
    }
  }
  while (now >= next_timer()) {
    Take(waiting_.begin(),
         absl::DeadlineExceededError(
             waiting_.front().visitor.session.stream().shaking_hands()
                 ? "the peer did not end the TLS handshake in time"
                 : "the peer did not say hello in time"));
  }
}

void Lobby::DropOldest() {
  if (!waiting_.empty()) Take(waiting_.begin(), LostItsPlace());
}

void Lobby::Take(List::iterator at, absl::StatusOr<SessionFrame> frame) {
  Visitor visitor = std::move(at->visitor);
  waiting_.erase(at);
  const auto count = per_host_.find(visitor.host);
  if (--count->second == 0) per_host_.erase(count);
  on_frame_(std::move(visitor), std::move(frame));
}

}  // namespace refract::transport
