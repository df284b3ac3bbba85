#include "tests/transport/verbs_sim/nic/queue_pair.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/transport/verbs_sim/fabric/simulation.h"

namespace refract::transport::sim {
namespace {

// Required and optional attributes of Modify for each transition (IBTA 1.4
// table 91, for reliable connected queue pairs).
struct Transition {
  ibv_qp_state from;
  ibv_qp_state to;
  int required;
  int optional;
};
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT,
     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0,
     IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
         IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

constexpr uint32_t kPsnMask = 0xffffff;

uint32_t MtuBytes(ibv_mtu mtu) { return 128u << mtu; }

}  // namespace

QueuePairState::QueuePairState(
    Nic& nic, std::shared_ptr<Context> context, uint32_t domain,
    const Limits& limits, std::shared_ptr<CompletionQueueState> send_queue,
    std::shared_ptr<CompletionQueueState> receive_queue,
    std::shared_ptr<ReceiveQueueState> shared_receive_queue)
    : nic(nic),
      context(std::move(context)),
      domain(domain),
      limits(limits),
      send_queue(std::move(send_queue)),
      receive_queue(std::move(receive_queue)),
      shared_receive_queue(std::move(shared_receive_queue)),
      number(nic.AddQueuePair(*this)),
      requester(*this),
      responder(*this) {
  this->send_queue->Attach(*this);
  this->receive_queue->Attach(*this);
  if (this->shared_receive_queue != nullptr) {
    ++this->shared_receive_queue->users;
  }
}

QueuePairState::~QueuePairState() {
  nic.Forget(requester);
  nic.Forget(responder);
  nic.RemoveQueuePair(number);
  send_queue->Detach(*this);
  receive_queue->Detach(*this);
  if (shared_receive_queue != nullptr) --shared_receive_queue->users;
}

void QueuePairState::AddViolation(absl::string_view what) {
  nic.AddViolation(absl::StrCat("queue pair ", number, ": ", what));
}

int QueuePairState::CheckAttributes(const ibv_qp_attr& wanted, int mask) const {
  if ((mask & IBV_QP_PORT) != 0 && wanted.port_num != 1) return EINVAL;
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && wanted.pkey_index != 0) return EINVAL;
  if ((mask & IBV_QP_PATH_MTU) != 0 &&
      (wanted.path_mtu < IBV_MTU_256 || wanted.path_mtu > IBV_MTU_4096 ||
       MtuBytes(wanted.path_mtu) > nic.options.mtu)) {
    return EINVAL;
  }
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0 &&
      wanted.max_rd_atomic > nic.options.max_started_reads) {
    return EINVAL;
  }
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0 &&
      wanted.max_dest_rd_atomic > nic.options.max_reads) {
    return EINVAL;
  }
  if ((mask & IBV_QP_TIMEOUT) != 0 && wanted.timeout > 31) return EINVAL;
  if ((mask & IBV_QP_RETRY_CNT) != 0 && wanted.retry_cnt > 7) return EINVAL;
  if ((mask & IBV_QP_RNR_RETRY) != 0 && wanted.rnr_retry > 7) return EINVAL;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && wanted.min_rnr_timer > 31) {
    return EINVAL;
  }
  if ((mask & IBV_QP_AV) != 0) {
    // RoCE knows peers by GID only.
    if (wanted.ah_attr.is_global == 0 || wanted.ah_attr.port_num != 1) {
      return EINVAL;
    }
    bool known = false;
    for (const verbs::GidEntry& gid : nic.gids) {
      known |= gid.index == wanted.ah_attr.grh.sgid_index;
    }
    if (!known) return EINVAL;
  }
  return 0;
}

int QueuePairState::Modify(const ibv_qp_attr& wanted, int mask) {
  if (nic.broken) return EIO;
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? wanted.qp_state : state_;
  if (to == IBV_QPS_ERR || to == IBV_QPS_RESET) {
    if (mask != IBV_QP_STATE) return EINVAL;
    if (to == IBV_QPS_ERR) {
      if (state_ == IBV_QPS_RESET) return EINVAL;
      EnterError(std::nullopt);
    } else {
      Reset();
    }
    return 0;
  }
  const Transition* found = nullptr;
  for (const Transition& transition : kTransitions) {
    if (transition.from == state_ && transition.to == to) found = &transition;
  }
  const int given = mask & ~IBV_QP_STATE;
  if (found == nullptr || (given & found->required) != found->required ||
      (given & ~(found->required | found->optional)) != 0) {
    return EINVAL;
  }
  if (const int error = CheckAttributes(wanted, given); error != 0) {
    return error;
  }
  Attributes& set = attributes;
  if ((given & IBV_QP_AV) != 0) {
    const Nic* remote = nullptr;
    for (const auto& other : nic.simulation.nics) {
      for (const verbs::GidEntry& gid : other->gids) {
        if (std::memcmp(&gid.gid, &wanted.ah_attr.grh.dgid, sizeof(gid.gid)) ==
            0) {
          remote = other.get();
        }
      }
    }
    // Address resolution finds nobody.
    if (remote == nullptr) return ETIMEDOUT;
    if (const int refused = nic.RefusesGid(wanted.ah_attr.grh.sgid_index);
        refused != 0) {
      return refused;
    }
    set.remote_nic = remote->id;
  }
  if ((given & IBV_QP_ACCESS_FLAGS) != 0) {
    set.access = static_cast<int>(wanted.qp_access_flags);
  }
  if ((given & IBV_QP_MIN_RNR_TIMER) != 0) {
    set.min_rnr_timer = wanted.min_rnr_timer;
  }
  if (found->to == IBV_QPS_RTR) {
    set.mtu = MtuBytes(wanted.path_mtu);
    set.remote_number = wanted.dest_qp_num & kPsnMask;
    set.max_dest_reads = wanted.max_dest_rd_atomic;
    responder.Start(wanted.rq_psn & kPsnMask);
  } else if (found->from == IBV_QPS_RTR && found->to == IBV_QPS_RTS) {
    set.timeout = wanted.timeout;
    set.retries = wanted.retry_cnt;
    set.rnr_retries = wanted.rnr_retry;
    set.max_reads = wanted.max_rd_atomic;
    requester.Start(wanted.sq_psn & kPsnMask);
  }
  state_ = to;
  return 0;
}

void QueuePairState::Receive(Packet& packet) {
  const PacketHeader& header = packet.header;
  if (!CanAnswer() || header.source_nic != attributes.remote_nic ||
      header.source_qp != attributes.remote_number) {
    return;
  }
  if (header.congestion) NotifyCongestion();
  switch (header.kind) {
    case PacketKind::kWrite:
    case PacketKind::kSend:
    case PacketKind::kReadRequest:
      responder.OnRequest(packet);
      return;
    case PacketKind::kCnp:
      ++nic.counters.cnps_handled;
      return;
    default:
      break;
  }
  if (!CanSend()) return;
  switch (header.kind) {
    case PacketKind::kReadResponse:
      requester.OnReadResponse(packet);
      break;
    case PacketKind::kAck:
      requester.OnAck(header.psn);
      break;
    case PacketKind::kNak:
      requester.OnNak(header);
      break;
    default:
      requester.OnRnrNak(header);
      break;
  }
}

void QueuePairState::NotifyCongestion() {
  if (nic.simulation.now() < next_cnp_) return;
  next_cnp_ = nic.simulation.now() + ToPicoseconds(nic.options.cnp_interval);
  ++nic.counters.cnps_sent;
  Packet* packet = nic.simulation.packets.Take();
  packet->header.kind = PacketKind::kCnp;
  Address(packet->header);
  nic.SendControl(packet);
}

void QueuePairState::EnterError(std::optional<ibv_event_type> event) {
  if (state_ == IBV_QPS_ERR) return;
  state_ = IBV_QPS_ERR;
  nic.simulation.Trace(0x6572726f72, number);
  nic.Forget(requester);
  nic.Forget(responder);
  responder.Reset();
  if (event) context->Raise({*event, number, 0});
  if (shared_receive_queue != nullptr) {
    // The queue pair takes no receive request any more.
    context->Raise({IBV_EVENT_QP_LAST_WQE_REACHED, number, 0});
  }
  requester.Flush();
}

void QueuePairState::Reset() {
  state_ = IBV_QPS_RESET;
  nic.Forget(requester);
  nic.Forget(responder);
  requester.Reset();
  responder.Reset();
  attributes = Attributes();
}

}  // namespace refract::transport::sim
