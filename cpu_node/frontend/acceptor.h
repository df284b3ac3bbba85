#ifndef REFRACT_CPU_NODE_FRONTEND_ACCEPTOR_H_
#define REFRACT_CPU_NODE_FRONTEND_ACCEPTOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log/log_limiter.h"
#include "transport/loop/socket.h"
#include "transport/loop/waker.h"

namespace refract::cpu_node {

// Listens for clients in gRPC's place. gRPC 1.51 stops accepting for good when
// accept(2) once fails for want of descriptors. This class tries again, and
// reserves an eighth of the descriptors for the node itself: it closes a
// connection beyond that at once, and the client tries again later. A host may
// hold three quarters of the clients' descriptors, so that a host that opens
// connections without end leaves room for the clients of other hosts.
class Acceptor {
 public:
  // Takes a connected, non-blocking socket and owns it.
  using Take = std::function<void(int fd)>;

  // Listens before it returns, on every address of `host`; IPv6 addresses may
  // be missing. Clients wait until Start(). "0.0.0.0" includes IPv6 and "[::1]"
  // may have brackets, as with gRPC. Errors are those of ListenTcp().
  static absl::StatusOr<std::unique_ptr<Acceptor>> Create(
      const std::string& host, int port);
  ~Acceptor();

  int port() const { return listeners_.front().port; }
  // Calls `take` on the acceptor's threads. Call once.
  absl::Status Start(Take take);
  // Refuses connections from now on; `take` is not called afterwards. May be
  // called again.
  void Stop();

 private:
  Acceptor(std::vector<transport::Listener> listeners,
           std::shared_ptr<transport::ThreadWaker> waker);
  void Run(const Take& take);
  // Returns false when descriptors or memory are used up.
  bool AcceptOne(int listener, const Take& take);
  // Empty: `fd` may be taken; else why not.
  std::string Refusal(int fd);

  std::vector<transport::Listener> listeners_;
  const std::shared_ptr<transport::ThreadWaker> waker_;
  const uint64_t max_descriptors_;  // in use
  base::LogLimiter log_;
  // Connections by host while many descriptors are in use: counted at
  // `counted_`, and counted up since. Touched by the acceptor's thread alone.
  absl::flat_hash_map<std::string, uint64_t> connections_of_;
  absl::Time counted_ = absl::InfinitePast();
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_FRONTEND_ACCEPTOR_H_
