#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_RECEIVE_QUEUE_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_RECEIVE_QUEUE_H_

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/transport/verbs_sim/nic/nic.h"

namespace refract::transport::sim {

// Receive requests without buffers, shared by queue pairs.
class ReceiveQueueState {
 public:
  ReceiveQueueState(Nic& nic, uint32_t capacity)
      : nic_(nic), capacity_(capacity) {
    ++nic_.shared_queues;
  }
  ~ReceiveQueueState() { --nic_.shared_queues; }

  // 0 or an errno.
  int Post(const ibv_recv_wr& request) {
    if (nic_.broken) return EIO;
    if (request.num_sge != 0) {
      nic_.AddViolation("receive request with a buffer");
      return EINVAL;
    }
    if (requests_.size() >= capacity_) {
      nic_.AddViolation(
          absl::StrCat("shared receive queue of ", capacity_, " overflows"));
      return ENOMEM;
    }
    requests_.push_back(request.wr_id);
    return 0;
  }
  // The oldest request; nullopt: there is none.
  std::optional<uint64_t> Take() {
    if (requests_.empty()) return std::nullopt;
    const uint64_t id = requests_.front();
    requests_.pop_front();
    return id;
  }
  bool empty() const { return requests_.empty(); }

  int users = 0;  // queue pairs

 private:
  Nic& nic_;
  const uint32_t capacity_;
  std::deque<uint64_t> requests_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_RECEIVE_QUEUE_H_
