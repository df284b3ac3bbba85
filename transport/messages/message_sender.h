#ifndef REFRACT_TRANSPORT_MESSAGES_MESSAGE_SENDER_H_
#define REFRACT_TRANSPORT_MESSAGES_MESSAGE_SENDER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "transport/datapath.h"
#include "transport/links/link_memory.h"
#include "transport/loop/intrusive_heap.h"
#include "transport/messages/endpoint_setup.h"
#include "transport/messages/slots.h"

namespace refract::transport {

// The sending half of an Endpoint. Messages wait for a slot of the peer, the
// earliest deadline first. An eager message is put into the slot completely; of
// a long message only the descriptor is put. A message keeps its memory until
// the peer has all of it. Not thread-safe.
class MessageSender {
 public:
  // All arguments must outlive the sender.
  MessageSender(DataPath* path, const EndpointSetup* setup,
                EndpointCounters* counters);
  ~MessageSender();

  // `deadline` InfiniteFuture: none.
  void Send(OutgoingMessage::ImplPtr message, uint64_t id, absl::Time deadline);
  // Drops a message that waits for a slot. False: no such message waits.
  bool Unsend(uint64_t id);

  // Call when a slot of the peer is free. InvalidArgument: it was not in use.
  absl::Status OnCredit(SlotGrant grant);
  // Call when a put of Post completed.
  absl::Status OnPut(uint64_t context);
  // Puts messages as long as slots are free.
  absl::Status Post(absl::Time now) {
    return num_waiting() == 0 ? absl::OkStatus() : PostWaiting(now);
  }

  size_t num_waiting() const { return urgent_.size() + background_.size(); }
  // Whether no message waits to be sent or taken by the peer.
  bool all_sent() const { return num_waiting() == 0 && num_sent_ == 0; }

 private:
  struct Earlier {
    bool operator()(const OutgoingMessage::Impl& a,
                    const OutgoingMessage::Impl& b) const;
  };
  using Waiting = IntrusiveHeap<OutgoingMessage::Impl,
                                &OutgoingMessage::Impl::waiting, Earlier>;
  // A message under way. Its memory is free again once the put completed and,
  // if the peer pulls it, once the peer credited the slot. The slot itself may
  // be in use by the next message before the put's completion is seen.
  struct Sent {
    OutgoingMessage::ImplPtr message;  // null: unused entry
    bool put_done = false;
    bool taken = false;  // the peer has it: eager, or credited
  };

  absl::Status PostWaiting(absl::Time now);
  // The heap whose top is sent next; null when both are empty.
  Waiting* Next();
  void ReleaseIfDone(uint32_t index);

  DataPath* const path_;
  const EndpointSetup* const setup_;
  EndpointCounters* const counters_;
  SendSlots slots_;
  // Messages that wait for a slot: with a deadline, and without. Owned.
  Waiting urgent_;
  Waiting background_;
  uint64_t next_sequence_ = 0;
  int passed_over_ = 0;         // urgent messages sent while others waited
  std::vector<Sent> sent_;      // index: context
  std::vector<uint32_t> free_;  // indexes into sent_
  size_t num_sent_ = 0;
  std::vector<uint32_t> pulled_in_slot_;  // of sent_, per slot of the peer
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_MESSAGE_SENDER_H_
