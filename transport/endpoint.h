#ifndef REFRACT_TRANSPORT_ENDPOINT_H_
#define REFRACT_TRANSPORT_ENDPOINT_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "transport/datapath.h"
#include "transport/link_memory.h"
#include "transport/slots.h"
#include "transport/wire.h"

namespace refract::transport {

// What the handshake agreed on for one direction and the other.
struct EndpointSetup {
  std::shared_ptr<LinkMemory> memory;
  RemoteRegion peer_slots;
  RemoteRegion peer_source;
  int peer_num_slots = 0;
  size_t peer_slot_bytes = 0;
  int num_slots = 0;
  size_t slot_bytes = 0;
  size_t eager_bytes = 0;        // longer ones are pulled by the peer
  size_t max_receive_bytes = 0;  // of a message
  uint32_t epoch = 0;
  MessageKind receives = MessageKind::kRequest;
};

struct EndpointCounters {
  uint64_t bytes_sent = 0;  // headers, tables, texts, padding and payload
  uint64_t bytes_received = 0;
  uint64_t messages_sent = 0;
  uint64_t stale_dropped = 0;  // of an old epoch
};

// The message layer of one connection, the same on both sides: puts messages
// into granted slots, announces long ones there and lets the receiver get them,
// validates what arrives, and gives slots back. Belongs to one thread.
class Endpoint {
 public:
  // `text` is the status text of a response.
  using Receiver = std::function<absl::Status(
      const MessageHeader& header, std::string text,
      std::unique_ptr<IncomingMessage::Impl> message)>;

  // `path` outlives the endpoint.
  Endpoint(DataPath* path, EndpointSetup setup, Receiver receiver);

  // Queues; Progress sends as slots are granted. `deadline` InfiniteFuture:
  // none.
  void Send(std::unique_ptr<OutgoingMessage::Impl> message, uint64_t id,
            absl::Time deadline);
  // Drops a message that still waits for a slot. False: not there (any more).
  bool Unsend(uint64_t id);
  // Gives up on a message whose pull has not ended. No effect on others.
  void Ignore(uint64_t id);

  // One round: takes completions, runs the receiver, posts what can be posted.
  // An error ends the connection: kInvalidArgument when the peer broke the
  // protocol. Adds to `worked` what was done and to `heard` what the peer did.
  absl::Status Progress(absl::Time now, int* worked, int* heard);

  // Nothing waits to be sent or taken by the peer.
  bool all_sent() const { return waiting_.empty() && sent_.empty(); }
  size_t num_waiting() const { return waiting_.size(); }  // for a slot
  const EndpointCounters& counters() const { return counters_; }

 private:
  struct Waiting {
    std::unique_ptr<OutgoingMessage::Impl> message;
    uint64_t id;
    absl::Time deadline;
  };
  // A message on its way. Its memory is free again once the put completed and,
  // if the peer pulls it, once the peer credited the slot. The slot itself may
  // be in use by the next message before the put's completion is seen.
  struct Sent {
    ArenaBlock block;
    bool put_done = false;
    bool taken = false;  // eager, or credited
  };
  struct Pull {
    MessageHeader header;
    std::string text;
    std::vector<WireTensor> tensors;
    uint16_t slot = 0;
    ArenaBlock block;
    size_t requested = 0;
    int outstanding = 0;
    bool ignored = false;
    bool done_requesting() const {
      return ignored || requested == header.payload_bytes();
    }
  };

  absl::Status OnNotify(uint32_t imm_bits);
  absl::Status OnCredit(SlotGrant grant);
  absl::Status OnMessage(SlotGrant grant);
  absl::Status OnPulled(uint64_t context);
  absl::Status Deliver(Pull& pull);
  void FinishPut(uint64_t context);
  void ReleaseIfDone(uint64_t context);
  // Gives the slot back; `now` also when few are owed.
  void Owe(uint16_t slot, bool now);
  absl::Status PostCredits();
  absl::Status PostMessages(absl::Time now);
  absl::Status PostGets();

  DataPath* const path_;
  const EndpointSetup setup_;
  const Receiver receiver_;
  EndpointCounters counters_;
  std::vector<Completion> completions_;

  // Sending.
  SendSlots send_slots_;
  std::deque<Waiting> waiting_;
  uint64_t next_context_ = 0;
  absl::flat_hash_map<uint64_t, Sent> sent_;  // by context
  std::vector<uint64_t> pulled_in_slot_;      // context, per slot of the peer

  // Receiving.
  ReceiveSlots receive_slots_;
  std::vector<uint16_t> returned_;
  std::deque<SlotGrant> owed_;
  bool pay_now_ = false;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Pull>> pulls_;  // by context
  std::deque<uint64_t> to_request_;  // pulls with bytes to ask for, in order
  int outstanding_gets_ = 0;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_ENDPOINT_H_
