#include "tools/transport_bench/verbs_session.h"

#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "tools/transport_bench/pattern.h"
#include "transport/loop/fd.h"

namespace refract::transport_bench {
namespace {

// As the data path's (transport/verbs/options.h), so that only its work
// differs.
constexpr uint32_t kInlineBytes = 220;
constexpr uint8_t kAckTimeout = 14;
constexpr uint8_t kRetries = 6;
constexpr uint8_t kReceiverNotReadyTimer = 12;
constexpr int kMaxReads = 16;
// Above plan.h's 128 under way.
constexpr int kRequests = 256;
// Any number does for a connection that lasts for one measurement.
constexpr uint32_t kFirstPacket = 0x1234;

absl::Status Failed(absl::string_view what) {
  return transport::ErrnoStatus(errno, what);
}

absl::StatusOr<ibv_context*> OpenContext(const std::string& name) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr) return Failed("ibv_get_device_list");
  ibv_context* context = nullptr;
  for (int i = 0; i < count && context == nullptr; ++i) {
    if (name == ibv_get_device_name(list[i])) {
      context = ibv_open_device(list[i]);
    }
  }
  ibv_free_device_list(list);
  if (context == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot open ", name));
  }
  return context;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> VerbsSession::Create(
    const VerbsPort& port, const Setup& setup) {
  static_assert(std::is_trivially_copyable_v<Address>);
  std::unique_ptr<VerbsSession> session(new VerbsSession(setup.side));
  REFRACT_RETURN_IF_ERROR(session->OpenDevice(port, setup.work));
  REFRACT_ASSIGN_OR_RETURN(
      const std::string peer,
      setup.control->Exchange(absl::string_view(
          reinterpret_cast<const char*>(&session->own_), sizeof(Address))));
  Address address;
  if (peer.size() != sizeof(address)) {
    return absl::InternalError("not an address");
  }
  std::memcpy(static_cast<void*>(&address), peer.data(), sizeof(address));
  REFRACT_RETURN_IF_ERROR(session->Connect(port, address));
  // Neither may post before the other listens.
  REFRACT_RETURN_IF_ERROR(setup.control->Exchange("connected").status());
  return std::unique_ptr<Session>(std::move(session));
}

absl::Status VerbsSession::OpenDevice(const VerbsPort& port, const Work& work) {
  REFRACT_ASSIGN_OR_RETURN(ibv_context* const context,
                           OpenContext(port.device));
  context_.reset(context);
  domain_.reset(ibv_alloc_pd(context));
  if (domain_ == nullptr) return Failed("ibv_alloc_pd");
  channel_.reset(ibv_create_comp_channel(context));
  if (channel_ == nullptr) return Failed("ibv_create_comp_channel");
  queue_.reset(
      ibv_create_cq(context, 2 * kRequests, nullptr, channel_.get(), 0));
  if (queue_ == nullptr) return Failed("ibv_create_cq");

  own_.ring_bytes =
      Stride(work.point.bytes) * static_cast<size_t>(work.outstanding);
  REFRACT_ASSIGN_OR_RETURN(
      memory_, transport::Mapping::Anonymous(kNumRings * own_.ring_bytes));
  registration_.reset(
      ibv_reg_mr(domain_.get(), memory_->data(), memory_->size(),
                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                     IBV_ACCESS_REMOTE_READ));
  if (registration_ == nullptr) return Failed("ibv_reg_mr");

  ibv_qp_init_attr wanted = {};
  wanted.send_cq = wanted.recv_cq = queue_.get();
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {kRequests, kRequests, 1, 1, kInlineBytes};
  pair_.reset(ibv_create_qp(domain_.get(), &wanted));
  if (pair_ == nullptr) return Failed("ibv_create_qp");
  max_inline_ = std::min(wanted.cap.max_inline_data, kInlineBytes);

  ibv_device_attr device = {};
  ibv_port_attr attributes = {};
  const auto number = static_cast<uint8_t>(port.port);
  if (ibv_query_device(context, &device) != 0 ||
      ibv_query_port(context, number, &attributes) != 0 ||
      ibv_query_gid(context, number, port.gid_index, &own_.gid) != 0) {
    return Failed("query of a port");
  }
  max_reads_ = static_cast<uint8_t>(
      std::clamp(std::min(device.max_qp_rd_atom, device.max_qp_init_rd_atom), 1,
                 kMaxReads));
  own_.queue_pair = pair_->qp_num;
  own_.key = registration_->rkey;
  own_.memory = reinterpret_cast<uint64_t>(memory_->data());
  own_.lid = attributes.lid;

  ibv_qp_attr init = {};
  init.qp_state = IBV_QPS_INIT;
  init.port_num = number;
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  REFRACT_RETURN_IF_ERROR(Modify(init, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
                                           IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  return PostReceives(kRequests);
}

absl::Status VerbsSession::Modify(ibv_qp_attr attributes, int mask) {
  const int error = ibv_modify_qp(pair_.get(), &attributes, mask);
  if (error == 0) return absl::OkStatus();
  return transport::ErrnoStatus(error, "ibv_modify_qp");
}

absl::Status VerbsSession::Connect(const VerbsPort& port, const Address& peer) {
  remote_ = peer;
  ibv_qp_attr receive = {};
  receive.qp_state = IBV_QPS_RTR;
  // IBV_MTU_256 is 1, and each step doubles.
  int mtu = 0;
  while ((128 << mtu) < port.mtu_bytes) ++mtu;
  receive.path_mtu = static_cast<ibv_mtu>(mtu);
  receive.dest_qp_num = peer.queue_pair;
  receive.rq_psn = kFirstPacket;
  receive.max_dest_rd_atomic = max_reads_;
  receive.min_rnr_timer = kReceiverNotReadyTimer;
  receive.ah_attr.dlid = peer.lid;
  receive.ah_attr.port_num = static_cast<uint8_t>(port.port);
  receive.ah_attr.is_global = 1;
  receive.ah_attr.grh.dgid = peer.gid;
  receive.ah_attr.grh.sgid_index = static_cast<uint8_t>(port.gid_index);
  receive.ah_attr.grh.hop_limit = 64;
  REFRACT_RETURN_IF_ERROR(
      Modify(receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                          IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  ibv_qp_attr send = {};
  send.qp_state = IBV_QPS_RTS;
  send.sq_psn = kFirstPacket;
  send.timeout = kAckTimeout;
  send.retry_cnt = kRetries;
  send.rnr_retry = kRetries;
  send.max_rd_atomic = max_reads_;
  return Modify(send, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
                          IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_MAX_QP_RD_ATOMIC);
}

absl::Status VerbsSession::Run(const Work& work, Recorder& recorder) {
  work_ = work;
  posted_ = sent_ = received_ = 0;
  if (side_ == Side::kResponder) {
    if (work.verify) {
      for (int i = 0; i < work.outstanding; ++i) {
        FillPattern({Slot(kSource, i), work.point.bytes}, work.seed, side_, i);
      }
    }
    // Ready.
    REFRACT_RETURN_IF_ERROR(Post(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0));
  } else {
    REFRACT_RETURN_IF_ERROR(Until([this] { return received_ == 1; }));
    received_ = 0;
  }
  switch (work.point.op) {
    case Op::kPingPong:
      REFRACT_RETURN_IF_ERROR(PingPong(recorder));
      break;
    case Op::kGet:
    case Op::kPull:
    case Op::kGetStream:
      REFRACT_RETURN_IF_ERROR(Read(recorder));
      break;
    case Op::kStream:
      REFRACT_RETURN_IF_ERROR(Stream(recorder));
      break;
    case Op::kFanIn:
      return absl::UnimplementedError("fan-in of raw verbs");
  }
  return Until([this] { return sent_ == posted_; });
}

absl::Status VerbsSession::PingPong(Recorder& recorder) {
  const auto send = [this](int i) {
    if (work_.verify) {
      FillPattern({Slot(kSource, i), work_.point.bytes}, work_.seed, side_, i);
    }
    return Post(IBV_WR_RDMA_WRITE_WITH_IMM, i, work_.point.bytes);
  };
  const auto receive = [this](int i) -> absl::Status {
    REFRACT_RETURN_IF_ERROR(Until([this, i] { return received_ > i; }));
    if (!work_.verify) return absl::OkStatus();
    return CheckPattern({Slot(kInbox, i), work_.point.bytes}, work_.seed, peer_,
                        i);
  };
  recorder.Start();
  for (int i = 0; i < work_.iterations; ++i) {
    if (side_ == Side::kInitiator) {
      REFRACT_RETURN_IF_ERROR(send(i));
      REFRACT_RETURN_IF_ERROR(receive(i));
      recorder.Lap();
    } else {
      REFRACT_RETURN_IF_ERROR(receive(i));
      REFRACT_RETURN_IF_ERROR(send(i));
    }
  }
  return absl::OkStatus();
}

absl::Status VerbsSession::Read(Recorder& recorder) {
  // The initiator's end of the run is the responder's.
  if (side_ == Side::kResponder) {
    return Until([this] { return received_ == 1; });
  }
  const bool stream = IsStream(work_.point.op);
  const int window = stream ? std::min<int>(work_.outstanding, max_reads_) : 1;
  recorder.Start();
  for (int i = 0; i < work_.iterations; ++i) {
    if (work_.verify) {
      std::memset(Slot(kLocal, i), 0, work_.point.bytes);
    }
    REFRACT_RETURN_IF_ERROR(Post(IBV_WR_RDMA_READ, i, work_.point.bytes));
    REFRACT_RETURN_IF_ERROR(Until([&] { return posted_ - sent_ < window; }));
    if (!stream) recorder.Lap();
    if (work_.verify && window == 1) {
      REFRACT_RETURN_IF_ERROR(CheckPattern({Slot(kLocal, i), work_.point.bytes},
                                           work_.seed, peer_,
                                           i % work_.outstanding));
    }
  }
  REFRACT_RETURN_IF_ERROR(Until([this] { return sent_ == posted_; }));
  recorder.Stop();
  return Post(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0);
}

absl::Status VerbsSession::Stream(Recorder& recorder) {
  if (side_ == Side::kResponder) {
    REFRACT_RETURN_IF_ERROR(Until([this] { return received_ == 1; }));
    if (!work_.verify) return absl::OkStatus();
    for (int i = std::max(0, work_.iterations - work_.outstanding);
         i < work_.iterations; ++i) {
      REFRACT_RETURN_IF_ERROR(CheckPattern({Slot(kInbox, i), work_.point.bytes},
                                           work_.seed, peer_, i));
    }
    return absl::OkStatus();
  }
  recorder.Start();
  for (int i = 0; i < work_.iterations; ++i) {
    REFRACT_RETURN_IF_ERROR(
        Until([this] { return posted_ - sent_ < work_.outstanding; }));
    if (work_.verify) {
      FillPattern({Slot(kSource, i), work_.point.bytes}, work_.seed, side_, i);
    }
    REFRACT_RETURN_IF_ERROR(Post(IBV_WR_RDMA_WRITE, i, work_.point.bytes));
  }
  REFRACT_RETURN_IF_ERROR(Until([this] { return sent_ == posted_; }));
  recorder.Stop();
  return Post(IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0);
}

absl::Status VerbsSession::Post(ibv_wr_opcode opcode, int i, size_t bytes) {
  const bool read = opcode == IBV_WR_RDMA_READ;
  ibv_sge segment = {
      reinterpret_cast<uint64_t>(Slot(read ? kLocal : kSource, i)),
      static_cast<uint32_t>(bytes), registration_->lkey};
  ibv_send_wr request = {};
  request.sg_list = &segment;
  request.num_sge = bytes > 0 ? 1 : 0;
  request.opcode = opcode;
  request.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
  if (!read && bytes > 0 && bytes <= max_inline_) {
    request.send_flags |= IBV_SEND_INLINE;
  }
  request.imm_data = htonl(static_cast<uint32_t>(i));
  request.wr.rdma.remote_addr = remote_.memory +
                                (read ? kSource : kInbox) * remote_.ring_bytes +
                                SlotOffset(i);
  request.wr.rdma.rkey = remote_.key;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(pair_.get(), &request, &bad);
  if (error != 0) return transport::ErrnoStatus(error, "ibv_post_send");
  ++posted_;
  return absl::OkStatus();
}

absl::Status VerbsSession::PostReceives(int count) {
  ibv_recv_wr request = {};
  for (int i = 0; i < count; ++i) {
    ibv_recv_wr* bad = nullptr;
    const int error = ibv_post_recv(pair_.get(), &request, &bad);
    if (error != 0) return transport::ErrnoStatus(error, "ibv_post_recv");
  }
  return absl::OkStatus();
}

absl::Status VerbsSession::Progress() {
  std::array<ibv_wc, 32> completions;
  const int count =
      ibv_poll_cq(queue_.get(), completions.size(), completions.data());
  if (count < 0) return absl::InternalError("ibv_poll_cq");
  for (int i = 0; i < count; ++i) {
    const ibv_wc& completion = completions[i];
    if (completion.status != IBV_WC_SUCCESS) {
      return absl::UnavailableError(ibv_wc_status_str(completion.status));
    }
    if ((completion.opcode & IBV_WC_RECV) == 0) {
      ++sent_;
      continue;
    }
    ++received_;
    REFRACT_RETURN_IF_ERROR(PostReceives(1));
  }
  if (count > 0) {
    waiter_.Worked();
    return absl::OkStatus();
  }
  if (work_.point.mode != Mode::kEvent) return waiter_.Idle();
  if (!armed_) {
    // What comes between the last poll and now makes no event: poll once more.
    if (ibv_req_notify_cq(queue_.get(), 0) != 0) {
      return absl::InternalError("ibv_req_notify_cq");
    }
    armed_ = true;
    return absl::OkStatus();
  }
  pollfd fd = {channel_->fd, POLLIN, 0};
  if (poll(&fd, 1, Waiter::kPatienceSeconds * 1000) != 1) {
    return absl::DeadlineExceededError("the peer does not answer");
  }
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(channel_.get(), &queue, &context) != 0) {
    return Failed("ibv_get_cq_event");
  }
  ibv_ack_cq_events(queue, 1);
  armed_ = false;
  return absl::OkStatus();
}

size_t VerbsSession::SlotOffset(int i) const {
  return Stride(work_.point.bytes) * static_cast<size_t>(i % work_.outstanding);
}

std::byte* VerbsSession::Slot(Ring ring, int i) const {
  return memory_->data() + ring * own_.ring_bytes + SlotOffset(i);
}

}  // namespace refract::transport_bench
