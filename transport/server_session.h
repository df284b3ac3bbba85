#ifndef REFRACT_TRANSPORT_SERVER_SESSION_H_
#define REFRACT_TRANSPORT_SERVER_SESSION_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "transport/channel.h"
#include "transport/handshake.h"
#include "transport/link.h"
#include "transport/server_call.h"

namespace refract::transport {

// Tells of refused and broken peers without letting one of them fill the log:
// one line per host, reason class and minute. Thread-safe.
class PeerLog {
 public:
  void Warn(const std::string& host, absl::string_view what,
            const absl::Status& status);

 private:
  // A scan from many addresses must not make this grow.
  static constexpr size_t kMaxEntries = 1024;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, absl::Time> last_ ABSL_GUARDED_BY(mu_);
};

// What all sessions of a server share. Outlives them. Thread-safe.
struct ServerShared {
  ServerOptions options;
  Handler* handler = nullptr;
  std::vector<proto::TransportPath> paths;
  std::string unix_socket;  // abstract name; empty: none
  AttachBroker broker;
  PeerLog log;
  std::shared_ptr<Waker> acceptor;  // woken when a session ends
  std::atomic<bool> stopping = false;
  std::atomic<bool> draining = false;  // StopAdmitting was called
  std::atomic<int> connections = 0;    // from hello to the end
  std::atomic<uint64_t> accepted = 0;
  std::atomic<uint64_t> refused = 0;
  std::atomic<uint64_t> violations = 0;
  std::atomic<uint64_t> requests = 0;
};

// One accepted connection and its thread: shakes hands and then polls the link,
// or hands an attached data socket to the session that waits for it.
class ServerSession {
 public:
  // Starts the thread. `local`: came through the unix socket.
  static absl::StatusOr<std::unique_ptr<ServerSession>> Start(
      ServerShared* shared, UniqueFd socket, bool local);
  // Joins; ServerShared::stopping is set or finished() is true.
  ~ServerSession();

  bool finished() const { return finished_.load(); }
  void Wake() { waker_->Wake(); }

 private:
  ServerSession(ServerShared* shared, UniqueFd socket, bool local,
                std::shared_ptr<Waker> waker);

  void Run();
  absl::Status Serve();
  absl::Status Attach(SessionSocket socket, const SessionFrame& frame);
  absl::Status RunLink(Established established);
  void SendReplies(Link& link);
  void Flush(Link& link);
  absl::Status OnRequest(Link& link, const MessageHeader& header,
                         std::unique_ptr<IncomingMessage::Impl> message);
  absl::Status OnFrame(Link& link, const SessionFrame& frame);
  absl::Status CheckStopping() const;

  ServerShared* const shared_;
  UniqueFd socket_;
  const bool local_;
  const std::shared_ptr<Waker> waker_;
  const Wait wait_;
  const std::string host_;
  std::atomic<bool> finished_ = false;

  // While the link runs.
  bool established_ = false;
  std::shared_ptr<ReplyQueue> replies_;
  std::vector<absl::Status> models_;
  std::vector<size_t> model_ids_;
  size_t max_calls_ = 0;
  absl::flat_hash_map<uint64_t, AbandonedFlag> calls_;  // not answered yet

  std::thread thread_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SERVER_SESSION_H_
