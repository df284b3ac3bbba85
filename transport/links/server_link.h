#ifndef REFRACT_TRANSPORT_LINKS_SERVER_LINK_H_
#define REFRACT_TRANSPORT_LINKS_SERVER_LINK_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "transport/links/link.h"
#include "transport/links/server_call.h"
#include "transport/links/server_shared.h"
#include "transport/loop/poll_loop.h"
#include "transport/messages/recent_ids.h"
#include "transport/session/client_registry.h"

namespace refract::transport {

// A client's established connection: passes its requests to the handler and
// sends the answers. Belongs to the thread of the PollLoop that runs it.
class ServerLink final : public PollTask, private MessageSink {
 public:
  ServerLink(ServerShared* shared, std::string host, ConnectionCount count,
             ClientRegistry::Entry client, Established established);
  // Marks open calls as abandoned; their answers will be dropped.
  ~ServerLink() override;

  Result Step(absl::Time now) override;
  absl::Time next_timer() const override { return link_.next_timer(); }
  bool Arm() override { return link_.Arm(); }
  bool cheap_poll() const override { return link_.cheap_poll(); }
  int data_fd() const override { return link_.path_fd(); }
  int control_fd() const override { return link_.session_fd(); }
  bool control_wants_write() const override {
    return link_.session_wants_write();
  }
  void OnControlEvent() override { link_.OnSessionEvent(); }

  // Whether every given answer was sent and taken.
  bool all_sent() const { return link_.endpoint().all_sent(); }
  void SayClose(const absl::Status& why) { link_.SayClose(why); }

 private:
  struct Call {
    uint32_t number = 0;  // from ServerCalls
    size_t model = 0;     // from the handler
  };
  // Requests not yet answered, and answers not yet taken.
  size_t num_open() const {
    return calls_.size() + link_.endpoint().num_waiting();
  }
  absl::Status TryStep(absl::Time now, int* worked);
  void OnEnd(const absl::Status& status);
  void SendReplies();
  absl::Status SendModelStates();
  absl::Status OnOffers(const SessionFrame& frame);
  absl::Status OnMessage(const MessageHeader& header, absl::string_view text,
                         IncomingMessage::ImplPtr message) override;
  absl::Status OnAnnounced(const MessageHeader& header, absl::Time deadline,
                           absl::Span<const base::TensorView> tensors) override;
  absl::Status OnRefused(const MessageHeader& header,
                         const absl::Status& why) override;
  void OnIgnored(const MessageHeader& header) override;
  // InvalidArgument: not a request that this client may make now.
  absl::Status CheckRequest(const MessageHeader& header) const;
  absl::Status OnFrame(const SessionFrame& frame);
  absl::Status OnCancel(const SessionFrame& frame);

  ServerShared* const shared_;
  const std::string host_;
  const ConnectionCount count_;
  const ClientRegistry::Entry client_;
  // An offer of this client.
  struct Offered {
    absl::Status verdict;  // OK: agreed on
    size_t id = 0;         // the handler's number
    absl::Status told;     // state told to the client
    // A request cancelled by its client may arrive after the end of its offer,
    // because the session may overtake the data path: not a violation.
    bool withdrawn = false;
  };
  // Null: not offered, not agreed on, or withdrawn.
  const Offered* Agreed(uint32_t number) const {
    const auto found = offered_.find(number);
    return found == offered_.end() || !found->second.verdict.ok()
               ? nullptr
               : &found->second;
  }
  static absl::flat_hash_map<uint32_t, Offered> OffersOf(
      const Established& established);
  std::deque<uint32_t> withdrawn_offers_;  // the latest
  HeldOffers held_;
  const bool takes_model_states_;
  const bool takes_offers_;
  uint64_t told_version_ = 0;  // ModelStates'
  const size_t max_calls_;
  const std::shared_ptr<ServerCalls> shared_calls_;
  bool said_goaway_ = false;
  bool suspect_ = false;
  // Calls not yet answered, by message id.
  absl::flat_hash_map<uint64_t, Call> calls_;
  std::vector<ServerCalls::Reply> replies_;  // scratch of SendReplies
  // Ids of Cancel frames without a request here: the session may overtake the
  // data path, or the request was answered meanwhile.
  RecentIds withdrawn_;
  // By the number in headers, withdrawn_offers_ included.
  absl::flat_hash_map<uint32_t, Offered> offered_;
  Link link_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LINKS_SERVER_LINK_H_
