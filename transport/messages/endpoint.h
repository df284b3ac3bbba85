#ifndef REFRACT_TRANSPORT_MESSAGES_ENDPOINT_H_
#define REFRACT_TRANSPORT_MESSAGES_ENDPOINT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "transport/datapath.h"
#include "transport/links/link_memory.h"
#include "transport/messages/endpoint_setup.h"
#include "transport/messages/message_receiver.h"
#include "transport/messages/message_sender.h"
#include "transport/messages/progress_timer.h"

namespace refract::transport {

// The message layer of one connection, the same on both sides: puts messages
// into granted slots, announces long messages there and lets the receiver get
// them, validates arrivals, and gives slots back. Belongs to one polling thread
// from its first Progress on; may be made on another thread.
class Endpoint {
 public:
  // `sink` must outlive the endpoint. The destructor does not use `path`, which
  // must be destroyed by then: the memory that its gets fill is free again
  // afterwards.
  Endpoint(DataPath* path, EndpointSetup setup, MessageSink* sink);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Queues a message; Progress sends as slots are granted, the earliest
  // deadline first. `deadline` InfiniteFuture: none.
  void Send(OutgoingMessage::ImplPtr message, uint64_t id,
            absl::Time deadline) {
    sender_.Send(std::move(message), id, deadline);
  }
  // Drops a message that waits for a slot. False: no such message waits.
  bool Unsend(uint64_t id) { return sender_.Unsend(id); }
  // Gives up a message whose pull has not ended. False: there is no such pull.
  bool Ignore(uint64_t id) { return receiver_.Ignore(id); }

  // Runs one round: takes completions, calls the sink, and posts messages,
  // credits and gets. The round also posts gets of other connections whose turn
  // to pull it is, and wakes these connections. An error ends the connection:
  // kInvalidArgument when the peer broke the protocol, kUnavailable when the
  // path failed or stalled. Adds the number of actions to `worked`, and the
  // number of signs of life of the peer to `heard`.
  absl::Status Progress(absl::Time now, int* worked, int* heard);
  // Time of the next Progress if no event comes before. Call Progress at least
  // twice per EndpointSetup::progress_timeout in any case.
  absl::Time next_timer() const;
  // Whether the path has completed nothing for EndpointSetup::progress_timeout.
  bool stalled(absl::Time now) const {
    return puts_.expired(now) || gets_.expired(now);
  }

  // Whether no message waits to be sent or taken by the peer.
  bool all_sent() const { return sender_.all_sent(); }
  size_t num_waiting() const { return sender_.num_waiting(); }  // for a slot
  const EndpointCounters& counters() const { return counters_; }

 private:
  absl::Status OnCompletion(const Completion& completion, absl::Time now);
  absl::Status OnNotify(uint32_t imm_bits, absl::Time now);
  // Ends the connection when its path stalls, and asks an idle path for a sign
  // of life now and then.
  absl::Status WatchPath(bool put_completed, bool get_completed,
                         absl::Time now);

  DataPath* const path_;
  const EndpointSetup setup_;
  EndpointCounters counters_;
  std::vector<Completion> completions_;
  MessageSender sender_;
  MessageReceiver receiver_;
  ProgressTimer puts_;
  ProgressTimer gets_;
  absl::Time next_probe_;  // of the next empty get; any other get postpones it
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_ENDPOINT_H_
