#ifndef REFRACT_TRANSPORT_SESSION_HANDSHAKE_H_
#define REFRACT_TRANSPORT_SESSION_HANDSHAKE_H_

// The handshake over the HN's TCP port (docs/design/wire_format.md, "session"):
//   client: Hello                    server: HelloReply
//   for each path of the reply, until one works, and for each address of this
//   side that the path may start from while the two ends find no way to one
//   another:
//     client: connects again, Attach; PathStart     server: PathReply
//     client: probe through the path, and only when that came
//                                    server: probe through the path
//     client: Ready                  server: Ready, or PathReply with an error

#include <poll.h>

#include <memory>
#include <optional>
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
#include "transport/links/channel.h"
#include "transport/links/link.h"
#include "transport/loop/socket.h"
#include "transport/loop/stream.h"
#include "transport/loop/waker.h"
#include "transport/paths/path_resources.h"
#include "transport/session/session_socket.h"

namespace refract::transport {

// A working path answers a probe within milliseconds. The next path must get
// its turn well before the handshake times out.
inline constexpr absl::Duration kProbeTimeout = absl::Seconds(1);

// Passes connections that begin with Attach to the handshake that waits for
// them. Thread-safe.
class AttachBroker {
 public:
  void Open(const std::string& token, std::shared_ptr<Waker> waker);
  void Close(const std::string& token);
  // False: no handshake waits for this token.
  bool Deliver(const std::string& token, proto::TransportPath path,
               Stream socket);
  // Invalid if the connection has not come yet.
  Stream Take(const std::string& token, proto::TransportPath path);

 private:
  struct Waiting {
    std::shared_ptr<Waker> waker;
    absl::flat_hash_map<int, Stream> sockets;  // by path
  };
  absl::Mutex mu_;
  absl::flat_hash_map<std::string, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

// The arguments of a client's attempts to connect.
struct Dial {
  const ClientOptions& options;
  const HostPort& address;
  std::vector<proto::TransportPath> paths;  // to offer, best first
  std::string client;                       // Hello.client
  uint64_t epoch = 0;                       // of this attempt
  uint64_t oldest_live_epoch = 0;           // Hello.oldest_live_epoch
  std::vector<ClientOffer> offers;          // Hello.models
  // Polling thread of the link: its waker for this link, and the resources that
  // its links share.
  std::shared_ptr<Waker> link_waker;
  PathResources* resources = nullptr;
  // Rails (DataPath::rail) to use only if there is no other rail.
  std::vector<std::string> avoid_rails;
};

// The result of an attempt to connect, whether or not it succeeded.
struct DialReport {
  // Of the server's process; empty: no answer came.
  std::string server_process;
  std::vector<proto::TransportPath> asked;  // dial.paths
  // Paths of `asked` that the server has, too.
  std::vector<proto::TransportPath> offered;
  // Paths that failed.
  struct Failure {
    proto::TransportPath path = proto::TRANSPORT_PATH_UNSPECIFIED;
    std::string rail;  // rail tried last; empty: none
    absl::Status why;
  };
  std::vector<Failure> failed;
};

// Connects and shakes hands, within options.handshake_timeout. Errors: an error
// of `wait`; Unavailable, DeadlineExceeded; InvalidArgument for a peer that
// does not speak this protocol; or the server's reason for refusing.
absl::StatusOr<Established> ClientHandshake(const Dial& dial, const Wait& wait,
                                            DialReport* report);

// Returns an arrived frame; nullopt: none yet, so wait. Sends queued frames. A
// frame that closes the session is returned as the error in it.
absl::StatusOr<std::optional<SessionFrame>> TryFrame(SessionSocket& session);
// The events that a wait for the next frame needs.
inline short FrameEvents(const SessionSocket& session) {
  return session.has_unsent() ? POLLIN | POLLOUT : POLLIN;
}
// The next frame within `deadline`.
absl::StatusOr<SessionFrame> AwaitFrame(SessionSocket& session,
                                        const Wait& wait, absl::Time deadline);

proto::WireStatus ToWire(const absl::Status& status, size_t max_text_bytes);
// Codes that absl does not know become kUnknown.
absl::Status FromWire(const proto::WireStatus& status);

// The text that each side sends through a path to prove it. The texts differ,
// so that an echo proves nothing.
std::string ClientProbe(absl::string_view token);
std::string ServerProbe(absl::string_view token);

// Heartbeat intervals. `own`: the interval that this side asks for; the other
// values are announced by the peer and not trusted: intervals are clamped to 10
// ms … 1 h.
struct HeartbeatTimes {
  absl::Duration interval;  // to send at
  absl::Duration suspect_after;
};
HeartbeatTimes AgreeOnHeartbeats(absl::Duration own_interval,
                                 absl::Duration own_liveness,
                                 uint64_t peer_interval_us,
                                 uint64_t peer_liveness_us,
                                 uint64_t peer_features);
// The features of this version: bits of proto::Feature.
inline constexpr uint64_t kFeatures =
    proto::FEATURE_HEARTBEAT_INTERVAL | proto::FEATURE_MORE_PATH_STARTS |
    proto::FEATURE_MODEL_STATES | proto::FEATURE_OFFERS |
    proto::FEATURE_REQUEST_IDS | proto::FEATURE_CALL_TIMES |
    proto::FEATURE_PRIORITIES;
// Most PathStarts of a handshake besides one per path, for further addresses.
inline constexpr int kMorePathStarts = 3;

proto::OfferedModel ToProto(const ModelOffer& offer);
ModelOffer FromProto(const proto::OfferedModel& model);
// InvalidArgument: a text is longer than the limits below.
absl::Status CheckOfferedModel(const proto::OfferedModel& model);

// Longest model name in an offer, and longest reason of its refusal: with
// these, kMaxModelOffers fit in a frame.
inline constexpr size_t kMaxModelNameBytes = 128;
inline constexpr size_t kMaxVerdictTextBytes = 192;
// Longest name and value of a setting in an offer.
inline constexpr size_t kMaxSettingBytes = 64;
inline constexpr size_t kClientBytes = 16;  // Hello.client

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_HANDSHAKE_H_
