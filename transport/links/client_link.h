#ifndef REFRACT_TRANSPORT_LINKS_CLIENT_LINK_H_
#define REFRACT_TRANSPORT_LINKS_CLIENT_LINK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/session.pb.h"
#include "transport/links/channel.h"
#include "transport/links/link.h"
#include "transport/links/link_memory.h"
#include "transport/loop/intrusive_heap.h"
#include "transport/loop/mailbox.h"
#include "transport/loop/poll_loop.h"

namespace refract::transport {

// Written by the polling thread, read by any. Sums over all links of a client
// and over its life.
struct ClientCounters {
  std::atomic<int> in_flight = 0;
  std::atomic<uint64_t> bytes_sent = 0;
  std::atomic<uint64_t> bytes_received = 0;
  std::atomic<uint64_t> messages_sent = 0;
  std::atomic<uint64_t> losses = 0;
  std::atomic<uint64_t> suspicions = 0;
  std::atomic<uint64_t> path_switches = 0;
  std::atomic<uint64_t> path_failures = 0;
  std::atomic<uint64_t> rail_pauses = 0;
};

// Facts of a link that its handshake agreed on.
struct LinkFacts {
  proto::TransportPath path = proto::TRANSPORT_PATH_UNSPECIFIED;
  std::string path_name;
  std::string rail;  // DataPath's
  uint64_t epoch = 0;
  std::string peer;            // host name
  std::string server_process;  // DialReport's
  int max_in_flight = 0;
  bool takes_request_ids = false;
  bool sends_call_times = false;
  bool takes_priorities = false;
};

// A request on its way from Client::Send to a link.
struct ClientRequest {
  OutgoingMessage::ImplPtr message;
  absl::Time deadline;
  std::stop_token cancel;
  Client::Callback done;

  // Runs `done`; call once.
  void Finish(ClientCounters* counters,
              absl::StatusOr<IncomingMessage> response);
};

// An established connection of a client: sends its requests, matches the
// answers, and ends requests that are cancelled or late. Belongs to the thread
// of the PollLoop that runs it.
class ClientLink final : public PollTask, private MessageSink {
 public:
  // Receives events, during Step. Must outlive the link.
  class Owner {
   public:
    virtual ~Owner() = default;
    // The server takes no more requests.
    virtual void OnGoaway(ClientLink& link) = 0;
    // Results of link.offer() changed.
    virtual void OnModels(ClientLink& link) = 0;
    // The present offers, and a number that changes with them.
    virtual std::vector<ClientOffer> offers() const = 0;
    virtual uint64_t offers_version() const = 0;
    // link.suspect() changed.
    virtual void OnSuspect(ClientLink& link) = 0;
    // The link has ended: its requests fail next, and then it is destroyed.
    virtual void OnEnd(ClientLink& link, const absl::Status& why) = 0;
  };

  // `next_id` is the source of message ids: an id is never used twice, also not
  // by another link.
  ClientLink(const ClientOptions& options, Established established,
             std::string server_process, ClientCounters* counters,
             uint64_t* next_id, Owner* owner);
  ~ClientLink() override = default;

  // `request` was allocated from memory(). A Step must follow.
  void Start(ClientRequest request);
  // No more requests will be allocated: the link ends when all allocated
  // requests have been answered or dropped. A Step must follow.
  void Drain() { draining_ = true; }
  // Tells the server, and fails every request. Does not call the owner.
  void Close(const absl::Status& why);
  const std::shared_ptr<LinkMemory>& memory() const { return link_.memory(); }
  const LinkFacts& facts() const { return facts_; }
  // An offer as the server knows it.
  struct Offered {
    uint16_t number = 0;  // in headers
    // OK: requests may use it. From the handshake and later updates.
    absl::Status status;
  };
  // Null: the server does not know the offer.
  const Offered* offer(uint64_t key) const {
    const auto found = offered_.find(key);
    return found == offered_.end() ? nullptr : &found->second;
  }
  bool suspect() const { return suspect_; }
  bool goaway() const { return goaway_; }
  bool path_failed() const { return link_.path_failed(); }

  Result Step(absl::Time now) override;
  absl::Time next_timer() const override;
  bool Arm() override { return link_.Arm(); }
  bool cheap_poll() const override { return link_.cheap_poll(); }
  int data_fd() const override { return link_.path_fd(); }
  int control_fd() const override { return link_.session_fd(); }
  bool control_wants_write() const override {
    return link_.session_wants_write();
  }
  void OnControlEvent() override { link_.OnSessionEvent(); }

 private:
  // Runs on the thread that cancels a request. The request's end waits for it,
  // so the link still exists.
  struct OnCancel {
    ClientLink* link;
    uint64_t id;
    void operator()() const noexcept {
      link->cancelled_.Push(id);
      link->memory()->waker->Wake();
    }
  };
  // A request that was sent and not answered.
  struct Pending {
    uint64_t id = 0;  // 0: not in use
    Client::Callback done;
    absl::Time deadline;
    RequestToken token;
    std::optional<std::stop_callback<OnCancel>> on_cancel;
    HeapSlot in_deadlines;
  };
  struct Earlier {
    bool operator()(const Pending& a, const Pending& b) const;
  };

  absl::Status TryStep(absl::Time now, int* worked);
  void ExpireRequests(absl::Time now);
  void EndCancelled();
  // Ends a cancelled or late request, and tells the server.
  void GiveUp(Pending& pending, const absl::Status& why);
  // Null: no such request is pending.
  const Pending* Find(uint64_t id) const;
  // Removes the request from this link and returns its callback.
  Client::Callback Take(Pending& pending);
  absl::Status OnMessage(const MessageHeader& header, absl::string_view text,
                         IncomingMessage::ImplPtr message) override;
  // The deadline of an answer is the deadline of its request.
  absl::Time DeadlineOf(const MessageHeader& header,
                        absl::Time now) const override;
  // Nothing to do: the timer of the request ends it.
  absl::Status OnRefused(const MessageHeader&, const absl::Status&) override {
    return absl::OkStatus();
  }
  absl::Status OnFrame(const SessionFrame& frame);
  absl::Status OnModelStates(const SessionFrame& frame);
  // Tells the server of offers that changed since the last call.
  absl::Status SendOffers();
  absl::Status SendIfLong(proto::Offers& offers, size_t most_bytes);
  void Finish(Client::Callback done, absl::StatusOr<IncomingMessage> response);
  void Count();

  const ClientOptions& options_;
  const LinkFacts facts_;
  ClientCounters* const counters_;
  uint64_t* const next_id_;
  Owner* const owner_;
  // One per token. The lower bits of a message id give its request's
  // index.
  std::vector<Pending> pending_;
  std::vector<uint32_t> free_;  // indexes into pending_
  IntrusiveHeap<Pending, &Pending::in_deadlines, Earlier> deadlines_;
  Mailbox<uint64_t> cancelled_;          // message ids
  std::vector<uint64_t> now_cancelled_;  // scratch of EndCancelled
  const bool takes_offers_;
  absl::flat_hash_map<uint64_t, Offered> offered_;  // by key
  absl::flat_hash_map<uint32_t, uint64_t> key_of_;  // by number
  uint16_t next_number_ = 0;
  uint64_t told_version_ = 0;  // Owner::offers_version()
  bool goaway_ = false;
  bool draining_ = false;
  bool suspect_ = false;
  EndpointCounters counted_;
  Link link_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LINKS_CLIENT_LINK_H_
