#include "transport/verbs/hub.h"

#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace refract::transport::verbs {
namespace {

// A thread that never sleeps reads the timer once in this many polls, because
// the read takes a system call.
constexpr int kPollsPerLook = 4096;

// Entries of a path in the queue of sends: a queue pair that breaks completes
// every request, signalled or not.
uint32_t SendShare(const PathOptions& options) {
  return options.express_requests + options.bulk_requests;
}
// Receive requests of a path, and entries of their completions: each
// notification and each credit uses one.
uint32_t ReceiveShare(const PathOptions& options) {
  return options.notify_window + kCreditsPerWindow;
}

absl::StatusOr<UniqueFd> MakeTimer(absl::Duration interval) {
  if (interval <= absl::ZeroDuration()) return UniqueFd();
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer.valid()) return ErrnoStatus(errno, "timerfd_create");
  itimerspec spec;
  spec.it_interval = absl::ToTimespec(interval);
  spec.it_value = spec.it_interval;
  if (timerfd_settime(timer.get(), 0, &spec, nullptr) != 0) {
    return ErrnoStatus(errno, "timerfd_settime");
  }
  return timer;
}

}  // namespace

absl::StatusOr<std::shared_ptr<CompletionHub>> CompletionHub::Create(
    std::shared_ptr<DeviceContext> context, const HubOptions& options,
    const PathOptions& typical) {
  REFRACT_ASSIGN_OR_RETURN(UniqueFd timer,
                           MakeTimer(options.idle_probe_interval));
  std::shared_ptr<CompletionHub> hub(
      new CompletionHub(std::move(context), std::move(timer)));
  REFRACT_RETURN_IF_ERROR(hub->MakeQueues(options, typical));
  hub->context_->AddListener(hub.get());
  return hub;
}

CompletionHub::CompletionHub(std::shared_ptr<DeviceContext> context,
                             UniqueFd timer)
    : context_(std::move(context)), timer_(std::move(timer)) {
  for (size_t i = 0; i < empty_.size(); ++i) {
    empty_[i] = {};
    empty_[i].next = i + 1 < empty_.size() ? &empty_[i + 1] : nullptr;
  }
}

CompletionHub::~CompletionHub() { context_->RemoveListener(this); }

absl::Status CompletionHub::MakeQueues(const HubOptions& options,
                                       const PathOptions& typical) {
  Device& device = context_->device();
  const ibv_device_attr& limits = device.attributes();
  // Receive requests are posted again in batches, so up to a batch may be
  // missing.
  const auto most_receives = static_cast<uint32_t>(
      std::max(std::min(limits.max_cqe, limits.max_srq_wr) - kBatch, 0));
  // Paths of the typical size that fit. The shared receive queue and the
  // completion queue of receives must both hold all receive requests.
  const uint32_t fit =
      std::min({static_cast<uint32_t>(std::max(options.max_paths, 1)),
                static_cast<uint32_t>(limits.max_cqe) / SendShare(typical),
                most_receives / ReceiveShare(typical)});
  if (fit < 1) {
    return absl::ResourceExhaustedError(absl::StrCat(
        device.name(), " has queues of ", limits.max_cqe, " completions and ",
        limits.max_srq_wr, " receive requests, too few for a path"));
  }
  absl::MutexLock attach_lock(&attach_mu_);
  free_sends_ = fit * SendShare(typical);
  free_receives_ = fit * ReceiveShare(typical);
  const uint32_t requests = free_receives_ + kBatch;
  REFRACT_ASSIGN_OR_RETURN(channel_, device.CreateChannel());
  REFRACT_ASSIGN_OR_RETURN(
      sends_, device.CreateCompletionQueue(static_cast<int>(free_sends_),
                                           channel_.get()));
  REFRACT_ASSIGN_OR_RETURN(
      receives_,
      device.CreateCompletionQueue(static_cast<int>(requests), channel_.get()));
  REFRACT_ASSIGN_OR_RETURN(receive_requests_,
                           device.CreateSharedReceiveQueue(requests));
  absl::MutexLock lock(&mu_);
  // Requests add and remove targets; room for them is reserved here.
  targets_.reserve(fit * kLanes);
  // Refill() sets used_requests_ to 0 only if the device took the whole batch.
  for (uint32_t posted = 0; posted < requests; posted += kBatch) {
    used_requests_ = std::min<uint32_t>(kBatch, requests - posted);
    Refill();
    if (used_requests_ != 0) {
      return absl::InternalError(absl::StrCat(device.name(), " takes only ",
                                              posted, " of ", requests,
                                              " receive requests"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CompletionHub::Attached> CompletionHub::Attach(
    const PathOptions& options) {
  absl::MutexLock attach_lock(&attach_mu_);
  if (dead()) return absl::UnavailableError("the RDMA queues have failed");
  if (SendShare(options) > free_sends_ ||
      ReceiveShare(options) > free_receives_) {
    return absl::ResourceExhaustedError(
        "no room for another path on these completion queues");
  }
  Attached attached;
  REFRACT_ASSIGN_OR_RETURN(attached.inbox,
                           Inbox::Create(options.notify_window, channel_->fd(),
                                         timer_.valid() ? timer_.get() : -1));
  REFRACT_ASSIGN_OR_RETURN(attached.domain, context_->device().CreateDomain());
  QueuePairOptions pair;
  pair.send_queue = sends_.get();
  pair.receive_queue = receives_.get();
  pair.shared_receive_queue = receive_requests_.get();
  pair.max_send_requests = options.express_requests;
  pair.wanted_inline = options.inline_bytes;
  REFRACT_ASSIGN_OR_RETURN(attached.pairs.express,
                           attached.domain->CreateQueuePair(pair));
  pair.max_send_requests = options.bulk_requests;
  pair.wanted_inline = 0;
  REFRACT_ASSIGN_OR_RETURN(attached.pairs.bulk,
                           attached.domain->CreateQueuePair(pair));
  // Taken only now: a failed attempt above must not cost a share.
  free_sends_ -= SendShare(options);
  free_receives_ -= ReceiveShare(options);
  Inbox& inbox = *attached.inbox;
  inbox.queue_pairs = {attached.pairs.express->number(),
                       attached.pairs.bulk->number()};
  inbox.generation = next_generation_++;
  absl::MutexLock lock(&mu_);
  // Nothing was posted on these queue pairs, so no completion came before
  // targets_ has them.
  targets_[inbox.queue_pairs[0]] = {&inbox, Lane::kExpress};
  targets_[inbox.queue_pairs[1]] = {&inbox, Lane::kBulk};
  return attached;
}

void CompletionHub::Detach(Attached attached, const PathOptions& options) {
  absl::MutexLock attach_lock(&attach_mu_);
  // The queue pairs end outside of mu_: that takes long, and other threads poll
  // meanwhile. Completions that they find for the path still go to its inbox.
  attached.pairs = {};
  free_sends_ += SendShare(options);
  free_receives_ += ReceiveShare(options);
  absl::MutexLock lock(&mu_);
  while (DrainSends()) {
  }
  // A destroyed queue pair makes no further completion. Older completions leave
  // the queues here, while the inbox still exists, so none is left when the
  // device gives the same number to a new queue pair.
  while (DrainReceives()) {
  }
  Disarm(*attached.inbox);
  for (const uint32_t number : attached.inbox->queue_pairs) {
    targets_.erase(number);
  }
  // last_target_ may name the inbox that ends with this call.
  last_target_ = {};
}

void CompletionHub::Progress(Inbox& self) {
  // An armed path may have been woken by a descriptor, which stays readable
  // until it is read.
  if (self.armed || ++polls_since_look_ >= kPollsPerLook) {
    LookAtDescriptors(self);
  }
  // Sends first: when a send fails because the peer is gone, the peer's last
  // notifications are in the other queue by then.
  DrainSends();
  DrainReceives();
}

bool CompletionHub::Arm(Inbox& self, bool wants_sends) {
  if (self.news) return false;
  Disarm(self);
  // Other paths that sleep share the queues, so the call asks for their events
  // as well.
  ArmQueues(wants_sends || want_sends_ > 0);
  // Completions from before the queues were armed make no event.
  while (DrainSends()) {
  }
  while (DrainReceives()) {
  }
  if (self.news) return false;
  self.armed = true;
  ++armed_;
  self.wants_sends = wants_sends;
  if (wants_sends) ++want_sends_;
  return true;
}

void CompletionHub::ArmQueues(bool sends) {
  int error = receives_->Arm(/*solicited_only=*/true);
  if (error == 0 && sends) error = sends_->Arm(/*solicited_only=*/false);
  if (error != 0) {
    FailAll(ErrnoStatus(error, "asking for completion events"));
  }
}

void CompletionHub::Disarm(Inbox& inbox) {
  if (!inbox.armed) return;
  inbox.armed = false;
  --armed_;
  if (inbox.wants_sends) --want_sends_;
  inbox.wants_sends = false;
}

void CompletionHub::LookAtDescriptors(Inbox& self) {
  polls_since_look_ = 0;
  Disarm(self);
  std::array<epoll_event, 3> events;
  const int count = epoll_wait(self.epoll.get(), events.data(),
                               static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    uint64_t ignored;
    if (fd == channel_->fd()) {
      // Other threads may sleep on the events that this call takes.
      if (channel_->TakeEvents() > 0 && armed_ > 0) ArmQueues(want_sends_ > 0);
    } else if (fd == self.own_event.get()) {
      [[maybe_unused]] const ssize_t n = read(fd, &ignored, sizeof(ignored));
      self.signalled = false;
    } else if (read(fd, &ignored, sizeof(ignored)) == sizeof(ignored)) {
      OnTick();
    }
  }
}

void CompletionHub::OnTick() {
  for (const auto& [number, target] : targets_) {
    // Each path has two targets; the express target stands for the path,
    // because the probe travels there.
    if (target.lane != Lane::kExpress || !target.inbox->met) continue;
    if (!std::exchange(target.inbox->heard, false)) {
      target.inbox->probe_due = true;
      Notify(*target.inbox);
    }
  }
}

void CompletionHub::Notify(Inbox& inbox) {
  inbox.news = true;
  // A path that does not sleep reads `news` itself, so only a sleeping path
  // costs a system call.
  if (!inbox.armed || inbox.signalled) return;
  inbox.signalled = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n =
      write(inbox.own_event.get(), &one, sizeof(one));
}

bool CompletionHub::DrainSends() {
  int count;
  bool any = false;
  do {
    count = sends_->Poll(kBatch, batch_.data());
    for (int i = 0; i < count; ++i) OnSent(batch_[i]);
    any |= count > 0;
  } while (count == kBatch);
  if (count < 0) {
    FailAll(absl::UnavailableError("the send completion queue is broken"));
  }
  return any;
}

bool CompletionHub::DrainReceives() {
  int count;
  bool any = false;
  do {
    count = receives_->Poll(kBatch, batch_.data());
    for (int i = 0; i < count; ++i) OnReceived(batch_[i]);
    any |= count > 0;
  } while (count == kBatch);
  if (count < 0) {
    FailAll(absl::UnavailableError("the receive completion queue is broken"));
  }
  return any;
}

CompletionHub::Target CompletionHub::Find(uint32_t queue_pair) {
  if (queue_pair == last_queue_pair_ && last_target_.inbox != nullptr) {
    return last_target_;
  }
  const auto found = targets_.find(queue_pair);
  if (found == targets_.end()) return {};
  last_queue_pair_ = queue_pair;
  last_target_ = found->second;
  return found->second;
}

void CompletionHub::OnSent(const ibv_wc& completion) {
  const Target target = Find(completion.qp_num);
  // The upper half of wr_id is the path's generation, the lower half the
  // position after the request (SendLane::Fill).
  if (target.inbox == nullptr ||
      target.inbox->generation != completion.wr_id >> 32) {
    return;
  }
  Inbox& inbox = *target.inbox;
  const auto lane = static_cast<size_t>(target.lane);
  const auto through = static_cast<uint32_t>(completion.wr_id);
  if (completion.status == IBV_WC_SUCCESS) [[likely]] {
    inbox.finished[lane] = through;
    inbox.heard = inbox.met = true;
  } else if (!inbox.failed_request.has_value()) {
    // Earlier requests on this queue pair succeeded.
    inbox.finished[lane] = through - 1;
    inbox.failed_request = completion.status;
    inbox.failed_lane = target.lane;
  }
  Notify(inbox);
}

void CompletionHub::OnReceived(const ibv_wc& completion) {
  // A receive request was used, also by a completion that is dropped.
  if (++used_requests_ == kBatch) Refill();
  const Target target = Find(completion.qp_num);
  if (target.inbox == nullptr) return;
  Inbox& inbox = *target.inbox;
  inbox.heard = inbox.met = true;
  if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
    // A flush follows from an error that is reported where it happened.
    if (completion.status != IBV_WC_WR_FLUSH_ERR &&
        !inbox.failed_request.has_value()) {
      inbox.failed_request = completion.status;
      inbox.failed_lane = target.lane;
    }
    Notify(inbox);
    return;
  }
  const uint32_t imm = ntohl(completion.imm_data);
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    if (!inbox.PutNote(imm)) {
      Fail(inbox, absl::InvalidArgumentError(
                      "the peer sent more notifications than it may"));
    }
  } else if (completion.opcode == IBV_WC_RECV &&
             (completion.wc_flags & IBV_WC_WITH_IMM) != 0) {
    inbox.peer_consumed = imm;
  } else {
    Fail(inbox, absl::InvalidArgumentError(
                    "the peer sent something that is no notification"));
  }
  Notify(inbox);
}

void CompletionHub::Refill() {
  if (used_requests_ == 0) return;
  // All entries of empty_ are linked. The list is cut behind the last entry
  // that is needed, and joined again after the call.
  ibv_recv_wr& last = empty_[used_requests_ - 1];
  ibv_recv_wr* const next = std::exchange(last.next, nullptr);
  ibv_recv_wr* bad = nullptr;
  const int error = receive_requests_->Post(empty_.data(), &bad);
  last.next = next;
  if (error != 0) {
    FailAll(ErrnoStatus(error, "posting receive requests"));
    return;
  }
  used_requests_ = 0;
}

void CompletionHub::Fail(Inbox& inbox, absl::Status why) {
  if (inbox.failure.ok()) inbox.failure = std::move(why);
}

void CompletionHub::FailAll(const absl::Status& why) {
  dead_ = true;
  for (const auto& [number, target] : targets_) {
    Fail(*target.inbox, why);
    Notify(*target.inbox);
  }
}

void CompletionHub::OnDeviceEvent(absl::string_view device,
                                  const AsyncEvent& event) {
  const auto status = [&](absl::StatusCode code) {
    return absl::Status(
        code, absl::StrCat(device, ": ", ibv_event_type_str(event.type)));
  };
  absl::MutexLock lock(&mu_);
  switch (event.type) {
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:  // the CQ's hub is unknown
    case IBV_EVENT_SRQ_ERR:
      FailAll(status(absl::StatusCode::kUnavailable));
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: {
      const Target target = Find(event.queue_pair);
      if (target.inbox == nullptr) break;
      // The peer asked for memory without the right to it, or the device
      // failed.
      Fail(*target.inbox, status(event.type == IBV_EVENT_QP_FATAL
                                     ? absl::StatusCode::kUnavailable
                                     : absl::StatusCode::kInvalidArgument));
      Notify(*target.inbox);
      break;
    }
    default:
      // Ports come back, and requests that fail meanwhile report it.
      break;
  }
}

}  // namespace refract::transport::verbs
