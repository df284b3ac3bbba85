#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_COUNTERS_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_COUNTERS_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace refract::transport::sim {

// A port's counters. HardwareCounter() finds most of them under the names that
// mlx5 gives them in sysfs hw_counters, and under rxe's names if they differ.
struct PortCounters {
  uint64_t sent_packets = 0;
  uint64_t sent_bytes = 0;  // on the wire
  uint64_t received_packets = 0;
  uint64_t received_bytes = 0;
  uint64_t received_payload_bytes = 0;  // includes bytes that arrive twice
  uint64_t dropped_at_switch = 0;       // tail drop on the way to this port
  uint64_t dropped_by_fault = 0;        // sent here, taken by a rule
  uint64_t dropped_link_down = 0;       // sent or due here
  uint64_t crc_errors = 0;

  // Counted as the requester.
  uint64_t sequence_naks = 0;  // received
  uint64_t implied_naks = 0;   // a read response skipped one
  uint64_t rnr_naks = 0;       // received
  uint64_t ack_timeouts = 0;
  uint64_t retries_exceeded = 0;
  uint64_t failed_requests = 0;  // completions with an error of their own
  uint64_t flushed_requests = 0;
  // Counted as the responder.
  uint64_t out_of_sequence = 0;
  uint64_t duplicate_requests = 0;
  uint64_t out_of_receives = 0;   // sent an RNR NAK
  uint64_t refused_requests = 0;  // sent another NAK than of sequence
  // Congestion.
  uint64_t marked_packets = 0;  // received with the mark
  uint64_t cnps_sent = 0;
  uint64_t cnps_handled = 0;
};

// nullopt: no NIC has a counter of that name.
std::optional<uint64_t> CounterByName(const PortCounters& counters,
                                      absl::string_view name);

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_COUNTERS_H_
