#include "transport/verbs/send_lane.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>

namespace refract::transport::verbs {

SendLane::SendLane(QueuePair* pair, const Options& options)
    : pair_(pair),
      options_(options),
      ring_(options.max_operations),
      mask_(options.max_operations - 1) {
  for (size_t i = 0; i < kBurst; ++i) requests_[i].sg_list = &segments_[i];
}

// An operation longer than a message becomes several requests. Only its last
// request notifies, because the peer may read the bytes only when all have
// arrived.
void SendLane::Fill(size_t i) {
  Operation& operation = ring_[next_ & mask_];
  const uint64_t left = operation.bytes - piece_offset_;
  const uint64_t bytes = std::min(left, options_.max_message_bytes);
  const bool last = bytes == left;
  ibv_send_wr& request = requests_[i];
  ++posted_;
  request.wr_id = uint64_t{options_.generation} << 32 | posted_;
  request.next = requests_.data() + i + 1;
  request.num_sge = bytes > 0 ? 1 : 0;
  request.opcode = options_.opcode;
  request.send_flags = 0;
  if (last && operation.notify) {
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = htonl(operation.imm);
    // The peer arms its queue of receives for solicited messages alone
    // (CompletionHub::ArmQueues).
    request.send_flags = IBV_SEND_SOLICITED;
  }
  if (bytes > 0 && bytes <= options_.max_inline) {
    request.send_flags |= IBV_SEND_INLINE;
  }
  request.wr.rdma.remote_addr = operation.remote_address + piece_offset_;
  request.wr.rdma.rkey = operation.remote_key;
  segments_[i].addr =
      reinterpret_cast<uintptr_t>(operation.local) + piece_offset_;
  segments_[i].length = static_cast<uint32_t>(bytes);
  segments_[i].lkey = operation.local_key;
  if (!last) {
    piece_offset_ += bytes;
    return;
  }
  piece_offset_ = 0;
  operation.end = posted_;
  ++next_;
}

int SendLane::Ring(size_t count) {
  ibv_send_wr& last = requests_[count - 1];
  last.send_flags |= IBV_SEND_SIGNALED;
  last.next = nullptr;
  ibv_send_wr* bad = nullptr;
  return pair_->PostSend(requests_.data(), &bad);
}

int SendLane::Post(uint32_t* notifications) {
  while (next_ != accepted_) {
    const size_t most = std::min<size_t>(kBurst, room());
    size_t count = 0;
    while (count < most && next_ != accepted_) {
      const Operation& operation = ring_[next_ & mask_];
      if (operation.notify &&
          // The next request is the last of a notifying operation, and uses a
          // receive request of the peer.
          operation.bytes - piece_offset_ <= options_.max_message_bytes) {
        if (*notifications == 0) break;
        --*notifications;
      }
      Fill(count++);
    }
    if (count == 0) return 0;
    if (const int error = Ring(count); error != 0) return error;
  }
  return 0;
}

int SendLane::PostControl() {
  // Unlike room(), counts the reserved requests as free: they are kept for this
  // call.
  if (posted_ - finished_ >= options_.max_requests) return EAGAIN;
  ibv_send_wr& request = requests_[0];
  request.wr_id = uint64_t{options_.generation} << 32 | ++posted_;
  request.num_sge = 0;
  return Ring(1);
}

int SendLane::PostCredit(uint32_t consumed) {
  requests_[0].opcode = IBV_WR_SEND_WITH_IMM;
  requests_[0].imm_data = htonl(consumed);
  requests_[0].send_flags = IBV_SEND_SOLICITED;
  return PostControl();
}

int SendLane::PostNothing() {
  // Address and key may be 0: devices do not check them for a write without
  // bytes.
  requests_[0].opcode = IBV_WR_RDMA_WRITE;
  requests_[0].send_flags = 0;
  requests_[0].wr.rdma.remote_addr = 0;
  requests_[0].wr.rdma.rkey = 0;
  return PostControl();
}

bool SendLane::Finish(uint32_t position) {
  if (position - finished_ > posted_ - finished_) return false;
  finished_ = position;
  return true;
}

bool SendLane::Pop(uint64_t* context) {
  if (popped_ == next_) return false;
  const Operation& operation = ring_[popped_ & mask_];
  // Positions wrap; fewer than 2^31 requests lie between the two.
  if (static_cast<int32_t>(finished_ - operation.end) < 0) return false;
  ++popped_;
  *context = operation.context;
  return true;
}

}  // namespace refract::transport::verbs
