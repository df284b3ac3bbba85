#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_RECEIVE_QUEUE_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_RECEIVE_QUEUE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/transport/verbs_sim/nic/nic.h"

namespace refract::transport::sim {

// Receive requests without buffers, shared by queue pairs.
class ReceiveQueueState {
 public:
  ReceiveQueueState(Nic& nic, std::shared_ptr<Context> context,
                    uint32_t capacity)
      : nic_(nic), context_(std::move(context)), capacity_(capacity) {
    ++nic_.shared_queues;
  }
  ~ReceiveQueueState() { --nic_.shared_queues; }

  uint32_t capacity() const { return capacity_; }
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
  // One event when fewer than `limit` are left; 0: none.
  int SetLimit(uint32_t limit) {
    if (limit > capacity_) return EINVAL;
    limit_ = limit;
    RaiseIfBelow();
    return 0;
  }
  // The oldest request; nullopt: there is none.
  std::optional<uint64_t> Take() {
    if (requests_.empty()) return std::nullopt;
    const uint64_t id = requests_.front();
    requests_.pop_front();
    RaiseIfBelow();
    return id;
  }
  bool empty() const { return requests_.empty(); }

  int users = 0;  // queue pairs

 private:
  void RaiseIfBelow() {
    if (limit_ == 0 || requests_.size() >= limit_) return;
    limit_ = 0;
    context_->Raise({IBV_EVENT_SRQ_LIMIT_REACHED, 0, 0});
  }

  Nic& nic_;
  const std::shared_ptr<Context> context_;
  const uint32_t capacity_;
  uint32_t limit_ = 0;
  std::deque<uint64_t> requests_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_NIC_RECEIVE_QUEUE_H_
