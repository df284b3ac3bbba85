#include "cpu_node/dispatch/start_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace refract::cpu_node {
namespace {

// Admission lengthens a predicted wait by 1/kWaitMargin of it; Foresee() says
// why.
constexpr int kWaitMargin = 4;

std::vector<double> SharesOf(const std::vector<QueuedModel>& models) {
  std::vector<double> shares;
  shares.reserve(models.size());
  for (const QueuedModel& model : models) shares.push_back(model.share);
  return shares;
}

}  // namespace

StartQueue::StartQueue(Options options)
    : options_(std::move(options)),
      turns_(SharesOf(options_.models), options_.workers) {
  models_.reserve(options_.models.size());
  for (const QueuedModel& model : options_.models) {
    models_.emplace_back().config = model;
  }
  SetPlaces();
}

void StartQueue::SetPlaces() {
  double shares = 0;
  for (const Model& model : models_) {
    if (model.present) shares += model.config.share;
  }
  for (Model& model : models_) {
    model.places = std::max<size_t>(
        1, static_cast<size_t>(static_cast<double>(options_.max_queue) *
                               model.config.share / shares));
  }
  competitors_.reserve(models_.size());
  order_.reserve(models_.size());
}

size_t StartQueue::AddModel(QueuedModel model, std::optional<size_t> alike) {
  size_t index = 0;
  while (index < models_.size() && models_[index].present) ++index;
  if (index == models_.size()) models_.emplace_back();
  Model added;
  added.config = std::move(model);
  if (alike.has_value()) {
    added.start = models_[*alike].start;
    added.away = models_[*alike].away;
    added.finish = models_[*alike].finish;
  }
  turns_.SetShare(index, added.config.share);
  models_[index] = std::move(added);
  SetPlaces();
  return index;
}

void StartQueue::RemoveModel(size_t model) {
  models_[model].present = false;
  turns_.SetShare(model, 0);
  SetPlaces();
}

// ------------------------------------------------------------------ admission

absl::Duration StartQueue::WorkerTime(const Model& model, int64_t rows,
                                      absl::Time now) const {
  return model.start.Mean(rows, now) + model.finish.Mean(rows, now);
}

absl::Duration StartQueue::OwnTime(const Model& model, int64_t rows,
                                   int64_t in_flight, absl::Time now) const {
  return model.start.Typical(rows, now) +
         // Times at the GPU node grow with the rows in flight there, so `away`
         // is kept by that number, not by the request's rows alone.
         model.away.High(in_flight + rows, now) + model.finish.High(rows, now);
}

bool StartQueue::Probes(const Model& model, absl::Time now) const {
  // A probe. Only requests that run correct the predictions, so a model that
  // has nothing in flight and was not started for a while may try a request
  // that is predicted to be late.
  return model.in_flight == 0 && model.queue.empty() &&
         now - model.last_started >= scheduling::ExecutionTimes::kPause;
}

absl::Duration StartQueue::WorkOfOthers(size_t index, absl::Duration own) {
  // As on a GPU node: requests of models below their share go before requests
  // of other models. Otherwise shares decide the turns.
  const bool below_share = turns_.BelowShare(index);
  absl::Duration first;
  competitors_.clear();
  for (size_t i = 0; i < models_.size(); ++i) {
    const Model& other = models_[i];
    if (i == index || other.queue.empty()) continue;
    if (turns_.BelowShare(i) == below_share) {
      competitors_.push_back({other.queue.work().time, other.config.share});
    } else if (!below_share) {
      first += other.queue.work().time;
    }
  }
  return first + scheduling::CompetingWork(
                     first + own, models_[index].config.share, competitors_);
}

absl::Status StartQueue::Foresee(size_t index, uint8_t priority, int64_t rows,
                                 absl::Time deadline, absl::Time now,
                                 const std::vector<absl::Time>& free_at) {
  const Model& model = models_[index];
  scheduling::AdmissionSnapshot snapshot;
  snapshot.node = "CN";
  snapshot.now = now;
  snapshot.deadline = deadline;
  snapshot.rows = snapshot.most_rows = rows;
  snapshot.label = model.config.label;
  // A job of a lower level would make room.
  const size_t lower = model.queue.SizeBelow(priority);
  snapshot.node_queue = lower > 0 ? 0 : waiting_;
  snapshot.node_places = options_.max_queue;
  snapshot.model_queue = model.queue.size() - lower;
  snapshot.quota = model.places;
  // A probe is admitted whatever its prediction.
  if (deadline != absl::InfiniteFuture() && !Probes(model, now)) {
    snapshot.own = OwnTime(model, rows, model.rows_in_flight, now);
    snapshot.own_at_best = OwnTime(model, rows, 0, now);
    const Queue::Work before = model.queue.WorkBefore(
        priority, deadline, (deadline - now) * options_.workers);
    snapshot.ahead = before.time + to_finish_;
    snapshot.ahead +=
        WorkOfOthers(index, snapshot.ahead + WorkerTime(model, rows, now));
    // Where GPU nodes are the bottleneck, the requests ahead reach the GPU
    // nodes before this request does. PredictStart() divides by the workers.
    const absl::Duration gpu_ahead =
        OwnTime(model, rows, model.rows_in_flight + before.rows, now) -
        snapshot.own;
    snapshot.ahead = std::max(snapshot.ahead, gpu_ahead * options_.workers);
    // Under overload the queue grows until requests are refused, so that
    // admitted requests are answered as late as this margin allows. Times that
    // are not measured here (the client's network, other processes) must fit
    // into the margin.
    snapshot.ahead += snapshot.ahead / kWaitMargin;
    snapshot.free_at = free_at;
  }
  std::optional<scheduling::Refusal> refusal =
      scheduling::DecideAdmission(snapshot);
  return refusal.has_value() ? std::move(refusal->status) : absl::OkStatus();
}

absl::Status StartQueue::Admit(Job& job, size_t index, int64_t rows,
                               absl::Time deadline, absl::Time now,
                               const std::vector<absl::Time>& free_at) {
  const absl::Status status =
      Foresee(index, job.priority, rows, deadline, now, free_at);
  if (!status.ok()) return status;
  Model& model = models_[index];
  if (waiting_ >= options_.max_queue && model.queue.SizeBelow(job.priority) > 0) {
    Displace(model);
  }
  job.model_ = index;
  job.rows_ = rows;
  job.probe_ = Probes(model, now);
  model.queue.Push(job.priority, deadline,
                   {.rows = rows,
                    .queued_at = now,
                    .estimate = WorkerTime(model, rows, now),
                    .payload = &job},
                   "");
  ++waiting_;
  return absl::OkStatus();
}

void StartQueue::Displace(Model& model) {
  const Queue::Request taken = model.queue.Take(model.queue.Last());
  --waiting_;
  displaced_.push_back(
      {.job = taken.payload,
       .refused = absl::ResourceExhaustedError(
           "the CN queue is full, and a request of a higher priority came"),
       .queued_at = taken.queued_at});
}

// ---------------------------------------------------------------------- turns

std::optional<StartQueue::Turn> StartQueue::Next(absl::Time now) {
  if (!displaced_.empty()) {
    Turn turn = std::move(displaced_.back());
    displaced_.pop_back();
    return turn;
  }
  order_.clear();
  for (size_t i = 0; i < models_.size(); ++i) {
    if (!models_[i].queue.empty()) order_.push_back(i);
  }
  std::sort(order_.begin(), order_.end(),
            [&](size_t a, size_t b) { return turns_.Before(a, b); });
  for (const size_t index : order_) {
    if (std::optional<Turn> turn = TurnOf(index, now)) return turn;
  }
  return std::nullopt;
}

std::optional<StartQueue::Turn> StartQueue::TurnOf(size_t index,
                                                   absl::Time now) {
  Model& model = models_[index];
  const Queue::Request* const expired = model.queue.Expired(now);
  const Queue::Request& next =
      expired != nullptr ? *expired : model.queue.Next();
  Job& job = *next.payload;
  const absl::Duration own =
      job.probe_ ? absl::ZeroDuration()
                 : OwnTime(model, next.rows, model.rows_in_flight, now);
  const scheduling::Verdict verdict =
      scheduling::Judge(next.key.deadline, job.abandoned(), own, now);
  // No room at a GPU node: the job keeps its place, and the next model gets the
  // worker.
  if (verdict == scheduling::Verdict::kRun && !job.Reserve()) {
    return std::nullopt;
  }
  const Queue::Request taken = model.queue.Take(next);
  --waiting_;
  Turn turn{.job = &job, .queued_at = taken.queued_at};
  if (verdict != scheduling::Verdict::kRun) {
    turn.refused =
        scheduling::WhyDropped(verdict, "CN", taken.key.deadline, own, now);
    return turn;
  }
  model.queue.CountTurn(taken.key.deadline != absl::InfiniteFuture());
  job.start_ = turn.time = model.start.Typical(job.rows_, now);
  job.finish_ = model.finish.Mean(job.rows_, now);
  // Work that comes back from GPU nodes goes before new requests, so admission
  // counts it as work ahead.
  to_finish_ += job.finish_;
  ++model.in_flight;
  model.rows_in_flight += job.rows_;
  job.rows_in_flight_ = model.rows_in_flight;
  model.last_started = now;
  turns_.TakeTurn(index, job.start_ + job.finish_);
  return turn;
}

StartQueue::Job* StartQueue::TakeAny() {
  if (!displaced_.empty()) {
    Job* const job = displaced_.back().job;
    displaced_.pop_back();
    return job;
  }
  for (Model& model : models_) {
    if (model.queue.empty()) continue;
    --waiting_;
    return model.queue.Take(model.queue.Next()).payload;
  }
  return nullptr;
}

absl::Time StartQueue::NextExpiry() const {
  absl::Time earliest = absl::InfiniteFuture();
  for (const Model& model : models_) {
    earliest = std::min(earliest, model.queue.earliest_deadline());
  }
  return earliest;
}

void StartQueue::End(const Job& job, const PartTimes& times, bool typical,
                     absl::Time now) {
  Model& model = models_[job.model_];
  --model.in_flight;
  model.rows_in_flight -= job.rows_;
  to_finish_ -= job.finish_;
  turns_.Correct(job.model_,
                 times.start + times.finish - job.start_ - job.finish_);
  if (!typical) return;
  model.start.Record(job.rows_, times.start, now);
  model.away.Record(job.rows_in_flight_, times.away, now);
  model.finish.Record(job.rows_, times.finish, now);
}

}  // namespace refract::cpu_node
