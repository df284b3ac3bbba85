#include "tests/transport/verbs_sim/nic/requester.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/transport/verbs_sim/fabric/simulation.h"
#include "tests/transport/verbs_sim/nic/queue_pair.h"

namespace refract::transport::sim {
namespace {

ibv_wc_opcode CompletionOpcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return IBV_WC_SEND;
    default:
      return IBV_WC_RDMA_WRITE;
  }
}

}  // namespace

void Requester::Start(uint64_t first_psn) {
  next_psn_ = first_psn;
  psn_limit_ = first_psn;
  retries_left_ = owner_.attributes.retries;
  rnr_retries_left_ = owner_.attributes.rnr_retries;
}

int Requester::CheckAndCopy(const ibv_send_wr& wr, Request& request) {
  switch (wr.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      break;
    default:
      owner_.AddViolation(absl::StrCat("send request of opcode ", wr.opcode));
      return EINVAL;
  }
  if (wr.num_sge < 0 ||
      static_cast<uint32_t>(wr.num_sge) > owner_.limits.segments) {
    owner_.AddViolation(absl::StrCat("send request of ", wr.num_sge,
                                     " segments, limit ",
                                     owner_.limits.segments));
    return EINVAL;
  }
  request.id = wr.wr_id;
  request.opcode = wr.opcode;
  request.signaled = (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  request.solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
  request.fence = (wr.send_flags & IBV_SEND_FENCE) != 0;
  request.is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0;
  request.immediate = wr.imm_data;
  request.remote_address = wr.wr.rdma.remote_addr;
  request.remote_key = wr.wr.rdma.rkey;
  for (int i = 0; i < wr.num_sge; ++i) request.bytes += wr.sg_list[i].length;
  if (request.is_inline) {
    if (request.bytes > owner_.limits.inline_bytes || request.is_read()) {
      owner_.AddViolation(absl::StrCat("inline request of ", request.bytes,
                                       " bytes, limit ",
                                       owner_.limits.inline_bytes));
      return EINVAL;
    }
    request.inline_data.resize(request.bytes);
    std::byte* out = request.inline_data.data();
    for (int i = 0; i < wr.num_sge; ++i) {
      const ibv_sge& segment = wr.sg_list[i];
      if (segment.length == 0) continue;
      std::memcpy(out, reinterpret_cast<const void*>(segment.addr),
                  segment.length);
      out += segment.length;
    }
  } else {
    request.segments.assign(wr.sg_list, wr.sg_list + wr.num_sge);
  }
  return 0;
}

int Requester::Post(const ibv_send_wr& wr) {
  if (owner_.nic.broken) return EIO;
  if (owner_.state() != IBV_QPS_RTS && owner_.state() != IBV_QPS_ERR) {
    owner_.AddViolation(absl::StrCat("send request in state ", owner_.state()));
    return EINVAL;
  }
  Request request;
  if (const int error = CheckAndCopy(wr, request); error != 0) return error;
  if (posted_ - freed_ >= owner_.limits.send_requests) {
    owner_.AddViolation(absl::StrCat(
        "send queue of ", owner_.limits.send_requests, " requests overflows"));
    return ENOMEM;
  }
  request.position = ++posted_;
  if (owner_.state() == IBV_QPS_ERR) {
    Emit(request, IBV_WC_WR_FLUSH_ERR);
    return 0;
  }
  const uint64_t mtu = owner_.attributes.mtu;
  request.packets = std::max<uint64_t>(1, (request.bytes + mtu - 1) / mtu);
  request.first_psn = next_psn_;
  next_psn_ += request.packets;
  if (!request.is_read() && !request.is_inline &&
      request.bytes <= owner_.nic.options.max_message_bytes) {
    TakeFingerprints(request);
  }
  queue_.push_back(std::move(request));
  return 0;
}

void Requester::OnDoorbell(uint32_t position) {
  rung_ = std::max(rung_, position);
  owner_.nic.Offer(*this);
}

void Requester::FreeSlots(uint32_t position) {
  freed_ = std::max(freed_, position);
}

bool Requester::HasPacket() const {
  if (!owner_.CanSend() || waits_for_receiver_ || cursor_ >= queue_.size()) {
    return false;
  }
  const Request& request = queue_[cursor_];
  if (request.position > rung_ || request.error != IBV_WC_SUCCESS) return false;
  if (request.fence && cursor_packet_ == 0 && reads_under_way_ > 0) {
    return false;
  }
  const uint8_t max_reads = owner_.attributes.max_reads;
  // With none allowed, sending finds the error.
  return !request.is_read() || max_reads == 0 || reads_under_way_ < max_reads;
}

bool Requester::Fill(Packet& packet) {
  Request& request = queue_[cursor_];
  if (request.bytes > owner_.nic.options.max_message_bytes) {
    FoundError(request, IBV_WC_LOC_LEN_ERR, "longer than max_msg_sz");
    return false;
  }
  PacketHeader& header = packet.header;
  owner_.Address(header);
  header.psn = request.first_psn + cursor_packet_;
  header.remote_key = request.remote_key;
  header.solicited = request.solicited;
  const uint64_t offset = cursor_packet_ * owner_.attributes.mtu;
  if (request.is_read()) {
    if (owner_.attributes.max_reads == 0) {
      FoundError(request, IBV_WC_LOC_QP_OP_ERR, "a read with max_rd_atomic 0");
      return false;
    }
    for (const ibv_sge& segment : request.segments) {
      MemoryError error;
      if (segment.length > 0 &&
          owner_.nic.memory.Local(segment.lkey, segment.addr, segment.length,
                                  IBV_ACCESS_LOCAL_WRITE, owner_.domain,
                                  error) == nullptr) {
        FoundError(request, IBV_WC_LOC_PROT_ERR, MemoryErrorText(error));
        return false;
      }
    }
    header.kind = PacketKind::kReadRequest;
    header.first = header.last = true;
    header.remote_address = request.remote_address + offset;
    header.message_bytes = request.bytes - offset;
    psn_limit_ = std::max(psn_limit_, request.first_psn + request.packets);
    ++reads_under_way_;
    ++cursor_;
    cursor_packet_ = 0;
  } else {
    const uint64_t bytes = PacketBytes(request, cursor_packet_);
    MemoryError error;
    if (!Gather(request, offset, bytes, packet.payload.data(), error)) {
      FoundError(request, IBV_WC_LOC_PROT_ERR, MemoryErrorText(error));
      return false;
    }
    if (!IsAsPosted(request, cursor_packet_, packet.payload.data())) {
      owner_.AddViolation(absl::StrCat("source of request ", request.id,
                                       " changed in bytes ", offset, "+", bytes,
                                       " before it was sent"));
    }
    const bool send =
        request.opcode == IBV_WR_SEND || request.opcode == IBV_WR_SEND_WITH_IMM;
    header.kind = send ? PacketKind::kSend : PacketKind::kWrite;
    header.first = cursor_packet_ == 0;
    header.last = cursor_packet_ + 1 == request.packets;
    header.remote_address = request.remote_address;
    header.message_bytes = request.bytes;
    header.payload_bytes = static_cast<uint32_t>(bytes);
    header.has_immediate = header.last && request.has_immediate();
    header.immediate = request.immediate;
    header.ack_request =
        header.last || (cursor_packet_ + 1) % owner_.nic.options.ack_every == 0;
    psn_limit_ = std::max(psn_limit_, header.psn + 1);
    if (header.last) {
      ++cursor_;
      cursor_packet_ = 0;
    } else {
      ++cursor_packet_;
    }
  }
  if (deadline_ == 0) StartTimer();
  return true;
}

void Requester::FoundError(Request& request, ibv_wc_status status,
                           absl::string_view what) {
  owner_.AddViolation(absl::StrCat("request ", request.id, " of ",
                                   request.bytes, " bytes: ", what));
  request.error = status;
  FailIfWrong();
}

void Requester::FailIfWrong() {
  // Earlier requests complete first.
  if (!queue_.empty() && queue_.front().error != IBV_WC_SUCCESS) {
    FailOldest(queue_.front().error);
  }
}

void Requester::CompleteOldest() {
  for (uint64_t i = 0; i < queue_.front().fingerprints.size(); ++i) {
    CheckSource(queue_.front(), i);
  }
  const Request done = std::move(queue_.front());
  queue_.pop_front();
  if (cursor_ > 0) {
    --cursor_;
    if (done.is_read()) --reads_under_way_;
  } else {
    cursor_packet_ = 0;
  }
  // May overrun the completion queue, and then nothing is left here.
  if (done.signaled) Emit(done, IBV_WC_SUCCESS);
  FailIfWrong();
}

void Requester::FailOldest(ibv_wc_status status) {
  const Request failed = std::move(queue_.front());
  queue_.pop_front();
  Emit(failed, status);
  owner_.EnterError(std::nullopt);
}

void Requester::Emit(const Request& request, ibv_wc_status status) {
  ibv_wc completion;
  // All but these is undefined when a request fails; no zeros that would pass
  // for something.
  std::memset(&completion, 0xee, sizeof(completion));
  completion.wr_id = request.id;
  completion.status = status;
  completion.qp_num = owner_.number;
  completion.vendor_err = 0;
  if (status == IBV_WC_SUCCESS) {
    completion.opcode = CompletionOpcode(request.opcode);
    completion.wc_flags = 0;
    if (request.is_read()) {
      completion.byte_len = static_cast<uint32_t>(request.bytes);
    }
  } else if (status == IBV_WC_WR_FLUSH_ERR) {
    ++owner_.nic.counters.flushed_requests;
  } else {
    ++owner_.nic.counters.failed_requests;
  }
  owner_.send_queue->Push(completion, false, request.position);
}

void Requester::Flush() {
  const std::deque<Request> flushed = std::exchange(queue_, {});
  cursor_ = 0;
  cursor_packet_ = 0;
  reads_under_way_ = 0;
  deadline_ = 0;
  waits_for_receiver_ = false;
  for (const Request& request : flushed) Emit(request, IBV_WC_WR_FLUSH_ERR);
}

void Requester::Reset() {
  queue_.clear();
  cursor_ = 0;
  cursor_packet_ = 0;
  reads_under_way_ = 0;
  deadline_ = 0;
  waits_for_receiver_ = false;
  read_retried_ = false;
  freed_ = rung_ = posted_;
}

}  // namespace refract::transport::sim
