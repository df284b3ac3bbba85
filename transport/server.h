#ifndef REFRACT_TRANSPORT_SERVER_H_
#define REFRACT_TRANSPORT_SERVER_H_

#include <memory>
#include <thread>
#include <vector>

#include "transport/links/channel.h"
#include "transport/loop/fd.h"
#include "transport/loop/waker.h"
#include "transport/session/handshake_thread.h"
#include "transport/session/lobby.h"
#include "transport/session/server_session.h"

namespace refract::transport {

// The server of channel.h: a thread that accepts connections and reads their
// first frames, a few threads that run handshakes, and the pollers, which own
// the connections.
class ServerImpl final : public Server {
 public:
  // `options` must have been checked.
  static absl::StatusOr<std::unique_ptr<ServerImpl>> Start(
      std::unique_ptr<ServerShared> shared);
  ~ServerImpl() override;

  int port() const override { return port_; }
  ServerStats stats() const override;
  void SetModelStatus(size_t model, const absl::Status& status) override;
  void AnnounceStop() override;
  void StopAdmitting() override;

 private:
  explicit ServerImpl(std::unique_ptr<ServerShared> shared);
  absl::Status StartAll();

  // Runs on the acceptor's thread.
  void Accept();
  absl::Status AcceptOne(int listener, absl::Time now);
  void OnFirstFrame(Lobby::Visitor visitor, absl::StatusOr<SessionFrame> frame);
  absl::Status TakeFirstFrame(Lobby::Visitor visitor,
                              absl::StatusOr<SessionFrame> frame);

  int port_ = 0;
  const std::unique_ptr<ServerShared> shared_;
  ServerSession::Pollers pollers_;
  // Destroyed first, so that their seats return before the pollers end.
  std::vector<std::unique_ptr<HandshakeThread>> handshakes_;
  std::shared_ptr<ThreadWaker> waker_;  // of the acceptor's thread
  UniqueFd tcp_;
  UniqueFd local_;  // invalid: no unix socket
  Lobby lobby_;
  std::thread acceptor_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SERVER_H_
