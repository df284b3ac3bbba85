#ifndef REFRACT_TRANSPORT_SESSION_SERVER_SESSION_H_
#define REFRACT_TRANSPORT_SESSION_SERVER_SESSION_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/loop/fd.h"
#include "transport/links/server_poller.h"
#include "transport/links/server_shared.h"
#include "transport/session/session_socket.h"
#include "transport/loop/waker.h"

namespace refract::transport {

// One accepted connection until its link is established, and the short-lived
// thread that shakes hands: then the link goes to a poller, or an attached data
// socket goes to the session that waits for it.
class ServerSession {
 public:
  using Pollers = std::vector<std::unique_ptr<ServerPoller>>;

  // Starts the thread. `local`: came through the unix socket. `shared` and
  // `pollers` outlive the session.
  static absl::StatusOr<std::unique_ptr<ServerSession>> Start(
      ServerShared* shared, const Pollers& pollers, UniqueFd socket,
      bool local);
  // Joins; ServerShared::stopping is set or finished() is true.
  ~ServerSession();

  bool finished() const { return finished_.load(); }
  void Wake() { waker_->Wake(); }

 private:
  ServerSession(ServerShared* shared, const Pollers& pollers, UniqueFd socket,
                bool local, std::shared_ptr<ThreadWaker> waker);

  void Run();
  absl::Status Serve();
  absl::Status Attach(SessionSocket socket, const SessionFrame& frame);
  absl::Status Handshake(SessionSocket session, const SessionFrame& hello,
                         absl::Time deadline);
  absl::Status CheckStopping() const;

  ServerShared* const shared_;
  const Pollers& pollers_;
  UniqueFd socket_;
  const bool local_;
  const std::shared_ptr<ThreadWaker> waker_;
  const Wait wait_;
  const std::string host_;
  std::atomic<bool> finished_ = false;
  std::thread thread_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_SERVER_SESSION_H_
