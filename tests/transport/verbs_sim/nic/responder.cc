#include "tests/transport/verbs_sim/nic/responder.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/transport/verbs_sim/fabric/simulation.h"
#include "tests/transport/verbs_sim/nic/queue_pair.h"

namespace refract::transport::sim {

void Responder::Reset() {
  replies_.clear();
  told_sequence_ = false;
  refusing_ = false;
  write_left_ = 0;
}

void Responder::OnRequest(const Packet& packet) {
  const PacketHeader& header = packet.header;
  if (refusing_) return;
  if (header.psn < expected_psn_) {
    OnDuplicate(header);
    return;
  }
  if (header.psn > expected_psn_) {
    ++owner_.nic.counters.out_of_sequence;
    // Told once; the requester comes back to this packet or times out.
    if (told_sequence_) return;
    told_sequence_ = true;
    Reply reply;
    reply.kind = PacketKind::kNak;
    reply.psn = expected_psn_;
    Send(reply);
    return;
  }
  told_sequence_ = false;
  Execute(packet);
}

void Responder::Execute(const Packet& packet) {
  switch (packet.header.kind) {
    case PacketKind::kReadRequest:
      ExecuteRead(packet.header);
      break;
    case PacketKind::kSend:
      ExecuteSend(packet);
      break;
    default:
      ExecuteWrite(packet);
      break;
  }
}

void Responder::OnDuplicate(const PacketHeader& header) {
  ++owner_.nic.counters.duplicate_requests;
  if (header.kind == PacketKind::kReadRequest) {
    PushRead(header);
    return;
  }
  if (!header.ack_request) return;
  Reply reply;
  reply.psn = expected_psn_ - 1;
  Send(reply);
}

void Responder::AddMemoryViolation(absl::string_view verb, MemoryError error,
                                   uint64_t address, uint64_t bytes) {
  owner_.AddViolation(absl::StrCat("the peer's ", verb, " of ", bytes,
                                   " bytes at ", absl::Hex(address), ": ",
                                   MemoryErrorText(error)));
}

void Responder::ExecuteRead(const PacketHeader& header) {
  if ((owner_.attributes.access & IBV_ACCESS_REMOTE_READ) == 0 ||
      header.message_bytes > owner_.nic.options.max_message_bytes) {
    owner_.AddViolation("the peer's read is not allowed here");
    Refuse(header.psn, NakCode::kInvalidRequest);
    return;
  }
  const auto reads =
      std::count_if(replies_.begin(), replies_.end(), [](const Reply& reply) {
        return reply.kind == PacketKind::kReadResponse;
      });
  if (reads >= owner_.attributes.max_dest_reads) {
    owner_.AddViolation("the peer's reads exceed max_dest_rd_atomic");
    Refuse(header.psn, NakCode::kInvalidRequest);
    return;
  }
  PushRead(header);
}

void Responder::PushRead(const PacketHeader& header) {
  // Asked again while it is being answered: from there once more.
  for (Reply& reply : replies_) {
    if (reply.kind == PacketKind::kReadResponse && reply.psn <= header.psn &&
        header.psn < reply.psn + reply.packets) {
      reply.next = std::min(reply.next, header.psn - reply.psn);
      return;
    }
  }
  MemoryError error;
  if (header.message_bytes > 0 &&
      owner_.nic.memory.Remote(header.remote_key, header.remote_address,
                               header.message_bytes, IBV_ACCESS_REMOTE_READ,
                               owner_.domain, error) == nullptr) {
    AddMemoryViolation("read", error, header.remote_address,
                       header.message_bytes);
    Refuse(header.psn, NakCode::kRemoteAccess);
    return;
  }
  Reply reply;
  reply.kind = PacketKind::kReadResponse;
  reply.psn = header.psn;
  reply.address = header.remote_address;
  reply.key = header.remote_key;
  reply.bytes = header.message_bytes;
  const uint64_t mtu = owner_.attributes.mtu;
  reply.packets = std::max<uint64_t>(1, (reply.bytes + mtu - 1) / mtu);
  Simulation& simulation = owner_.nic.simulation;
  reply.ready_at =
      simulation.now() + ToPicoseconds(owner_.nic.options.read_latency);
  if (header.psn == expected_psn_) expected_psn_ += reply.packets;
  const auto later =
      std::find_if(replies_.begin(), replies_.end(),
                   [&](const Reply& other) { return other.psn > reply.psn; });
  replies_.insert(later, reply);
  if (reply.ready_at == simulation.now()) {
    owner_.nic.Offer(*this);
  } else {
    simulation.Schedule(reply.ready_at, EventKind::kReadReady, owner_.nic.id,
                        owner_.number);
  }
}

void Responder::ExecuteWrite(const Packet& packet) {
  const PacketHeader& header = packet.header;
  MemoryError error;
  if (header.first) {
    if ((owner_.attributes.access & IBV_ACCESS_REMOTE_WRITE) == 0) {
      owner_.AddViolation("the peer's write is not allowed here");
      Refuse(header.psn, NakCode::kInvalidRequest);
      return;
    }
    write_address_ = header.remote_address;
    write_bytes_ = write_left_ = header.message_bytes;
    write_key_ = header.remote_key;
    // The whole message first: nothing of a bad one is written.
    if (write_bytes_ > 0 &&
        owner_.nic.memory.Remote(write_key_, write_address_, write_bytes_,
                                 IBV_ACCESS_REMOTE_WRITE, owner_.domain,
                                 error) == nullptr) {
      AddMemoryViolation("write", error, write_address_, write_bytes_);
      Refuse(header.psn, NakCode::kRemoteAccess);
      return;
    }
  }
  const uint32_t bytes = header.payload_bytes;
  if (bytes > write_left_ || bytes > owner_.attributes.mtu ||
      (header.last && bytes != write_left_)) {
    owner_.AddViolation("the peer's packets do not make a message");
    Refuse(header.psn, NakCode::kInvalidRequest);
    return;
  }
  std::byte* to = nullptr;
  if (bytes > 0) {
    // The region may be gone since the first packet.
    to =
        owner_.nic.memory.Remote(write_key_, write_address_, bytes,
                                 IBV_ACCESS_REMOTE_WRITE, owner_.domain, error);
    if (to == nullptr) {
      AddMemoryViolation("write", error, write_address_, bytes);
      Refuse(header.psn, NakCode::kRemoteAccess);
      return;
    }
  }
  if (header.has_immediate &&
      !Consume(header, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM,
               static_cast<uint32_t>(write_bytes_))) {
    return;
  }
  if (bytes > 0) std::memcpy(to, packet.payload.data(), bytes);
  write_address_ += bytes;
  write_left_ -= bytes;
  ++expected_psn_;
  if (!header.ack_request) return;
  Reply reply;
  reply.psn = header.psn;
  Send(reply);
}

void Responder::ExecuteSend(const Packet& packet) {
  const PacketHeader& header = packet.header;
  // Receives have no buffers, so a message with bytes is too long for each.
  const bool fits = header.message_bytes == 0;
  if (!Consume(header, fits ? IBV_WC_SUCCESS : IBV_WC_LOC_LEN_ERR, IBV_WC_RECV,
               0)) {
    return;
  }
  if (!fits) {
    owner_.AddViolation("the peer's send is longer than the receive");
    Refuse(header.psn, NakCode::kInvalidRequest);
    return;
  }
  ++expected_psn_;
  Reply reply;
  reply.psn = header.psn;
  Send(reply);
}

bool Responder::Consume(const PacketHeader& header, ibv_wc_status status,
                        ibv_wc_opcode opcode, uint32_t bytes) {
  ReceiveQueueState* queue = owner_.shared_receive_queue.get();
  if (queue == nullptr || queue->empty()) {
    ++owner_.nic.counters.out_of_receives;
    // Later packets are dropped until the requester sends this packet again.
    told_sequence_ = true;
    Reply reply;
    reply.kind = PacketKind::kRnrNak;
    reply.psn = header.psn;
    Send(reply);
    return false;
  }
  ibv_wc completion;
  std::memset(&completion, 0xee, sizeof(completion));
  completion.wr_id = *queue->Take();
  completion.status = status;
  completion.qp_num = owner_.number;
  completion.vendor_err = 0;
  if (status == IBV_WC_SUCCESS) {
    completion.opcode = opcode;
    completion.byte_len = bytes;
    completion.wc_flags = header.has_immediate ? IBV_WC_WITH_IMM : 0;
    completion.imm_data = header.immediate;
    completion.src_qp = owner_.attributes.remote_number;
  }
  if (!owner_.receive_queue->Push(completion, header.solicited, 0)) {
    Refuse(header.psn, NakCode::kRemoteOperation);
    return false;
  }
  return true;
}

void Responder::FillFrom(const Reply& reply, PacketHeader& header) const {
  owner_.Address(header);
  header.kind = reply.kind;
  header.nak = reply.nak;
  header.psn = reply.psn;
  header.rnr_timer = owner_.attributes.min_rnr_timer;
}

void Responder::Send(const Reply& reply) {
  if (replies_.empty()) {
    Packet* packet = owner_.nic.simulation.packets.Take();
    FillFrom(reply, packet->header);
    owner_.nic.SendControl(packet);
    return;
  }
  // An acknowledgement would confirm earlier reads: their responses go first.
  if (reply.kind == PacketKind::kAck &&
      replies_.back().kind == PacketKind::kAck) {
    replies_.back().psn = reply.psn;
  } else {
    replies_.push_back(reply);
  }
  owner_.nic.Offer(*this);
}

bool Responder::HasPacket() const {
  if (replies_.empty() || !owner_.CanAnswer()) return false;
  const Reply& reply = replies_.front();
  return reply.kind != PacketKind::kReadResponse ||
         reply.ready_at <= owner_.nic.simulation.now();
}

bool Responder::Fill(Packet& packet) {
  PacketHeader& header = packet.header;
  Reply& reply = replies_.front();
  FillFrom(reply, header);
  if (reply.kind != PacketKind::kReadResponse) {
    const NakCode code = reply.nak;
    const bool refused =
        reply.kind == PacketKind::kNak && code != NakCode::kSequence;
    replies_.pop_front();
    if (refused) FailAfterRefusal(code);
    return true;
  }
  const uint64_t mtu = owner_.attributes.mtu;
  const uint64_t offset = reply.next * mtu;
  const uint64_t bytes = std::min(mtu, reply.bytes - offset);
  header.psn = reply.psn + reply.next;
  if (bytes > 0) {
    MemoryError error;
    const std::byte* from =
        owner_.nic.memory.Remote(reply.key, reply.address + offset, bytes,
                                 IBV_ACCESS_REMOTE_READ, owner_.domain, error);
    if (from == nullptr) {
      AddMemoryViolation("read", error, reply.address + offset, bytes);
      header.kind = PacketKind::kNak;
      header.nak = NakCode::kRemoteAccess;
      ++owner_.nic.counters.refused_requests;
      FailAfterRefusal(NakCode::kRemoteAccess);
      return true;
    }
    std::memcpy(packet.payload.data(), from, bytes);
  }
  header.payload_bytes = static_cast<uint32_t>(bytes);
  header.first = reply.next == 0;
  header.last = ++reply.next == reply.packets;
  if (header.last) replies_.pop_front();
  return true;
}

void Responder::Refuse(uint64_t psn, NakCode code) {
  ++owner_.nic.counters.refused_requests;
  Reply reply;
  reply.kind = PacketKind::kNak;
  reply.nak = code;
  reply.psn = psn;
  const bool waits = !replies_.empty();
  Send(reply);
  if (waits) {
    refusing_ = true;
  } else {
    FailAfterRefusal(code);
  }
}

void Responder::FailAfterRefusal(NakCode code) {
  switch (code) {
    case NakCode::kRemoteAccess:
      owner_.EnterError(IBV_EVENT_QP_ACCESS_ERR);
      break;
    case NakCode::kInvalidRequest:
      owner_.EnterError(IBV_EVENT_QP_REQ_ERR);
      break;
    default:
      owner_.EnterError(IBV_EVENT_QP_FATAL);
      break;
  }
}

}  // namespace refract::transport::sim
