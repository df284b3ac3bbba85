#ifndef REFRACT_TRANSPORT_LINKS_SERVER_SHARED_H_
#define REFRACT_TRANSPORT_LINKS_SERVER_SHARED_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "proto/session.pb.h"
#include "transport/links/channel.h"
#include "transport/loop/waker.h"
#include "transport/session/client_registry.h"
#include "transport/session/handshake.h"
#include "transport/session/identity.h"
#include "transport/session/model_states.h"

namespace refract::transport {

// Logs refused and broken peers, at most a line per host, kind of error and
// minute, so that a peer cannot fill the log. Thread-safe.
class PeerLog {
 public:
  void Warn(const std::string& host, absl::string_view what,
            const absl::Status& status);

 private:
  // Most entries, so that a scan from many addresses does not grow it.
  static constexpr size_t kMaxEntries = 1024;
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, absl::Time> last_ ABSL_GUARDED_BY(mu_);
};

// Number of connections per host. Thread-safe.
class HostCounts {
 public:
  // Returns the host's number, with this connection.
  int Add(const std::string& host) {
    absl::MutexLock lock(&mu_);
    return ++counts_[host];
  }
  void Remove(const std::string& host) {
    absl::MutexLock lock(&mu_);
    const auto count = counts_.find(host);
    if (--count->second == 0) counts_.erase(count);
  }

 private:
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, int> counts_ ABSL_GUARDED_BY(mu_);
};

// State shared by all threads of a server. Outlives them. Thread-safe.
struct ServerShared {
  ServerOptions options;
  Handler* handler = nullptr;
  std::vector<proto::TransportPath> paths;
  std::string unix_socket;                      // abstract name; empty: none
  const std::string process = RandomToken(16);  // for PeerIdentity
  AttachBroker broker;
  ClientRegistry clients;
  ModelStates models;
  PeerLog log;
  HostCounts hosts;  // of the connections below
  std::atomic<bool> stopping = false;
  std::atomic<bool> draining = false;  // AnnounceStop was called
  std::atomic<bool> refusing = false;  // StopAdmitting was called
  std::atomic<int> connections = 0;    // from hello to the end
  std::atomic<uint64_t> accepted = 0;
  std::atomic<uint64_t> refused = 0;
  std::atomic<uint64_t> violations = 0;
  std::atomic<uint64_t> losses = 0;
  std::atomic<uint64_t> path_failures = 0;
  std::atomic<uint64_t> superseded = 0;
  std::atomic<uint64_t> suspicions = 0;
  std::atomic<uint64_t> requests = 0;
};

// Counts a connection in ServerShared::connections and ::hosts.
// Move-only.
class ConnectionCount {
 public:
  ConnectionCount(ServerShared* shared, std::string host)
      : shared_(shared),
        host_(std::move(host)),
        number_(++shared->connections),
        number_of_host_(shared->hosts.Add(host_)) {}
  ConnectionCount(ConnectionCount&& other) noexcept
      : shared_(std::exchange(other.shared_, nullptr)),
        host_(std::move(other.host_)),
        number_(other.number_),
        number_of_host_(other.number_of_host_) {}
  ConnectionCount& operator=(ConnectionCount&&) = delete;
  ~ConnectionCount() {
    if (shared_ == nullptr) return;
    --shared_->connections;
    shared_->hosts.Remove(host_);
  }
  // Number of connections at the arrival of this connection, itself included.
  int number() const { return number_; }
  int number_of_host() const { return number_of_host_; }

 private:
  ServerShared* shared_;
  std::string host_;
  int number_;
  int number_of_host_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LINKS_SERVER_SHARED_H_
