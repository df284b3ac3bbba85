#ifndef REFRACT_TRANSPORT_LINK_H_
#define REFRACT_TRANSPORT_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "transport/datapath.h"
#include "transport/endpoint.h"
#include "transport/session_socket.h"

namespace refract::transport {

// What a handshake ends with.
struct Established {
  SessionSocket session;
  std::unique_ptr<DataPath> path;
  std::string path_name;
  EndpointSetup setup;
  uint64_t epoch = 0;
  std::string peer;  // host name, for logs
  absl::Duration peer_liveness_timeout;
  int max_in_flight = 0;
  std::vector<absl::Status> models;  // per offer
  std::vector<size_t> model_ids;     // server: the handler's, per offer
};

// An established connection: message layer, control frames, heartbeats and the
// sleep of its polling thread. Belongs to that thread; others reach it through
// the owner's queues and LinkMemory::waker.
class Link {
 public:
  // Frames that mean something only to one role. An error ends the link.
  using FrameHandler = std::function<absl::Status(const SessionFrame&)>;

  Link(Established established, base::Clock* clock,
       absl::Duration liveness_timeout, Endpoint::Receiver receiver,
       FrameHandler on_frame);
  // Marks the memory as closed.
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // One round of everything; sleeps when there was nothing to do, until the
  // peer, the waker or `wake_at`. An error says why the link is over:
  // kInvalidArgument when the peer broke the protocol, kUnavailable when it is
  // gone, silent, or closed on purpose. The owner then destroys the link.
  absl::Status Step(absl::Time wake_at);

  absl::Status SendFrame(FrameKind kind,
                         const google::protobuf::MessageLite& message) {
    return session_.Send(kind, message);
  }
  // Tells the peer why, if it still listens.
  void SayClose(const absl::Status& why);

  Endpoint& endpoint() { return endpoint_; }
  const std::shared_ptr<LinkMemory>& memory() const { return memory_; }

 private:
  absl::Status ReadSession(absl::Time now);
  absl::Status CheckTimers(absl::Time now);
  absl::Status Sleep(absl::Time wake_at);
  bool MaySpin(bool worked);

  base::Clock* const clock_;
  const absl::Duration liveness_timeout_;
  const absl::Duration heartbeat_interval_;
  SessionSocket session_;
  const std::unique_ptr<DataPath> path_;
  const std::shared_ptr<LinkMemory> memory_;
  const FrameHandler on_frame_;
  Endpoint endpoint_;

  absl::Time last_heard_;
  absl::Time last_session_read_;
  absl::Time next_heartbeat_;
  absl::Duration spin_window_;
  absl::Time idle_since_;
  bool spinning_ = false;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LINK_H_
