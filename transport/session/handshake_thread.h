#ifndef REFRACT_TRANSPORT_SESSION_HANDSHAKE_THREAD_H_
#define REFRACT_TRANSPORT_SESSION_HANDSHAKE_THREAD_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/links/server_shared.h"
#include "transport/loop/mailbox.h"
#include "transport/loop/waker.h"
#include "transport/session/server_session.h"

namespace refract::transport {

// Runs the handshakes of many clients on one thread. Thread-safe.
class HandshakeThread {
 public:
  // `shared` must outlive this object.
  static absl::StatusOr<std::unique_ptr<HandshakeThread>> Create(
      ServerShared* shared);
  // Ends the handshakes under way; ServerShared::stopping is set.
  ~HandshakeThread();

  void Add(std::unique_ptr<ServerSession> session);
  // Number of handshakes under way.
  size_t load() const { return load_; }

 private:
  using Sessions = std::vector<std::unique_ptr<ServerSession>>;

  HandshakeThread(ServerShared* shared, std::shared_ptr<ThreadWaker> waker);
  void Run();

  ServerShared* const shared_;
  const std::shared_ptr<ThreadWaker> waker_;
  Mailbox<std::unique_ptr<ServerSession>> added_;
  std::atomic<size_t> load_ = 0;
  std::thread thread_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_HANDSHAKE_THREAD_H_
