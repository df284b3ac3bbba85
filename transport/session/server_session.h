#ifndef REFRACT_TRANSPORT_SESSION_SERVER_SESSION_H_
#define REFRACT_TRANSPORT_SESSION_SERVER_SESSION_H_

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "transport/links/server_poller.h"
#include "transport/links/server_shared.h"
#include "transport/loop/waker.h"
#include "transport/session/server_handshake.h"
#include "transport/session/session_socket.h"

namespace refract::transport {

// A client from its hello until its link goes to a poller: counts the
// connection, takes a seat at a poller and runs the handshake. Belongs to one
// thread, but may be made on another.
class ServerSession {
 public:
  using Pollers = std::vector<std::unique_ptr<ServerPoller>>;

  // `hello` was read from `session`. `shared` and `pollers` must outlive this.
  ServerSession(ServerShared* shared, const Pollers& pollers,
                SessionSocket session, SessionFrame hello, std::string host);

  // Continues without blocking; `waker` belongs to the thread. True: finished.
  bool Step(absl::Time now, const std::shared_ptr<Waker>& waker);
  // As ServerHandshake::Arm(), after the first Step.
  bool Arm(std::vector<pollfd>* fds) { return handshake_->Arm(fds); }
  absl::Time next_timer() const { return handshake_->next_timer(); }

 private:
  absl::Status Begin(absl::Time now, const std::shared_ptr<Waker>& waker);
  void Established(transport::Established established);

  ServerShared* const shared_;
  const Pollers& pollers_;
  SessionSocket session_;  // until Begin
  SessionFrame hello_;
  const std::string host_;
  std::optional<ConnectionCount> count_;
  ServerPoller* poller_ = nullptr;
  PollLoop::Seat seat_;
  std::optional<ServerHandshake> handshake_;  // from Begin on
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_SERVER_SESSION_H_
