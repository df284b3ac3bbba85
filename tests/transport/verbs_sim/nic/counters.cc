#include "tests/transport/verbs_sim/nic/counters.h"

namespace refract::transport::sim {
namespace {

struct Name {
  absl::string_view name;
  uint64_t PortCounters::*counter;
};

constexpr Name kNames[] = {
    // mlx5
    {"packet_seq_err", &PortCounters::sequence_naks},
    {"implied_nak_seq_err", &PortCounters::implied_naks},
    {"rnr_nak_retry_err", &PortCounters::rnr_naks},
    {"local_ack_timeout_err", &PortCounters::ack_timeouts},
    {"req_cqe_error", &PortCounters::failed_requests},
    {"req_cqe_flush_error", &PortCounters::flushed_requests},
    {"out_of_sequence", &PortCounters::out_of_sequence},
    {"duplicate_request", &PortCounters::duplicate_requests},
    {"out_of_buffer", &PortCounters::out_of_receives},
    {"resp_cqe_error", &PortCounters::refused_requests},
    {"rx_icrc_encapsulated", &PortCounters::crc_errors},
    {"np_ecn_marked_roce_packets", &PortCounters::marked_packets},
    {"np_cnp_sent", &PortCounters::cnps_sent},
    {"rp_cnp_handled", &PortCounters::cnps_handled},
    // rxe
    {"sent_pkts", &PortCounters::sent_packets},
    {"rcvd_pkts", &PortCounters::received_packets},
    {"out_of_seq_request", &PortCounters::out_of_sequence},
    {"rcvd_seq_err", &PortCounters::sequence_naks},
    {"rcvd_rnr_err", &PortCounters::rnr_naks},
    {"send_rnr_err", &PortCounters::out_of_receives},
    {"retry_exceeded_err", &PortCounters::retries_exceeded},
    {"completer_retry_err", &PortCounters::ack_timeouts},
};

}  // namespace

std::optional<uint64_t> CounterByName(const PortCounters& counters,
                                      absl::string_view name) {
  for (const Name& known : kNames) {
    if (known.name == name) return counters.*known.counter;
  }
  return std::nullopt;
}

}  // namespace refract::transport::sim
