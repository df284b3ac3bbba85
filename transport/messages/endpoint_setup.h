#ifndef REFRACT_TRANSPORT_MESSAGES_ENDPOINT_SETUP_H_
#define REFRACT_TRANSPORT_MESSAGES_ENDPOINT_SETUP_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/process/byte_budget.h"
#include "transport/datapath.h"
#include "transport/links/link_memory.h"
#include "transport/messages/wire.h"
#include "transport/pulls/pull_scheduler.h"

namespace refract::transport {

// The result of the handshake for both directions.
struct EndpointSetup {
  std::shared_ptr<LinkMemory> memory;
  RemoteRegion peer_slots;
  RemoteRegion peer_source;
  int peer_num_slots = 0;
  size_t peer_slot_bytes = 0;
  int num_slots = 0;
  size_t slot_bytes = 0;
  size_t eager_bytes = 0;        // longer messages are pulled
  size_t max_receive_bytes = 0;  // of a message
  uint32_t epoch = 0;
  MessageKind receives = MessageKind::kRequest;
  // Longest time without a completed get while gets are outstanding, and
  // likewise for puts; an idle path is probed by an empty get each quarter of
  // it. Infinite: no probes, and no limit.
  absl::Duration progress_timeout = absl::InfiniteDuration();
  // Bounds the payloads of all connections, from their announcement to the end
  // of their message; outlives the messages. Null: no bound.
  base::ByteBudget* budget = nullptr;
  // Of the polling thread; outlives the endpoint. Null: the endpoint's own.
  PullScheduler* pulls = nullptr;
};

struct EndpointCounters {
  uint64_t bytes_sent = 0;  // headers, tables, texts, padding and payload
  uint64_t bytes_received = 0;
  uint64_t messages_sent = 0;
};

// Error of a path that refused `what` for good.
absl::Status PostError(absl::string_view what);

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MESSAGES_ENDPOINT_SETUP_H_
