#ifndef REFRACT_TRANSPORT_VERBS_OPTIONS_H_
#define REFRACT_TRANSPORT_VERBS_OPTIONS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace refract::transport::verbs {

// Options of a path: two queue pairs, and its share of its hub. The two ends
// need not agree on limits; they tell each other.
struct PathOptions {
  // Requests of a path at the device, unfinished. Express carries puts and
  // notifications, bulk carries gets. Larger values cost completion-queue
  // entries, because a queue pair that breaks completes all of them.
  uint32_t express_requests = 256;
  uint32_t bulk_requests = 128;
  // Operations that a caller may have outstanding, at the device or waiting for
  // it. Powers of two.
  uint32_t max_puts = 1024;
  uint32_t max_gets = 64;
  // Notifications that the peer may send before Poll on this side takes them:
  // this many receive requests are reserved, so the peer never meets an empty
  // receive queue. A power of two, at least 16. 256 is above what the message
  // layer has under way by default (a message and a credit per slot), so the
  // message layer never waits for it.
  uint32_t notify_window = 256;

  // Longest put that travels in the request itself, so that the device need not
  // fetch it from memory. Bytes; devices may grant less.
  uint32_t inline_bytes = 220;
  // Reads under way on a queue pair; devices and peers may allow less.
  uint8_t max_reads = 16;

  // Time-out of an unacknowledged packet: 4.096 µs · 2^n; 14 is 67 ms.
  uint8_t ack_timeout = 14;
  // At most 6: on soft-RoCE 7 means unlimited.
  uint8_t retries = 6;
  // The notification window keeps receive requests posted, so a peer without a
  // receive request is a bug, not a state to wait in.
  uint8_t receiver_not_ready_retries = 6;
  uint8_t receiver_not_ready_timer = 12;  // 0.64 ms

  uint8_t hop_limit = 64;
};

// Options of the queues that several paths of one thread share.
struct HubOptions {
  // Most paths per hub. A poll group opens a further hub for more.
  int max_paths = 16;
  // An idle path posts a write of zero bytes this often: the write fails when
  // the route is broken or the peer's queue pair is gone, and takes no time of
  // the peer's processor. Real time. Zero: never.
  absl::Duration idle_probe_interval = absl::Milliseconds(200);
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_OPTIONS_H_
