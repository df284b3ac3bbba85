#ifndef REFRACT_TRANSPORT_VERBS_SEND_LANE_H_
#define REFRACT_TRANSPORT_VERBS_SEND_LANE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/device/api.h"

namespace refract::transport::verbs {

// A put or get that the lane has accepted.
struct Operation {
  const std::byte* local = nullptr;
  uint32_t local_key = 0;
  uint32_t remote_key = 0;
  uint64_t remote_address = 0;
  uint64_t bytes = 0;
  uint64_t context = 0;
  uint32_t imm = 0;
  bool notify = false;
  uint32_t end = 0;  // position after its last request, once posted
};

// The sending side of a queue pair: operations wait here in order, become
// requests (several if longer than a message may be), are posted in lists of up
// to 16 with one doorbell, and are done when their last request is. Only the
// last request of a list is signalled: on a reliable queue pair, requests
// finish in the order posted, so its completion covers the list.
//
// Positions of requests count from the start and wrap at 2^32. Belongs to the
// path's thread. Allocates nothing after construction.
class SendLane {
 public:
  struct Options {
    ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;  // or IBV_WR_RDMA_READ
    uint32_t max_requests = 0;                 // capacity of the queue pair
    uint32_t reserved = 0;        // of these, for PostCredit and PostNothing
    uint32_t max_operations = 0;  // a power of two
    uint64_t max_message_bytes = 0;
    uint32_t max_inline = 0;
    uint32_t generation = 0;  // upper half of each wr_id
  };
  // `pair` must outlive the lane.
  SendLane(QueuePair* pair, const Options& options);

  // Operations accepted and not yet popped.
  size_t num_outstanding() const { return accepted_ - popped_; }
  bool full() const { return num_outstanding() == ring_.size(); }
  void Push(const Operation& operation) {
    ring_[accepted_++ & mask_] = operation;
  }
  bool has_requests() const { return posted_ != finished_; }
  bool has_waiting() const { return next_ != accepted_; }

  // Posts the requests that fit, with at most `notifications` notifications. 0,
  // or the errno of a device that takes no more although it should: the lane is
  // unusable then. Subtracts from *notifications.
  int Post(uint32_t* notifications);
  // Posts an empty message that carries `consumed`. As Post; EAGAIN: no room.
  int PostCredit(uint32_t consumed);
  // Posts a write of zero bytes.
  int PostNothing();

  // Requests below `position` are finished. False: it was never posted.
  bool Finish(uint32_t position);
  // The next completed operation, in order. False: none.
  bool Pop(uint64_t* context);

 private:
  // A longer list delays its own first request on the way to the device more
  // than another doorbell costs (eRPC and UCX use 16, too).
  static constexpr size_t kBurst = 16;

  // Fills requests_[i] with the next piece of the operation at `next_`.
  void Fill(size_t i);
  int Ring(size_t count);
  int PostControl();
  uint32_t room() const {
    const uint32_t used = posted_ - finished_ + options_.reserved;
    return used < options_.max_requests ? options_.max_requests - used : 0;
  }

  QueuePair* const pair_;
  const Options options_;
  std::vector<Operation> ring_;
  const uint64_t mask_;
  // Positions of operations, in order: popped_ <= done by finished_ <= next_ <=
  // accepted_.
  uint64_t popped_ = 0;
  uint64_t next_ = 0;
  uint64_t accepted_ = 0;
  uint64_t piece_offset_ = 0;  // within the operation at next_
  uint32_t posted_ = 0;
  uint32_t finished_ = 0;
  std::array<ibv_send_wr, kBurst> requests_ = {};
  std::array<ibv_sge, kBurst> segments_ = {};
};

}  // namespace refract::transport::verbs

#endif  // REFRACT_TRANSPORT_VERBS_SEND_LANE_H_
