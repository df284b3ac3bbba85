#include "tests/transport/verbs_sim/nic/completion_queue.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/transport/verbs_sim/nic/nic.h"
#include "tests/transport/verbs_sim/nic/queue_pair.h"

namespace refract::transport::sim {

void ChannelState::Fire() {
  ++events;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      write(event_fd.get(), &one, sizeof(one));
}

int ChannelState::Take() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got =
      read(event_fd.get(), &count, sizeof(count));
  return std::exchange(events, 0);
}

CompletionQueueState::CompletionQueueState(
    Nic& nic, std::shared_ptr<Context> context, int capacity,
    std::shared_ptr<ChannelState> channel)
    : nic_(nic),
      context_(std::move(context)),
      capacity_(capacity),
      channel_(std::move(channel)),
      number_(nic.AddCompletionQueue(*this)) {
  if (channel_ != nullptr) ++channel_->queues;
}

CompletionQueueState::~CompletionQueueState() {
  nic_.simulation.ForgetSleeper(*this);
  nic_.RemoveCompletionQueue(number_);
  if (channel_ != nullptr) --channel_->queues;
}

void CompletionQueueState::Detach(QueuePairState& queue_pair) {
  // A queue pair with one queue for both directions is in here twice.
  users_.erase(std::remove(users_.begin(), users_.end(), &queue_pair),
               users_.end());
}

bool CompletionQueueState::Push(const ibv_wc& completion, bool solicited,
                                uint32_t slots) {
  if (broken_) return false;
  if (entries_.size() >= static_cast<size_t>(capacity_)) {
    Overrun();
    return false;
  }
  Simulation& simulation = nic_.simulation;
  simulation.Trace(completion.wr_id ^ uint64_t{completion.qp_num} << 32,
                   completion.status);
  entries_.push_back(
      {completion, solicited || completion.status != IBV_WC_SUCCESS, slots});
  const Picoseconds shortest =
      ToPicoseconds(nic_.options.min_completion_latency);
  const Picoseconds spread =
      ToPicoseconds(nic_.options.max_completion_latency) - shortest;
  Picoseconds at = simulation.now() + shortest;
  if (spread > 0) {
    at += static_cast<Picoseconds>(
        simulation.random.Below(static_cast<uint64_t>(spread) + 1));
  }
  at = std::max(at, last_visible_at_);
  last_visible_at_ = at;
  if (at == simulation.now()) {
    OnVisible();
  } else {
    simulation.Schedule(at, EventKind::kCompletion, nic_.id, number_);
  }
  return true;
}

void CompletionQueueState::OnVisible() {
  if (broken_) return;
  const Entry& entry = entries_[visible_++];
  if (armed_ == Armed::kNext || (armed_ == Armed::kSolicited && entry.wakes)) {
    Fire();
  }
}

void CompletionQueueState::Fire() {
  if (nic_.paused()) {
    fire_on_resume_ = true;
    return;
  }
  armed_ = Armed::kNo;
  if (channel_ != nullptr) channel_->Fire();
}

void CompletionQueueState::FireSpurious() {
  if (armed()) Fire();
}

void CompletionQueueState::Resume() {
  if (std::exchange(fire_on_resume_, false)) FireSpurious();
}

int CompletionQueueState::Poll(int count, ibv_wc* out) {
  if (broken_ || nic_.broken) return -1;
  if (nic_.paused()) return 0;
  int taken = 0;
  for (; taken < count && visible_ > 0; ++taken, --visible_) {
    const Entry& entry = entries_.front();
    out[taken] = entry.completion;
    if (entry.slots != 0) {
      QueuePairState* queue_pair = nic_.FindQueuePair(entry.completion.qp_num);
      if (queue_pair != nullptr) queue_pair->requester.FreeSlots(entry.slots);
    }
    entries_.pop_front();
  }
  return taken;
}

void CompletionQueueState::Arm(bool solicited_only) {
  // A stronger request stays.
  if (armed_ == Armed::kNext) return;
  if (!std::exchange(listed_, true)) nic_.simulation.AddSleeper(*this);
  armed_ = solicited_only ? Armed::kSolicited : Armed::kNext;
}

void CompletionQueueState::Overrun() {
  broken_ = true;
  nic_.AddViolation(absl::StrCat("completion queue ", number_, " of ",
                                 capacity_, " entries overran"));
  context_->Raise({IBV_EVENT_CQ_ERR, 0, 0});
  FireSpurious();
  std::vector<QueuePairState*> users = users_;
  users.erase(std::unique(users.begin(), users.end()), users.end());
  for (QueuePairState* queue_pair : users) {
    queue_pair->EnterError(IBV_EVENT_QP_FATAL);
  }
}

}  // namespace refract::transport::sim
