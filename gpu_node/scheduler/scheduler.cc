// Calls from outside: requests and their admission, and queries.

#include "gpu_node/scheduler/scheduler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace refract::gpu_node {
namespace {

std::vector<double> SharesOf(const std::vector<ScheduledModel>& models) {
  std::vector<double> shares;
  for (const ScheduledModel& model : models) {
    CHECK_GT(model.share, 0) << model.label;
    shares.push_back(model.share);
  }
  return shares;
}

std::vector<size_t> BytesOf(const std::vector<ScheduledModel>& models) {
  std::vector<size_t> bytes;
  for (const ScheduledModel& model : models) {
    bytes.push_back(model.weight_bytes);
  }
  return bytes;
}

absl::Status Removed() {
  return absl::UnavailableError("the model was unloaded on this GPU node");
}

// Enough lines to see a fault, too few to fill a disk or slow the node down.
constexpr int kFailureLinesPerSecond = 10;

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options,
                     std::vector<ScheduledModel> models, Device* device,
                     base::Clock& clock)
    : options_(options),
      device_(device),
      clock_(clock),
      failure_log_(kFailureLinesPerSecond, clock),
      slow_log_(kFailureLinesPerSecond, clock),
      instances_(device->traits().instances),
      turns_(SharesOf(models), device->traits().instances),
      planned_at_(clock.Now()),
      residents_(device->traits().weight_memory, BytesOf(models)),
      load_bytes_per_s_(device->traits().load_bytes_per_s) {
  absl::MutexLock lock(&mu_);
  for (ScheduledModel& model : models) {
    models_.emplace_back().number = num_models_++;
    Describe(models_.size() - 1, std::move(model));
  }
  SetQuotas();
  for (Instance& instance : instances_) {
    instance.slots.resize(device->traits().slots);
  }
}

Scheduler::~Scheduler() {
  Close();
  StopTimers();
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    for (Model& model : models_) {
      FailQueued(model, absl::UnavailableError("the HN is stopping"), actions);
    }
  }
  Perform(actions);
  // The device still calls back into this object for the batches it holds.
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &Scheduler::DeviceIdle));
}

void Scheduler::Start() {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < instances_.size(); ++i) {
      actions.calls.push_back(
          {Actions::Call::kStart, static_cast<int>(i), 0, nullptr});
      ++in_calls_;
    }
  }
  Perform(actions);
}

absl::Duration Scheduler::TimeFor(const Model& model, int64_t rows,
                                  absl::Time now) const {
  const int64_t most = model.config.batching.max_rows;
  // Full steps and a rest; their measured times include their overhead.
  if (rows <= most) return model.times.Typical(rows, now);
  const absl::Duration full = model.times.Typical(most, now) * (rows / most);
  return rows % most == 0 ? full : full + model.times.Typical(rows % most, now);
}

void Scheduler::SetTimes(size_t index,
                         const scheduling::ExecutionTimes& times) {
  {
    absl::MutexLock lock(&mu_);
    Model* const model = Find(index);
    if (model == nullptr) return;
    model->times = times;
    model->config.measuring = false;
    // Fresh measurements count as tries: no probe is needed for a while.
    if (times.known(clock_.Now())) model->last_tried.fill(clock_.Now());
  }
  Pump();  // tells the listener
}

absl::Status Scheduler::ModelReady(size_t index) const {
  absl::MutexLock lock(&mu_);
  const Model* const model = Find(index);
  return model == nullptr ? Removed() : ReadyLocked(*model);
}

void Scheduler::WatchReadiness(std::function<void()> listener) {
  absl::MutexLock lock(&mu_);
  listener_ =
      listener == nullptr
          ? nullptr
          : std::make_shared<const std::function<void()>>(std::move(listener));
}

std::optional<absl::Status> Scheduler::Refuse(Model& model, size_t index,
                                              uint8_t priority, int64_t rows,
                                              absl::Time deadline,
                                              absl::Time now, bool* probe) {
  *probe = false;
  // The rules are pure (scheduling/admission.h): this function takes the
  // snapshot that they judge, and counts their refusal.
  scheduling::AdmissionSnapshot snapshot;
  snapshot.now = now;
  snapshot.deadline = deadline;
  snapshot.rows = rows;
  snapshot.label = model.config.label;
  snapshot.most_rows = model.config.batching.max_rows;
  snapshot.divisible = model.config.splittable;
  snapshot.available = ReadyLocked(model);
  snapshot.node_queue = queued_;
  snapshot.node_places = options_.max_queue;
  snapshot.model_queue = model.queue.size();
  if (model.config.max_queue > 0)
    snapshot.model_places = model.config.max_queue;
  snapshot.quota = model.quota;
  if (deadline != absl::InfiniteFuture()) {
    // A request without a deadline is never too late, so nothing is predicted.
    Predict(model, index, priority, snapshot);
  }
  std::optional<scheduling::Refusal> refusal =
      scheduling::DecideAdmission(snapshot);
  if (!refusal.has_value()) return std::nullopt;
  switch (refusal->kind) {
    case scheduling::Refusal::Kind::kTooLarge:
      ++model.stats.too_large;
      break;
    case scheduling::Refusal::Kind::kUnavailable:
      ++model.stats.unavailable;
      break;
    case scheduling::Refusal::Kind::kQueueFull:
      ++model.stats.queue_full;
      break;
    case scheduling::Refusal::Kind::kTooLate: {
      // A probe is useful only if it would be late by its own time: behind a
      // long queue it would miss its deadline even with a wrong prediction.
      const absl::Duration rest =
          std::max(kProbeInterval, kProbeRest * snapshot.own_at_best);
      *probe = now - model.LastTried(rows) >= rest &&
               scheduling::PredictStart(now, snapshot.free_at, snapshot.ahead) <
                   deadline;
      if (*probe) return std::nullopt;
      ++model.stats.refused;
      break;
    }
  }
  return std::move(refusal->status);
}

void Scheduler::Predict(const Model& model, size_t index, uint8_t priority,
                        scheduling::AdmissionSnapshot& snapshot) {
  const absl::Time now = snapshot.now;
  std::vector<absl::Time>& free_at = scratch_.free_at;
  free_at.clear();
  for (const Instance& instance : instances_) {
    // When each instance has finished the batches that it holds.
    if (instance.up()) free_at.push_back(FreeAt(instance, now));
  }
  snapshot.free_at = free_at;
  snapshot.own = snapshot.own_at_best = TimeFor(model, snapshot.rows, now);
  // Requests of the same model that go before this request. The count ends with
  // the requests that can run until the deadline: more of them refuse this
  // request in any case.
  const absl::Duration horizon =
      (snapshot.deadline - now) * static_cast<int64_t>(free_at.size());
  const Queue::Work before =
      model.queue.WorkBefore(priority, snapshot.deadline, horizon);
  snapshot.ahead = before.time;
  if (model.config.batching.enabled) {
    // Requests merged as far as their rows allow, with this request in the last
    // execution.
    const absl::Duration merged =
        TimeFor(model, before.rows + snapshot.rows, now) - snapshot.own;
    snapshot.ahead = std::clamp(merged, absl::ZeroDuration(), snapshot.ahead);
  }
  // Requests of a model below its share go before requests of models that have
  // used theirs. Otherwise models take turns by their shares.
  const bool below_share = turns_.BelowShare(index);
  std::vector<scheduling::Competitor>& others = scratch_.competitors;
  others.clear();
  for (size_t i = 0; i < models_.size(); ++i) {
    const Model& other = models_[i];
    if (i == index || other.queue.empty()) continue;
    const Queue::Work work = other.queue.work();
    const absl::Duration queued =
        other.config.batching.enabled
            ? std::min(work.time, TimeFor(other, work.rows, now))
            : work.time;
    if (turns_.BelowShare(i) == below_share) {
      others.push_back({queued, other.config.share});
    } else if (!below_share) {
      snapshot.ahead += queued;
    }
  }
  snapshot.ahead += scheduling::CompetingWork(snapshot.ahead + snapshot.own,
                                              model.config.share, others);
  // Not part of own_at_best: a probe is for wrong execution times, not for
  // copies of weights.
  if (residents_.state(index) != ResidentSet::State::kIn) {
    snapshot.own += LoadTime(model);
  }
}

void Scheduler::MakePlaces(Model& model, absl::Time now, Actions& actions) {
  // Before a request is refused for a full queue, requests that nobody waits
  // for leave it. Other models are searched only if the node is full.
  if (queued_ >= options_.max_queue) {
    for (Model& other : models_) DropDead(other, now, actions);
  } else {
    DropDead(model, now, actions);
  }
}

absl::Status Scheduler::Admit(size_t number, uint8_t priority, int64_t rows,
                              absl::Time deadline) {
  const size_t index = PlaceOf(number);
  Actions actions;
  std::optional<absl::Status> refused;
  {
    absl::MutexLock lock(&mu_);
    if (Find(number) == nullptr) return Removed();
    Model& model = models_[index];
    const absl::Time now = clock_.Now();
    MakePlaces(model, now, actions);
    // A probe passes admission twice: now, and when its payload has arrived.
    bool probe = false;
    refused = Refuse(model, index, priority, rows, deadline, now, &probe);
  }
  Perform(actions);
  return refused.value_or(absl::OkStatus());
}

void Scheduler::Submit(size_t number,
                       std::unique_ptr<transport::ServerCall> call,
                       int64_t rows, absl::string_view merge_key) {
  const size_t index = PlaceOf(number);
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = clock_.Now();
    const bool removed = Find(number) == nullptr;
    Model& model = models_[index];
    // First, so that requests that wait in vain do not cause refusals.
    MakePlaces(model, now, actions);
    const absl::Time deadline = call->deadline();
    const uint8_t priority = call->priority();
    BatchMember member;
    member.call = std::move(call);
    member.rows = rows;
    member.arrived = now;
    bool probe = false;
    const std::optional<absl::Status> refused =
        removed ? Removed()
                : Refuse(model, index, priority, rows, deadline, now, &probe);
    if (refused.has_value()) {
      actions.answers.push_back({std::move(member), *refused, false});
    } else {
      if (probe) model.LastTried(rows) = now;
      // Only admitted requests count: batching waits for requests that it can
      // merge.
      model.arrivals.Count(rows, now);
      Queue::Request request;
      request.rows = rows;
      request.queued_at = now;
      request.estimate = TimeFor(model, rows, now);
      request.payload.member = std::move(member);
      request.payload.is_probe = probe;
      model.queue.Push(priority, deadline, std::move(request), merge_key);
      ++queued_;
      ++pending_;
    }
  }
  Perform(actions);
  Pump();
}

void Scheduler::OnAbandoned(size_t index) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    Model* const model = Find(index);
    if (model == nullptr) return;
    model->any_abandoned = true;
    DropDead(*model, clock_.Now(), actions);
  }
  Perform(actions);
  Pump();
}

void Scheduler::OnWithdrawn(size_t index) {
  absl::MutexLock lock(&mu_);
  if (Model* const model = Find(index)) ++model->stats.abandoned;
}

void Scheduler::Close() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

bool Scheduler::AwaitIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  return clock_.AwaitWithDeadline(mu_, absl::Condition(this, &Scheduler::Idle),
                                  clock_.Now() + timeout);
}

absl::Time Scheduler::next_timer() const {
  absl::MutexLock lock(&mu_);
  return next_timer_;
}

void Scheduler::WakeAt(absl::Time time) {
  next_timer_ = std::min(next_timer_, time);
}

void Scheduler::RunTimers() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      struct Wait {
        Scheduler* self;
        absl::Time until;
      } wait{this, next_timer_};
      // An earlier timer also wakes the thread. A postponed timer, as most are,
      // does not wake it before its new time.
      clock_.AwaitWithDeadline(mu_,
                               absl::Condition(
                                   +[](Wait* w) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                     return w->self->stop_timers_ ||
                                            w->self->next_timer_ < w->until;
                                   },
                                   &wait),
                               wait.until);
      if (stop_timers_) return;
      if (next_timer_ > clock_.Now()) continue;
    }
    Pump();
  }
}

void Scheduler::StopTimers() {
  absl::MutexLock lock(&mu_);
  stop_timers_ = true;
}

std::shared_ptr<const ModelHistograms> Scheduler::histograms(
    size_t model) const {
  absl::MutexLock lock(&mu_);
  const Model* const found = Find(model);
  return found == nullptr ? nullptr : found->histograms;
}

scheduling::ExecutionTimes Scheduler::times(size_t model) const {
  absl::MutexLock lock(&mu_);
  const Model* const found = Find(model);
  return found == nullptr ? scheduling::ExecutionTimes() : found->times;
}

ModelStats Scheduler::stats(size_t model) const {
  absl::MutexLock lock(&mu_);
  const Model* const found = Find(model);
  return found == nullptr ? ModelStats() : found->stats;
}

size_t Scheduler::pending() const {
  absl::MutexLock lock(&mu_);
  return pending_;
}

}  // namespace refract::gpu_node
