// What comes in: requests, their admission, and questions.

#include "gpu_node/scheduler/scheduler.h"

#include <algorithm>
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

// Enough to see what goes wrong, few enough not to be what goes wrong.
constexpr int kFailureLinesPerSecond = 10;

// Of the mean gap and rows between requests, for one that comes: what is likely
// to come next is told by the latest, how much comes on the whole by more.
constexpr double kNextArrivalWeight = 1.0 / 8;
constexpr double kMeanArrivalWeight = 1.0 / 64;
// Pauses between bursts are remembered for so many times as many requests.
constexpr double kPauseMemory = 16;

void CountArrival(ArrivalRate& rate, double weight, int64_t rows,
                  absl::Time now) {
  const auto smooth = [weight](double mean, double sample) {
    return mean + weight * (sample - mean);
  };
  if (rate.last != absl::InfinitePast()) {
    const absl::Duration gap = now - rate.last;
    rate.gap = rate.gap == absl::InfiniteDuration()
                   ? gap
                   : absl::Seconds(smooth(absl::ToDoubleSeconds(rate.gap),
                                          absl::ToDoubleSeconds(gap)));
    rate.rows = smooth(rate.rows, static_cast<double>(rows));
    rate.pause = std::max(gap, rate.pause * (1 - weight / kPauseMemory));
  } else {
    rate.rows = static_cast<double>(rows);
  }
  rate.last = now;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options,
                     std::vector<ScheduledModel> models, Device* device,
                     base::Clock& clock)
    : options_(options),
      device_(device),
      clock_(clock),
      failure_log_(kFailureLinesPerSecond, clock),
      instances_(device->traits().instances),
      shares_(SharesOf(models)),
      standings_(SharesOf(models)),
      residents_(device->traits().weight_memory, BytesOf(models)),
      load_bytes_per_s_(device->traits().load_bytes_per_s) {
  for (ScheduledModel& model : models) {
    Model& added = models_.emplace_back();
    added.times = model.times;
    // What was measured at load is believed at first.
    if (added.times.known(clock.Now())) {
      added.last_run = clock.Now();
      for (Model::Size& size : added.sizes) size.last_run = clock.Now();
    }
    added.config = std::move(model);
  }
  double shares = 0;
  for (const Model& model : models_) shares += model.config.share;
  for (Model& model : models_) {
    model.guaranteed_places = std::max<size_t>(
        1, static_cast<size_t>(static_cast<double>(options.max_queue) *
                               model.config.share / shares));
  }
  for (Instance& instance : instances_) {
    instance.slots.resize(device->traits().slots);
  }
  scratch_.quiet.reserve(models_.size());
  scratch_.competitors.reserve(models_.size());
  if (device->traits().weight_memory > 0) return;
  // There is room for all, so the device has them from the start.
  for (size_t i = 0; i < models_.size(); ++i) {
    residents_.BeginLoad(i);
    residents_.FinishLoad(i, true);
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
  if (rows <= most) return model.times.Typical(rows, now);
  const absl::Duration full = model.times.Typical(most, now) * (rows / most);
  return rows % most == 0 ? full : full + model.times.Typical(rows % most, now);
}

absl::Duration Scheduler::LoadTime(const Model& model) const {
  if (load_bytes_per_s_ <= 0) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(model.config.weight_bytes) /
                       load_bytes_per_s_);
}

absl::Time Scheduler::FreeAt(const Instance& instance, absl::Time now) const {
  absl::Time free = now;
  for (const Slot& slot : instance.slots) {
    if (slot.step == Step::kExecuting) {
      free = std::max(free, slot.step_began + slot.estimate);
    }
  }
  for (const Slot& slot : instance.slots) {
    if (slot.step == Step::kUploading || slot.step == Step::kUploaded) {
      free += slot.estimate;
    }
  }
  return free;
}

absl::Status Scheduler::Unready() const {
  const Instance* failed = nullptr;
  for (const Instance& instance : instances_) {
    // At first, instances are awaited.
    if (instance.up() ||
        (instance.health == Health::kStarting && instance.failures == 0)) {
      return absl::OkStatus();
    }
    failed = &instance;
  }
  return absl::UnavailableError(absl::StrCat(
      "no instance of device ", device_->traits().name, " is up: ",
      failed == nullptr ? "there is none" : failed->error.message()));
}

absl::Status Scheduler::HeldUp(const Model& model) const {
  if (!AtOwnLimit(model)) return absl::OkStatus();
  int stuck = 0;
  const absl::Status* why = nullptr;
  for (const Instance& instance : instances_) {
    if (!instance.stuck) continue;
    for (const Slot& slot : instance.slots) {
      if (slot.batch == nullptr || &models_[slot.batch->model] != &model) {
        continue;
      }
      ++stuck;
      why = &instance.error;
    }
  }
  return stuck < model.config.max_instances ? absl::OkStatus() : *why;
}

absl::Status Scheduler::ModelReady(size_t index) const {
  absl::MutexLock lock(&mu_);
  return ReadyLocked(models_[index]);
}

absl::Status Scheduler::ReadyLocked(const Model& model) const {
  if (closed_) return absl::UnavailableError("the HN is stopping");
  const absl::Status unready = Unready();
  if (!unready.ok()) return unready;
  return model.load_error.ok() ? HeldUp(model) : model.load_error;
}

void Scheduler::WatchReadiness(std::function<void()> listener) {
  absl::MutexLock lock(&mu_);
  listener_ =
      listener == nullptr
          ? nullptr
          : std::make_shared<const std::function<void()>>(std::move(listener));
}

absl::Duration Scheduler::BackOff(int failures) const {
  const int doublings = std::clamp(failures - 1, 0, 20);
  return std::min(options_.first_backoff * (int64_t{1} << doublings),
                  options_.last_backoff);
}

absl::Status Scheduler::CheckAdmission(Model& model, size_t index, int64_t rows,
                                       absl::Time deadline, absl::Time now,
                                       bool* probe) {
  *probe = false;
  if (closed_) return absl::UnavailableError("the HN is stopping");
  const int64_t most = model.config.batching.max_rows;
  if (rows > most && !model.config.splittable) {
    ++model.stats.too_large;
    return absl::InvalidArgumentError(
        absl::StrCat("the batch has ", rows, " rows, the largest that ",
                     model.config.label, " takes here is ", most));
  }
  absl::Status status = Unready();
  if (status.ok()) status = model.load_error;
  if (status.ok()) status = HeldUp(model);
  if (!status.ok()) {
    ++model.stats.unavailable;
    return status;
  }
  const size_t own_limit = model.config.max_queue;
  const size_t own_queue = model.queue.size();
  // Its part of the places is a model's own, however many others wait.
  const bool full =
      queued_ >= options_.max_queue && own_queue >= model.guaranteed_places;
  if (full || (own_limit > 0 && own_queue >= own_limit)) {
    ++model.stats.queue_full;
    return absl::ResourceExhaustedError(absl::StrCat(
        "HN queue is full, ", full ? queued_ : own_queue, " requests wait"));
  }
  // One that is late already is told so by the queue.
  if (deadline == absl::InfiniteFuture() || deadline <= now) {
    return absl::OkStatus();
  }
  absl::InlinedVector<absl::Time, 16> free_at;
  for (const Instance& instance : instances_) {
    if (instance.up()) {
      free_at.push_back(FreeAt(instance, now));
    }
  }
  if (free_at.empty()) return absl::OkStatus();  // the first is starting
  AdmissionSnapshot snapshot;
  snapshot.now = now;
  snapshot.deadline = deadline;
  snapshot.free_at = free_at;
  snapshot.own = TimeFor(model, rows, now);
  const absl::Duration horizon =
      (deadline - now) * static_cast<int64_t>(free_at.size());
  const ModelQueue::Work work = model.queue.WorkBefore(deadline, horizon);
  snapshot.ahead = work.time;
  if (model.config.batching.enabled) {
    // Merged as far as the rows allow, this one with the last of them.
    const absl::Duration merged =
        TimeFor(model, work.rows + rows, now) - snapshot.own;
    snapshot.ahead = std::clamp(merged, absl::ZeroDuration(), snapshot.ahead);
  }
  for (const std::unique_ptr<Batch>& batch : model.unfinished) {
    snapshot.ahead +=
        TimeFor(model, batch->members[0].rows - batch->first_row, now);
  }
  std::vector<Competitor>& others = scratch_.competitors;
  others.clear();
  for (size_t i = 0; i < models_.size(); ++i) {
    if (i == index || models_[i].queue.empty()) continue;
    absl::Duration queued = models_[i].queue.work();
    if (models_[i].config.batching.enabled) {
      queued =
          std::min(queued, TimeFor(models_[i], models_[i].queue.rows(), now));
    }
    const Standing standing = StandingOf(i);
    if (standing < StandingOf(index)) {
      snapshot.ahead += queued;
    } else if (standing == StandingOf(index)) {
      others.push_back({queued, models_[i].config.share});
    }
  }
  snapshot.ahead +=
      CompetingWork(snapshot.ahead + snapshot.own, model.config.share, others);
  snapshot.own_at_best = snapshot.own;
  if (residents_.state(index) != ResidentSet::State::kIn) {
    snapshot.own += LoadTime(model);
  }
  status = DecideAdmission(snapshot);
  if (status.ok()) return status;
  *probe = MayProbe(model, rows, snapshot);
  if (*probe) return absl::OkStatus();
  ++model.stats.refused;
  return status;
}

bool Scheduler::MayProbe(Model& model, int64_t rows,
                         const AdmissionSnapshot& snapshot) {
  const absl::Time now = snapshot.now;
  if (now - model.last_run >= kProbeInterval &&
      now - model.last_probe >= kProbeInterval) {
    return true;
  }
  // Others of the model are executed, and wait for a probe: it takes no more
  // than a small part of the time. No size takes every turn of the others.
  const Model::Size& size = model.SizeOf(rows);
  const absl::Duration rest =
      std::max(kProbeInterval, kProbeRest * snapshot.own_at_best);
  return now - size.last_run >= rest && now - size.last_probe >= 2 * rest &&
         now - model.last_probe >= rest &&
         PredictStart(now, snapshot.free_at, snapshot.ahead) <
             snapshot.deadline;
}

void Scheduler::MakePlaces(Model& model, absl::Time now, Actions& actions) {
  if (queued_ >= options_.max_queue) {
    for (Model& other : models_) DropDead(other, now, actions);
  } else if (model.config.max_queue > 0 &&
             model.queue.size() >= model.config.max_queue) {
    DropDead(model, now, actions);
  }
}

absl::Status Scheduler::Admit(size_t index, int64_t rows, absl::Time deadline) {
  Actions actions;
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    Model& model = models_[index];
    const absl::Time now = clock_.Now();
    MakePlaces(model, now, actions);
    // One that is to find out is asked about again when it is here.
    bool probe = false;
    status = CheckAdmission(model, index, rows, deadline, now, &probe);
    if (absl::IsResourceExhausted(status)) CountRefused(index, rows, now);
  }
  Perform(actions);
  return status;
}

void Scheduler::CountRefused(size_t index, int64_t rows, absl::Time now) {
  Model& model = models_[index];
  CountArrival(model.all_arrivals, kMeanArrivalWeight, rows, now);
  standings_.Use(index, TimeFor(model, rows, now));
}

void Scheduler::Submit(size_t index,
                       std::unique_ptr<transport::ServerCall> call,
                       int64_t rows, absl::string_view merge_key) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    const absl::Time now = clock_.Now();
    Model& model = models_[index];
    MakePlaces(model, now, actions);
    bool probe = false;
    const absl::Status status =
        CheckAdmission(model, index, rows, call->deadline(), now, &probe);
    if (status.ok()) {
      if (probe) model.last_probe = model.SizeOf(rows).last_probe = now;
      if (!model.has_work() && model.in_works == 0) shares_.Activate(index);
      const absl::Duration time = TimeFor(model, rows, now);
      CountArrival(model.all_arrivals, kMeanArrivalWeight, rows, now);
      if (!merge_key.empty()) {
        CountArrival(model.arrivals, kNextArrivalWeight, rows, now);
      }
      model.queue.Push({.call = std::move(call),
                        .rows = rows,
                        .arrival = now,
                        .estimate = time,
                        .is_probe = probe},
                       merge_key);
      ++queued_;
      ++pending_;
    } else {
      if (absl::IsResourceExhausted(status)) CountRefused(index, rows, now);
      actions.answers.push_back({std::move(call), status, false});
    }
  }
  Perform(actions);
  Pump();
}

void Scheduler::OnAbandoned(size_t index) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    Model& model = models_[index];
    model.any_abandoned = true;
    DropDead(model, clock_.Now(), actions);
  }
  Perform(actions);
  Pump();
}

void Scheduler::OnWithdrawn(size_t index) {
  absl::MutexLock lock(&mu_);
  ++models_[index].stats.abandoned;
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
      // Woken by another timer, too, if it is earlier. One that is put off, as
      // most are, wakes nobody before its time.
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

ModelStats Scheduler::stats(size_t model) const {
  absl::MutexLock lock(&mu_);
  return models_[model].stats;
}

size_t Scheduler::pending() const {
  absl::MutexLock lock(&mu_);
  return pending_;
}

}  // namespace refract::gpu_node
