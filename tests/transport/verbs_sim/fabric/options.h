#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_OPTIONS_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_OPTIONS_H_

// The parts of a simulated fabric.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace refract::transport::sim {

// One device with one port and the cable to the switch. Limits of hardware are
// those of a common 100 Gb/s NIC, rounded.
struct NicOptions {
  std::string device = "sim0";
  uint64_t bits_per_second = 100'000'000'000;
  // Delay of the cable, each way.
  absl::Duration propagation = absl::Nanoseconds(300);
  // From PostSend until the device sees the request.
  absl::Duration post_latency = absl::Nanoseconds(300);
  // From a read request's arrival until its first response may leave.
  absl::Duration read_latency = absl::Nanoseconds(500);
  // From the deciding packet until Poll sees the completion: between the two,
  // drawn from the fabric's seed, in order within a queue.
  absl::Duration min_completion_latency = absl::Nanoseconds(200);
  absl::Duration max_completion_latency = absl::Nanoseconds(400);
  // Congestion notifications per queue pair are at least this far apart.
  absl::Duration cnp_interval = absl::Microseconds(4);
  // One packet in this many of a long write asks for an acknowledgement.
  uint32_t ack_every = 16;

  uint64_t max_message_bytes = uint64_t{1} << 30;
  uint64_t max_region_bytes = uint64_t{1} << 40;
  int max_regions = 1 << 20;
  int max_domains = 1 << 16;
  int max_queue_pairs = 1 << 17;
  int max_completion_queues = 1 << 16;
  int max_completion_entries = (1 << 22) - 1;
  int max_shared_queues = 1 << 14;
  int max_shared_entries = (1 << 15) - 1;
  int max_send_requests = 1 << 15;
  int max_segments = 30;
  uint32_t max_inline = 220;
  uint8_t max_reads = 16;          // max_qp_rd_atom
  uint8_t max_started_reads = 16;  // max_qp_init_rd_atom
  uint32_t mtu = 4096;
};

struct HostOptions {
  std::string name;  // empty: "host<i>"
  std::vector<NicOptions> nics = {NicOptions()};
};

struct FabricOptions {
  // Seed of all that is random: orders of simultaneous events, latencies,
  // fault probabilities, keys, progress per call in automatic mode.
  uint64_t seed = 1;
  // Events at the same virtual time happen in an order drawn from the seed;
  // false: in the order they were caused.
  bool shuffle_simultaneous = true;

  // The switch: stores a packet, then forwards it.
  absl::Duration switch_latency = absl::Nanoseconds(300);
  // Per output port; a packet that does not fit is dropped. 0: no bound.
  size_t switch_buffer_bytes = size_t{2} << 20;
  // A packet that finds more than this waiting is marked. 0: never.
  size_t mark_above_bytes = 0;

  // Nobody steps the time: calls into the devices do. See Fabric.
  bool automatic = false;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_OPTIONS_H_
