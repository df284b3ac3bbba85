#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_QUEUE_PAIR_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_QUEUE_PAIR_H_

// A reliable connected queue pair: its states and attributes. The requester
// handles sending, the responder handles answers.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "tests/transport/verbs_sim/nic/completion_queue.h"
#include "tests/transport/verbs_sim/nic/nic.h"
#include "tests/transport/verbs_sim/nic/receive_queue.h"
#include "tests/transport/verbs_sim/nic/requester.h"
#include "tests/transport/verbs_sim/nic/responder.h"

namespace refract::transport::sim {

class QueuePairState {
 public:
  struct Limits {
    uint32_t send_requests;
    uint32_t segments;
    uint32_t inline_bytes;
  };
  // Set by Modify, named as the fields of ibv_qp_attr.
  struct Attributes {
    int access = 0;
    uint32_t mtu = 0;  // bytes
    uint32_t remote_nic = 0;
    uint32_t remote_number = 0;
    uint8_t max_reads = 0;       // that may be open at a time
    uint8_t max_dest_reads = 0;  // that it may be asked for
    uint8_t timeout = 0;
    uint8_t retries = 0;
    uint8_t rnr_retries = 0;
    uint8_t min_rnr_timer = 0;
  };

  QueuePairState(Nic& nic, std::shared_ptr<Context> context, uint32_t domain,
                 const Limits& limits,
                 std::shared_ptr<CompletionQueueState> send_queue,
                 std::shared_ptr<CompletionQueueState> receive_queue,
                 std::shared_ptr<ReceiveQueueState> shared_receive_queue);
  ~QueuePairState();

  Nic& nic;
  const std::shared_ptr<Context> context;
  const uint32_t domain;
  const Limits limits;
  const std::shared_ptr<CompletionQueueState> send_queue;
  const std::shared_ptr<CompletionQueueState> receive_queue;
  const std::shared_ptr<ReceiveQueueState> shared_receive_queue;  // may be null
  const uint32_t number;
  Attributes attributes;
  Requester requester;
  Responder responder;

  ibv_qp_state state() const { return state_; }
  bool CanSend() const { return state_ == IBV_QPS_RTS; }
  bool CanAnswer() const {
    return state_ == IBV_QPS_RTR || state_ == IBV_QPS_RTS;
  }

  // 0 or an errno.
  int Modify(const ibv_qp_attr& attributes, int mask);
  void Receive(Packet& packet);
  // Both directions stop, posted requests are flushed, and `event` is raised
  // unless it is nullopt. Does nothing in the error state.
  void EnterError(std::optional<ibv_event_type> event);

  // Completes a header that goes to the peer.
  void Address(PacketHeader& header) const {
    header.destination_nic = attributes.remote_nic;
    header.destination_qp = attributes.remote_number;
    header.source_nic = nic.id;
    header.source_qp = number;
  }
  // Adds the queue pair to the text.
  void AddViolation(absl::string_view what);

 private:
  int CheckAttributes(const ibv_qp_attr& attributes, int mask) const;
  void NotifyCongestion();
  void Reset();

  ibv_qp_state state_ = IBV_QPS_RESET;
  Picoseconds next_cnp_ = 0;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_QUEUE_PAIR_H_
