#ifndef REFRACT_TRANSPORT_SERVER_H_
#define REFRACT_TRANSPORT_SERVER_H_

#include <list>
#include <memory>
#include <thread>

#include "transport/links/channel.h"
#include "transport/loop/fd.h"
#include "transport/session/server_session.h"

namespace refract::transport {

// The server of channel.h: a thread that accepts connections and reaps finished
// handshakes, a short-lived thread per handshake (ServerSession), and the
// pollers, which own the connections.
class ServerImpl final : public Server {
 public:
  // `local` may be invalid: no unix socket.
  ServerImpl(std::unique_ptr<ServerShared> shared,
             ServerSession::Pollers pollers, UniqueFd tcp, UniqueFd local,
             int port);
  ~ServerImpl() override;

  int port() const override { return port_; }
  ServerStats stats() const override;
  void SetModelStatus(size_t model, const absl::Status& status) override;
  void StopAdmitting() override;

 private:
  void Accept();
  absl::Status AcceptOne(int listener, bool local);

  const int port_;
  const std::unique_ptr<ServerShared> shared_;
  const ServerSession::Pollers pollers_;
  // The acceptor's.
  UniqueFd tcp_;
  UniqueFd local_;
  std::list<std::unique_ptr<ServerSession>> sessions_;
  std::thread acceptor_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SERVER_H_
