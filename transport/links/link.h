#ifndef REFRACT_TRANSPORT_LINKS_LINK_H_
#define REFRACT_TRANSPORT_LINKS_LINK_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/session.pb.h"
#include "transport/datapath.h"
#include "transport/links/channel.h"
#include "transport/messages/endpoint.h"
#include "transport/session/session_socket.h"

namespace refract::transport {

// An offer of a client. `key` is never used for another offer of that client.
struct ClientOffer {
  uint64_t key = 0;
  ModelOffer offer;
};

// Offers of one client that a handler has accepted. The destructor ends them:
// their connection is over.
class HeldOffers {
 public:
  explicit HeldOffers(Handler* handler) : handler_(handler) {}
  HeldOffers(HeldOffers&& other) noexcept
      : handler_(other.handler_), models_(std::exchange(other.models_, {})) {}
  HeldOffers& operator=(HeldOffers&& other) noexcept {
    std::swap(handler_, other.handler_);
    std::swap(models_, other.models_);
    return *this;
  }
  ~HeldOffers() {
    for (const size_t model : models_) handler_->OnOfferEnd(model, false);
  }
  // `model`: a result of OnOffer().
  void Add(size_t model) { models_.push_back(model); }
  // Drops the offers without ending them: the server is being destroyed.
  void Forget() { models_.clear(); }
  void Withdraw(size_t model) {
    const auto held = std::find(models_.begin(), models_.end(), model);
    if (held == models_.end()) return;
    models_.erase(held);
    handler_->OnOfferEnd(model, true);
  }

 private:
  Handler* handler_;
  std::vector<size_t> models_;
};

// The result of a handshake.
struct Established {
  SessionSocket session;
  std::unique_ptr<DataPath> path;
  proto::TransportPath path_kind = proto::TRANSPORT_PATH_UNSPECIFIED;
  std::string path_name;
  std::string rail;  // DataPath's
  EndpointSetup setup;
  uint64_t epoch = 0;
  std::string peer;                   // host name, for logs
  absl::Duration heartbeat_interval;  // to send at
  absl::Duration suspect_after;       // silence of the peer
  // Server: the client's name, and the oldest epoch that it still uses.
  std::string client;
  uint64_t oldest_live_epoch = 0;
  int max_in_flight = 0;
  std::vector<absl::Status> models;  // per offer
  std::vector<size_t> model_ids;     // server: the handler's, per offer
  std::vector<absl::Status> told;    // server: per offer, as the reply said
  bool takes_model_states = false;   // server: whether the client does
  // Whether the peer has FEATURE_OFFERS.
  bool takes_offers = false;
  bool takes_request_ids = false;      // client: whether the server does
  bool sends_call_times = false;       // the same
  bool takes_priorities = false;       // the same
  HeldOffers held{nullptr};            // server
  std::vector<uint64_t> offered_keys;  // client: per offer
};

// An established connection: message layer, control frames and heartbeats, in
// steps that never block, for a PollLoop to run. Belongs to that loop's thread;
// other threads reach it through the owner's queues and LinkMemory::waker.
class Link {
 public:
  // Handles the frames of one role. An error ends the link.
  using FrameHandler = std::function<absl::Status(const SessionFrame&)>;

  Link(Established established, base::Clock* clock,
       absl::Duration liveness_timeout, MessageSink* sink,
       FrameHandler on_frame);
  // Marks the memory as closed, then destroys the path, then frees the memory
  // that the peer could reach through it.
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // One bounded round; adds the number of actions to `worked`. An error
  // says why the link is over: kInvalidArgument when the peer broke the
  // protocol, kUnavailable when it is gone, silent, or closed on purpose. The
  // owner then destroys the link.
  absl::Status Step(absl::Time now, int* worked);
  // Time of the next heartbeat to send or miss, or of the endpoint's next
  // step.
  absl::Time next_timer() const;

  // Whether the peer has been silent for longer than an honest peer may be.
  bool suspect() const { return suspect_; }
  // Whether the link ended because its data path failed, on either side, while
  // the session worked.
  bool path_failed() const { return path_failed_; }
  // Whether the peer ended the link.
  bool closed_by_peer() const { return closed_by_peer_; }

  // As PollTask's.
  bool Arm() { return !session_event_ && path_->Arm(); }
  bool cheap_poll() const { return path_->capabilities().cheap_poll; }
  int path_fd() const { return path_->fd(); }
  int session_fd() const { return session_.fd(); }
  bool session_wants_write() const { return session_.has_unsent(); }
  void OnSessionEvent() { session_event_ = true; }

  absl::Status SendFrame(FrameKind kind,
                         const google::protobuf::MessageLite& message) {
    return session_.Send(kind, message);
  }
  // If the peer still listens, tells it the reason and whether the path failed.
  void SayClose(const absl::Status& why);

  Endpoint& endpoint() { return endpoint_; }
  const Endpoint& endpoint() const { return endpoint_; }
  const std::shared_ptr<LinkMemory>& memory() const { return memory_; }

 private:
  absl::Status RunEndpoint(absl::Time now, int* worked);
  absl::Status ReadSession(absl::Time now);
  absl::Status CheckTimers(absl::Time now);

  const absl::Duration liveness_timeout_;
  const absl::Duration heartbeat_interval_;
  const absl::Duration suspect_after_;
  SessionSocket session_;
  const std::shared_ptr<LinkMemory> memory_;
  const FrameHandler on_frame_;
  // Destroyed after the path: it holds messages that the peer reads.
  Endpoint endpoint_;
  std::unique_ptr<DataPath> path_;

  bool session_event_ = true;  // the session may have something to read
  bool suspect_ = false;
  bool path_failed_ = false;
  bool closed_by_peer_ = false;
  absl::Time last_heard_;
  absl::Time next_heartbeat_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LINKS_LINK_H_
