#include "tests/transport/verbs_sim/nic/sim_objects.h"

#include "absl/strings/str_cat.h"

namespace refract::transport::sim {

SimMemoryRegion::~SimMemoryRegion() {
  absl::MutexLock lock(&simulation_->mu);
  Leave();
  if (keys_.local == 0) return;
  nic_.memory.Remove(keys_.local);
  if (nic_.AnyRequestUses(keys_.local)) {
    nic_.AddViolation(absl::StrCat("memory region ", keys_.local,
                                   " deregistered while requests use it"));
  }
}

SimChannel::SimChannel(std::shared_ptr<Simulation> simulation, Nic& nic,
                       std::shared_ptr<Context> context, UniqueFd fd)
    : SimObject(std::move(simulation), nic, std::move(context)),
      state_(std::make_shared<ChannelState>()) {
  state_->event_fd = std::move(fd);
}

SimChannel::~SimChannel() {
  absl::MutexLock lock(&simulation_->mu);
  --context_->objects;
  if (state_->queues > 0) {
    nic_.AddViolation(absl::StrCat("completion channel destroyed with ",
                                   state_->queues, " queues"));
  }
}

int SimChannel::TakeEvents() {
  absl::MutexLock lock(&simulation_->mu);
  return state_->Take();
}

SimCompletionQueue::~SimCompletionQueue() {
  absl::MutexLock lock(&simulation_->mu);
  --context_->objects;
  if (state_->used()) {
    nic_.AddViolation(absl::StrCat("completion queue ", state_->number(),
                                   " destroyed with queue pairs"));
  }
  state_.reset();
}

int SimCompletionQueue::Poll(int count, ibv_wc* out) {
  absl::MutexLock lock(&simulation_->mu);
  if (simulation_->options.automatic) simulation_->RunSome();
  return state_->Poll(count, out);
}

int SimCompletionQueue::Arm(bool solicited_only) {
  absl::MutexLock lock(&simulation_->mu);
  if (nic_.broken || state_->broken()) return EIO;
  state_->Arm(solicited_only);
  if (!simulation_->options.automatic) return 0;
  const bool settled = simulation_->RunUntil(
      [this] { return !state_->armed() || state_->HasVisible(); });
  if (!settled) state_->FireSpurious();
  return 0;
}

SimSharedReceiveQueue::~SimSharedReceiveQueue() {
  absl::MutexLock lock(&simulation_->mu);
  --context_->objects;
  if (state_->users > 0) {
    nic_.AddViolation("shared receive queue destroyed with queue pairs");
  }
  state_.reset();
}

int SimSharedReceiveQueue::Post(ibv_recv_wr* list, ibv_recv_wr** bad) {
  absl::MutexLock lock(&simulation_->mu);
  for (ibv_recv_wr* request = list; request != nullptr;
       request = request->next) {
    if (const int error = state_->Post(*request); error != 0) {
      *bad = request;
      return error;
    }
  }
  return 0;
}

SimQueuePair::~SimQueuePair() {
  absl::MutexLock lock(&simulation_->mu);
  Leave();
  state_.reset();
}

int SimQueuePair::Modify(const ibv_qp_attr& attributes, int mask) {
  absl::MutexLock lock(&simulation_->mu);
  const int error = state_->Modify(attributes, mask);
  simulation_->WakeSleepers();
  return error;
}

int SimQueuePair::PostSend(ibv_send_wr* list, ibv_send_wr** bad) {
  absl::MutexLock lock(&simulation_->mu);
  int error = 0;
  for (ibv_send_wr* request = list; request != nullptr;
       request = request->next) {
    error = state_->requester.Post(*request);
    if (error != 0) {
      *bad = request;
      break;
    }
  }
  // Requests posted before a bad one are sent.
  nic_.RingDoorbell(*state_, state_->requester.posted());
  simulation_->WakeSleepers();
  return error;
}

}  // namespace refract::transport::sim
