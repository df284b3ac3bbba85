#ifndef REFRACT_TRANSPORT_MESSAGES_MESSAGE_RECEIVER_H_
#define REFRACT_TRANSPORT_MESSAGES_MESSAGE_RECEIVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "transport/datapath.h"
#include "transport/links/link_memory.h"
#include "transport/loop/ring_queue.h"
#include "transport/messages/endpoint_setup.h"
#include "transport/messages/slots.h"
#include "transport/messages/wire.h"
#include "transport/pulls/pull_scheduler.h"

namespace refract::transport {

// Context of operations whose completion is ignored: puts of credits, and gets
// of zero bytes.
inline constexpr uint64_t kNoContext = ~uint64_t{0};

// Receives the events of a MessageReceiver, on the polling thread, during a
// round of its own connection. Errors end the connection.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  // A valid message, all of it. `text` is the status text of a response and
  // lasts for the call.
  virtual absl::Status OnMessage(const MessageHeader& header,
                                 absl::string_view text,
                                 IncomingMessage::ImplPtr message) = 0;
  // The deadline of a message that is to be pulled and arrived `now`;
  // InfiniteFuture: none. By default as its header says.
  virtual absl::Time DeadlineOf(const MessageHeader& header,
                                absl::Time now) const;
  // A valid message is announced and will be pulled. An error refuses it, and
  // OnRefused is called with it. `tensors` have no data yet.
  virtual absl::Status OnAnnounced(const MessageHeader& header,
                                   absl::Time deadline,
                                   absl::Span<const base::TensorView> tensors) {
    return absl::OkStatus();
  }
  // A valid message that was not pulled: kDeadlineExceeded, its deadline passed
  // first; or the status that OnAnnounced() returned.
  virtual absl::Status OnRefused(const MessageHeader& header,
                                 const absl::Status& why) = 0;
  // A valid message is not pulled any further, because of Ignore().
  virtual void OnIgnored(const MessageHeader& header) {}
};

// The receiving half of an Endpoint: validates what the peer puts into its
// slots, pulls long messages when the scheduler says so, hands whole ones on,
// and gives slots back. Belongs to the polling thread, as the scheduler does,
// but may be made on another.
class MessageReceiver final : public PullConnection {
 public:
  // All outlive this, but `path` must be gone by the destructor.
  MessageReceiver(DataPath* path, const EndpointSetup* setup,
                  EndpointCounters* counters, MessageSink* sink);
  // Memory that gets were to fill is free again; the path must be gone.
  ~MessageReceiver() override;

  // Errors end the connection: InvalidArgument when the peer broke the
  // protocol, else what the sink returned.
  //
  // A message is in a slot.
  absl::Status OnMessage(SlotGrant grant, absl::Time now);
  // A get of ours completed.
  absl::Status OnGet(uint64_t context, absl::Time now);

  // Gives up on a message whose pull has not ended. False: there is no such.
  bool Ignore(uint64_t id);

  // Begins a round: tells of pulls that came too late, and what waited for
  // memory or for room in the path is tried again.
  absl::Status Resume();
  // Takes the slots that readers gave back.
  void TakeReturns();
  // Enough are owed to send them together, or the sender needs them now.
  bool credits_are_due() const { return pay_now_; }
  absl::Status PostCredits();
  // When PostGets is due although nothing happened: a get is overdue.
  absl::Time next_timer() const { return scheduler_->OverdueAt(*this); }
  // Has the scheduler post gets, for whichever connection's turn it is. Returns
  // how many.
  absl::StatusOr<int> PostGets(absl::Time now);

  Post PostChunk(ScheduledPull& pull, size_t bytes, absl::Time now) override;

 private:
  struct PulledMessage : ScheduledPull {
    bool in_use = false;
    bool ignored = false;
    // Ends without another get: at the next round, unless one is under way.
    bool ended = false;
    absl::Status refusal;  // not OK: why it is not delivered
    MessageHeader header;
    std::string text;
    IncomingMessage::ImplPtr message;
    size_t requested = 0;  // bytes of the payload
  };

  absl::Status StartPull(uint16_t slot, const MessageHeader& header,
                         absl::string_view text, absl::Time now);
  absl::Status HoldMemory(PulledMessage& pull) const;
  PullConnection::Post EndEarly(PulledMessage& pull, absl::Status refusal);
  uint16_t SlotOf(const PulledMessage& pull) const {
    return static_cast<uint16_t>(&pull - pulls_.data());
  }
  // The payload is complete, or the pull was cancelled or refused.
  absl::Status EndPull(PulledMessage& pull);
  absl::Status Deliver(PulledMessage& pull);
  void WakeOwner();
  // Gives the slot back; `now` also when few are owed.
  void Owe(uint16_t slot, bool now);

  DataPath* const path_;
  const EndpointSetup* const setup_;
  EndpointCounters* const counters_;
  MessageSink* const sink_;
  const std::unique_ptr<PullScheduler> own_scheduler_;
  PullScheduler* const scheduler_;
  size_t max_get_bytes_ = 0;
  bool attached_ = false;
  bool waiting_ = false;  // the scheduler holds us until Resume
  bool in_post_gets_ = false;
  bool any_ended_ = false;
  absl::Status post_status_;  // of a get that PostChunk could not post

  // Private copies of a slot's contents: the peer may go on writing to the
  // slot.
  std::vector<std::byte> table_;
  std::string text_;
  std::vector<WireTensor> tensors_;

  ReceiveSlots slots_;
  std::vector<uint16_t> returned_;
  RingQueue<SlotGrant> owed_;
  bool pay_now_ = false;
  bool sender_is_dry_ = false;  // as told to LinkMemory::returns
  // By the slot of the descriptor, which is returned when the pull has ended.
  std::vector<PulledMessage> pulls_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_MESSAGE_RECEIVER_H_
