#ifndef REFRACT_TRANSPORT_LINKS_SERVER_POLLER_H_
#define REFRACT_TRANSPORT_LINKS_SERVER_POLLER_H_

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "transport/links/server_link.h"
#include "transport/links/server_shared.h"
#include "transport/loop/poll_loop.h"
#include "transport/paths/path_resources.h"

namespace refract::transport {

// A polling thread of a server with the connections it owns. A connection never
// changes its poller. Thread-safe.
class ServerPoller {
 public:
  // `shared` must outlive the poller.
  static absl::StatusOr<std::unique_ptr<ServerPoller>> Create(
      ServerShared* shared);
  absl::Status Start();  // the thread; once
  // ServerShared::stopping must be set and every seat returned. Earlier answers
  // are still sent, to clients that take them within half a second; then every
  // client is told.
  ~ServerPoller();

  // Reserves a place for a connection, before its handshake makes a path for
  // this thread. ResourceExhausted: full.
  absl::StatusOr<PollLoop::Seat> Reserve() { return loop_->Reserve(); }
  // Number of connections, including handshakes.
  size_t load() const { return loop_->num_seats(); }
  PathResources* resources() { return &resources_; }

  void Add(PollLoop::Seat seat, std::unique_ptr<ServerLink> link);
  // Call after setting ServerShared::draining or ::stopping.
  void Wake() { loop_->Wake(); }
  // Call after a change that every connection must tell its client.
  void WakeLinks() {
    wake_links_ = true;
    loop_->Wake();
  }

 private:
  using NewLink = std::pair<PollLoop::Seat, std::unique_ptr<ServerLink>>;

  ServerPoller(ServerShared* shared, std::unique_ptr<PollLoop> loop);
  void Run();
  void Adopt();
  void Flush();

  ServerShared* const shared_;
  PathResources resources_;
  // Owns the links, and the links hold the resources.
  const std::unique_ptr<PollLoop> loop_;

  absl::Mutex mu_;
  std::vector<NewLink> new_links_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> any_new_ = false;  // so that the poller skips the lock
  std::atomic<bool> wake_links_ = false;

  std::thread thread_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LINKS_SERVER_POLLER_H_
