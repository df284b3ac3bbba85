// The part of the requester that hears from the peer, or does not:
// acknowledgements, read responses, NAKs, timers, and sending again.
#include <algorithm>

#include "tests/transport/verbs_sim/nic/queue_pair.h"
#include "tests/transport/verbs_sim/nic/requester.h"
#include "tests/transport/verbs_sim/fabric/simulation.h"

namespace refract::transport::sim {
namespace {

// ibv_qp_attr::rnr_retry that stands for no bound.
constexpr uint8_t kForever = 7;

}  // namespace

bool Requester::Unacknowledged() const {
  return !queue_.empty() &&
         (cursor_ > 0 || cursor_packet_ > queue_.front().done);
}

bool Requester::AcknowledgeBelow(uint64_t psn) {
  bool progress = false;
  while (!queue_.empty()) {
    Request& oldest = queue_.front();
    if (oldest.is_read() || psn <= oldest.first_psn + oldest.done) break;
    progress = true;
    oldest.done = std::min(psn - oldest.first_psn, oldest.packets);
    if (oldest.done < oldest.packets) break;
    CompleteOldest();
  }
  if (progress && cursor_ == 0 && !queue_.empty()) {
    cursor_packet_ = std::max(cursor_packet_, queue_.front().done);
  }
  return progress;
}

bool Requester::MissesReadBefore(uint64_t psn) const {
  if (queue_.empty() || !queue_.front().is_read()) return false;
  return queue_.front().first_psn + queue_.front().packets <= psn;
}

void Requester::MadeProgress() {
  if (!owner_.CanSend()) return;
  retries_left_ = owner_.attributes.retries;
  rnr_retries_left_ = owner_.attributes.rnr_retries;
  read_retried_ = false;
  deadline_ = 0;
  if (Unacknowledged()) StartTimer();
  owner_.nic.Offer(*this);
}

void Requester::OnAck(uint64_t psn) {
  if (psn >= psn_limit_) return;
  if (AcknowledgeBelow(psn + 1)) MadeProgress();
  if (owner_.CanSend() && !read_retried_ && MissesReadBefore(psn)) {
    ++owner_.nic.counters.implied_naks;
    read_retried_ = true;
    Retry();
  }
}

void Requester::OnReadResponse(const Packet& packet) {
  const PacketHeader& header = packet.header;
  if (header.psn >= psn_limit_) return;
  if (AcknowledgeBelow(header.psn)) MadeProgress();
  if (!owner_.CanSend() || queue_.empty()) return;
  Request& oldest = queue_.front();
  const uint64_t expected = oldest.first_psn + oldest.done;
  if (!oldest.is_read() || header.psn < expected) return;  // came twice
  if (header.psn > expected) {
    if (read_retried_) return;
    ++owner_.nic.counters.implied_naks;
    read_retried_ = true;
    Retry();
    return;
  }
  if (header.payload_bytes != PacketBytes(oldest, oldest.done)) {
    FailOldest(IBV_WC_BAD_RESP_ERR);  // the two ends differ in path MTU
    return;
  }
  MemoryError error;
  if (!Scatter(oldest, oldest.done * owner_.attributes.mtu,
               packet.payload.data(), header.payload_bytes, error)) {
    owner_.AddViolation(absl::StrCat("destination of read ", oldest.id, ": ",
                                     MemoryErrorText(error)));
    FailOldest(IBV_WC_LOC_PROT_ERR);
    return;
  }
  ++oldest.done;
  if (oldest.done == oldest.packets) {
    CompleteOldest();
  } else if (cursor_ == 0) {
    cursor_packet_ = std::max(cursor_packet_, oldest.done);
  }
  MadeProgress();
}

void Requester::OnNak(const PacketHeader& header) {
  if (header.psn >= psn_limit_) return;
  if (AcknowledgeBelow(header.psn)) MadeProgress();
  if (!owner_.CanSend() || queue_.empty()) return;
  const Request& oldest = queue_.front();
  if (header.psn < oldest.first_psn + oldest.done) return;  // an old one
  if (header.nak == NakCode::kSequence || MissesReadBefore(header.psn)) {
    ++owner_.nic.counters.sequence_naks;
    Retry();
    return;
  }
  switch (header.nak) {
    case NakCode::kInvalidRequest:
      FailOldest(IBV_WC_REM_INV_REQ_ERR);
      break;
    case NakCode::kRemoteAccess:
      FailOldest(IBV_WC_REM_ACCESS_ERR);
      break;
    default:
      FailOldest(IBV_WC_REM_OP_ERR);
      break;
  }
}

void Requester::OnRnrNak(const PacketHeader& header) {
  if (header.psn >= psn_limit_) return;
  if (AcknowledgeBelow(header.psn)) MadeProgress();
  if (!owner_.CanSend() || queue_.empty() || waits_for_receiver_) return;
  if (header.psn < queue_.front().first_psn + queue_.front().done) return;
  ++owner_.nic.counters.rnr_naks;
  if (owner_.attributes.rnr_retries != kForever) {
    if (rnr_retries_left_ == 0) {
      FailOldest(IBV_WC_RNR_RETRY_EXC_ERR);
      return;
    }
    --rnr_retries_left_;
  }
  waits_for_receiver_ = true;
  GoBack();
  owner_.nic.simulation.Schedule(
      owner_.nic.simulation.now() + RnrTimer(header.rnr_timer),
      EventKind::kRnrTimer, owner_.nic.id, owner_.number);
}

void Requester::OnRnrTimer() {
  waits_for_receiver_ = false;
  owner_.nic.Offer(*this);
}

void Requester::Retry() {
  if (!Unacknowledged()) return;
  if (retries_left_ == 0) {
    ++owner_.nic.counters.retries_exceeded;
    FailOldest(IBV_WC_RETRY_EXC_ERR);
    return;
  }
  --retries_left_;
  GoBack();
  owner_.nic.Offer(*this);
}

void Requester::GoBack() {
  cursor_ = 0;
  cursor_packet_ = queue_.front().done;
  reads_under_way_ = 0;
  deadline_ = 0;
}

void Requester::StartTimer() {
  if (owner_.attributes.timeout == 0) return;
  Simulation& simulation = owner_.nic.simulation;
  deadline_ = simulation.now() + AckTimeout(owner_.attributes.timeout);
  if (timer_event_at_ != 0 && timer_event_at_ <= deadline_) return;
  timer_event_at_ = deadline_;
  simulation.Schedule(deadline_, EventKind::kAckTimer, owner_.nic.id,
                      owner_.number);
}

bool Requester::AckTimerIsDue(Picoseconds at) {
  if (at != timer_event_at_) return false;  // an earlier one took its place
  timer_event_at_ = 0;
  if (deadline_ == 0 || !owner_.CanSend()) return false;
  if (deadline_ > at) {
    timer_event_at_ = deadline_;
    owner_.nic.simulation.Schedule(deadline_, EventKind::kAckTimer,
                                   owner_.nic.id, owner_.number);
    return false;
  }
  return Unacknowledged();
}

void Requester::OnAckTimeout() {
  ++owner_.nic.counters.ack_timeouts;
  read_retried_ = false;
  Retry();
}

}  // namespace refract::transport::sim
