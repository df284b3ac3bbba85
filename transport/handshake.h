#ifndef REFRACT_TRANSPORT_HANDSHAKE_H_
#define REFRACT_TRANSPORT_HANDSHAKE_H_

// The handshake over the HN's TCP port (docs/wire_format.md, "session"):
//   client: Hello                    server: HelloReply
//   for each path of the reply, until one works:
//     client: connects again, Attach; PathStart     server: PathReply
//     both put a probe through the path
//     client: Ready                  server: Ready, or PathReply with an error

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/session.pb.h"
#include "transport/channel.h"
#include "transport/link.h"
#include "transport/session_socket.h"
#include "transport/socket.h"
#include "transport/waker.h"

namespace refract::transport {

// Brings connections that begin with Attach to the handshake that waits for
// them. Thread-safe.
class AttachBroker {
 public:
  void Open(const std::string& token, std::shared_ptr<Waker> waker);
  void Close(const std::string& token);
  // False: nobody waits for this token.
  bool Deliver(const std::string& token, proto::TransportPath path,
               UniqueFd socket);
  // Invalid when it has not come yet.
  UniqueFd Take(const std::string& token, proto::TransportPath path);

 private:
  struct Waiting {
    std::shared_ptr<Waker> waker;
    absl::flat_hash_map<int, UniqueFd> sockets;  // by path
  };
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

// Connects and shakes hands; everything within options.handshake_timeout.
// Errors: what `wait` says; Unavailable, DeadlineExceeded, InvalidArgument for
// a peer that is not one; or the server's reason for refusing.
absl::StatusOr<Established> ClientHandshake(
    const ClientOptions& options, const HostPort& address,
    const std::vector<proto::TransportPath>& paths, uint64_t epoch,
    std::shared_ptr<Waker> waker, const Wait& wait);

struct ServerHandshakeContext {
  const ServerOptions& options;
  Handler* handler;
  AttachBroker* broker;
  const std::vector<proto::TransportPath>& paths;  // that the server allows
  const std::string& unix_socket;  // empty: none, so no local paths
};

// Continues after `hello` was read from `session`, until `deadline`. A refusal
// is told to the client and is the error returned.
absl::StatusOr<Established> ServerHandshake(
    const ServerHandshakeContext& context, SessionSocket session,
    const SessionFrame& hello, absl::Time deadline,
    std::shared_ptr<Waker> waker, const Wait& wait);

// The next frame within `deadline`.
absl::StatusOr<SessionFrame> AwaitFrame(SessionSocket& session,
                                        const Wait& wait, absl::Time deadline);

proto::WireStatus ToWire(const absl::Status& status, size_t max_text_bytes);
// Codes that absl does not know become kUnknown.
absl::Status FromWire(const proto::WireStatus& status);

// What each side puts through a path to prove it. Different ones, so that an
// echo is no proof.
std::string ClientProbe(absl::string_view token);
std::string ServerProbe(absl::string_view token);

// Kept within 10 ms and 1 h: heartbeats follow from it.
absl::Duration PeerLiveness(uint64_t announced_us);

// Longest model name in an offer, and longest reason why one is refused: with
// them kMaxModelOffers fit in a frame.
inline constexpr size_t kMaxModelNameBytes = 128;
inline constexpr size_t kMaxVerdictTextBytes = 192;

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_HANDSHAKE_H_
