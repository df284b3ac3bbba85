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
  // A valid, complete message. `text`: the status text of a response, valid
  // during the call.
  virtual absl::Status OnMessage(const MessageHeader& header,
                                 absl::string_view text,
                                 IncomingMessage::ImplPtr message) = 0;
  // The deadline of a message to be pulled that arrived at `now`;
  // InfiniteFuture: none. The default reads it from the header.
  virtual absl::Time DeadlineOf(const MessageHeader& header,
                                absl::Time now) const;
  // A valid message was announced and will be pulled. An error refuses it;
  // OnRefused is then called with that error. `tensors` have no data yet.
  virtual absl::Status OnAnnounced(const MessageHeader& header,
                                   absl::Time deadline,
                                   absl::Span<const base::TensorView> tensors) {
    return absl::OkStatus();
  }
  // A valid message was not pulled: kDeadlineExceeded if its deadline passed
  // first; or the status that OnAnnounced() returned.
  virtual absl::Status OnRefused(const MessageHeader& header,
                                 const absl::Status& why) = 0;
  // A valid message is not pulled to its end, because of Ignore().
  virtual void OnIgnored(const MessageHeader& header) {}
};

// The receiving half of an Endpoint: validates what the peer puts into its
// slots, pulls long messages when the scheduler says so, passes complete
// messages to the sink, and returns slots. Belongs to the polling thread, as
// the scheduler does, but may be made on another thread.
class MessageReceiver final : public PullConnection {
 public:
  // All must outlive this object; `path` must be destroyed before it.
  MessageReceiver(DataPath* path, const EndpointSetup* setup,
                  EndpointCounters* counters, MessageSink* sink);
  // Frees the memory that gets were to fill; the path must be destroyed.
  ~MessageReceiver() override;

  // Errors end the connection: InvalidArgument when the peer broke the
  // protocol, else the sink's error.
  //
  // Call when a message is in a slot.
  absl::Status OnMessage(SlotGrant grant, absl::Time now);
  // Call when a get of this side completed.
  absl::Status OnGet(uint64_t context, absl::Time now);

  // Gives up a message whose pull has not ended. False: there is no such pull.
  bool Ignore(uint64_t id);

  // Begins a round: reports pulls that came too late, and retries operations
  // that waited for memory or for room in the path.
  absl::Status Resume() {
    if (attached_ && !waiting_ && !any_ended_) return absl::OkStatus();
    return ResumeWaiting();
  }
  // Takes the slots that readers returned, if credits are due for them.
  void TakeReturns();
  // Whether enough credits are owed, or the sender needs them now.
  bool credits_are_due() const { return pay_now_; }
  absl::Status PostCredits();
  // Call in a round without completions: does what need not happen between the
  // next message's arrival and the sink.
  void ExpectNext() {
    if (expects_) return;
    expects_ = true;
    PrepareNext();
  }
  // When PostGets is due if no event comes before: a get is overdue.
  absl::Time next_timer() const { return scheduler_->OverdueAt(*this); }
  // Lets the scheduler post gets, for the connection whose turn it is. Adds
  // their number to `posted`.
  absl::Status PostGets(absl::Time now, int* posted);

  Post PostChunk(ScheduledPull& pull, size_t bytes, absl::Time now) override;

 private:
  struct PulledMessage : ScheduledPull {
    bool in_use = false;
    bool ignored = false;
    // No further get: it ends in the next round, unless a get is under way.
    bool ended = false;
    absl::Status refusal;  // error: it is not delivered
    MessageHeader header;
    std::string text;
    IncomingMessage::ImplPtr message;
    size_t requested = 0;  // bytes of the payload requested
  };

  void PrepareNext();
  absl::Status ResumeWaiting();
  absl::Status StartPull(uint16_t slot, const MessageHeader& header,
                         absl::string_view text,
                         IncomingMessage::ImplPtr message, absl::Time now);
  absl::Status HoldMemory(PulledMessage& pull) const;
  PullConnection::Post EndEarly(PulledMessage& pull, absl::Status refusal);
  uint16_t SlotOf(const PulledMessage& pull) const {
    return static_cast<uint16_t>(&pull - pulls_.data());
  }
  // The payload is complete, or the pull was cancelled or refused.
  absl::Status EndPull(PulledMessage& pull);
  absl::Status Deliver(PulledMessage& pull);
  void WakeOwner();
  // Returns the slot; `now`: also when few credits are owed.
  void Owe(uint16_t slot, bool now);

  DataPath* const path_;
  const EndpointSetup* const setup_;
  EndpointCounters* const counters_;
  MessageSink* const sink_;
  const std::unique_ptr<PullScheduler> own_scheduler_;
  PullScheduler* const scheduler_;
  size_t max_get_bytes_ = 0;
  bool attached_ = false;
  bool waiting_ = false;  // the scheduler skips it until Resume
  bool in_post_gets_ = false;
  bool any_ended_ = false;
  absl::Status post_status_;  // error of a get that PostChunk could not post

  // Private copy of a long table and text in a slot: the peer may still write
  // to the slot.
  std::vector<std::byte> copy_;
  IncomingMessage::ImplPtr next_;  // for the next message; may be null

  ReceiveSlots slots_;
  std::vector<uint16_t> returned_;
  RingQueue<SlotGrant> owed_;
  bool pay_now_ = false;
  bool expects_ = false;        // PrepareNext()'s guess is the latest
  bool sender_is_dry_ = false;  // as last told to LinkMemory::returns
  // By the slot of the descriptor, which is returned when the pull ends.
  std::vector<PulledMessage> pulls_;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_MESSAGE_RECEIVER_H_
