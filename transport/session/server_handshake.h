#ifndef REFRACT_TRANSPORT_SESSION_SERVER_HANDSHAKE_H_
#define REFRACT_TRANSPORT_SESSION_SERVER_HANDSHAKE_H_

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/session.pb.h"
#include "transport/links/channel.h"
#include "transport/links/link.h"
#include "transport/loop/stream.h"
#include "transport/loop/waker.h"
#include "transport/paths/path_resources.h"
#include "transport/paths/path_setup.h"
#include "transport/session/handshake.h"
#include "transport/session/model_states.h"
#include "transport/session/session_socket.h"

namespace refract::transport {

struct ServerHandshakeContext {
  const ServerOptions& options;
  Handler* handler;
  AttachBroker* broker;
  const std::vector<proto::TransportPath>& paths;  // allowed by the server
  const std::string& unix_socket;  // empty: none, so no local paths
  const std::string& process;      // PeerIdentity of this server
  // Polling thread of the link: its waker for this link, and the resources that
  // its links share.
  std::shared_ptr<Waker> link_waker;
  PathResources* resources;
  // Null: every model that the handler accepts can be served.
  const ModelStates* models = nullptr;
};

// The server's side of a handshake (handshake.h), in steps that never wait for
// the peer, so that a few threads serve any number of slow clients. A step
// takes milliseconds when it makes memory reachable for a device. Belongs to
// one thread.
class ServerHandshake {
 public:
  // `hello` was read from `session`. The broker wakes `waker` when a data
  // socket comes.
  ServerHandshake(const ServerHandshakeContext& context, SessionSocket session,
                  SessionFrame hello, absl::Time deadline,
                  std::shared_ptr<Waker> waker);
  ~ServerHandshake();
  ServerHandshake(const ServerHandshake&) = delete;
  ServerHandshake& operator=(const ServerHandshake&) = delete;

  // Goes on as far as possible. nullopt: not finished. An error says why the
  // client was refused or lost; a refused client was told.
  absl::StatusOr<std::optional<Established>> Step(absl::Time now);
  // Call before sleeping: appends the events that the next step waits for.
  // False: step again without sleeping.
  bool Arm(std::vector<pollfd>* fds);
  // Time of the next step if no event comes before.
  absl::Time next_timer() const;

 private:
  absl::Status Refuse(const absl::Status& why);
  absl::Status Answer(const SessionFrame& frame);
  void ChoosePaths();
  absl::Status OnFrame(const SessionFrame& frame, absl::Time now);
  absl::Status StartPath(const SessionFrame& frame, absl::Time now);
  // True: the data socket of `start_` came, or never will; it was answered.
  absl::StatusOr<bool> ContinuePath(absl::Time now);
  absl::StatusOr<std::unique_ptr<PathSetup>> MakeSetup(Stream socket);
  // True: the client's probe came, or will not come.
  absl::StatusOr<bool> ContinueProbe(absl::Time now);
  absl::Status ReplyPath(const absl::Status& status, const PathSetup* setup);
  absl::StatusOr<Established> Finish();

  const ServerHandshakeContext context_;
  const ServerOptions& options_;
  SessionSocket session_;
  const absl::Time deadline_;
  const std::string token_;
  std::optional<SessionFrame> hello_frame_;  // until it is answered
  proto::Hello hello_;
  proto::HelloReply reply_;
  int in_flight_ = 1;
  std::vector<absl::Status> verdicts_;
  std::vector<size_t> model_ids_;
  std::vector<absl::Status> told_;
  HeldOffers held_;

  int starts_left_ = 0;
  absl::flat_hash_map<int, int> starts_;  // by path
  // A path that waits for its data socket.
  std::optional<proto::PathStart> start_;
  std::unique_ptr<PathSetup> setup_;
  bool probing_ = false;  // the client is ready; its probe is awaited
  bool probed_ = false;
  absl::Time step_deadline_ = absl::InfiniteFuture();  // for the next frame
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_SERVER_HANDSHAKE_H_
