// What to do next: which instance gets which requests.

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gpu_node/scheduler.h"

namespace refract::gpu_node {
namespace {

// Uploads begin this many times their typical time before they are needed.
constexpr int64_t kUploadLead = 2;

absl::Status WhyDropped(Verdict verdict, absl::Time deadline,
                        absl::Duration time, absl::Time now) {
  switch (verdict) {
    case Verdict::kDropAbandoned:
      return absl::CancelledError("the client does not wait any more");
    case Verdict::kDropHopeless:
      return absl::DeadlineExceededError(absl::StrCat(
          "deadline would pass at HN execution: ", absl::FormatDuration(time),
          " to execute, ", absl::FormatDuration(deadline - now), " left"));
    case Verdict::kDropExpired:
    case Verdict::kRun:
      break;
  }
  return absl::DeadlineExceededError(
      absl::StrCat("deadline passed at HN queue, ",
                   absl::FormatDuration(now - deadline), " ago"));
}

}  // namespace

void Scheduler::Pump() {
  while (true) {
    Actions actions;
    {
      absl::MutexLock lock(&mu_);
      Plan(clock_.Now(), actions);
    }
    if (actions.empty()) return;
    Perform(actions);
  }
}

void Scheduler::Plan(absl::Time now, Actions& actions) {
  next_timer_ = absl::InfiniteFuture();
  for (size_t i = 0; i < instances_.size(); ++i) {
    PlanInstance(static_cast<int>(i), now, actions);
  }
  const absl::Status unready = Unready();
  if (!unready.ok()) {
    for (Model& model : models_) FailQueued(model, unready, actions);
    return;
  }
  // Those that are free soonest first.
  absl::InlinedVector<int, 16> order;
  for (size_t i = 0; i < instances_.size(); ++i) {
    if (instances_[i].health == Health::kUp)
      order.push_back(static_cast<int>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return FreeAt(instances_[a], now) < FreeAt(instances_[b], now);
  });
  for (const int index : order) {
    if (queued_ == 0) break;
    Assign(index, now, actions);
  }
}

void Scheduler::PlanInstance(int index, absl::Time now, Actions& actions) {
  Instance& instance = instances_[index];
  if (instance.health == Health::kDown) {
    if (closed_) return;
    if (instance.start_again > now) return WakeAt(instance.start_again);
    instance.health = Health::kStarting;
    actions.calls.push_back({Actions::Call::kStart, index, 0, nullptr});
    ++in_calls_;
    return;
  }
  if (instance.health != Health::kUp) return;
  Slot* next = nullptr;
  for (Slot& slot : instance.slots) {
    if (slot.step == Step::kExecuting) return;
    if (slot.step == Step::kUploaded &&
        (next == nullptr || slot.order < next->order)) {
      next = &slot;
    }
  }
  if (next == nullptr) return;
  next->step = Step::kExecuting;
  next->step_began = now;
  models_[next->batch->model].last_run = now;
  actions.calls.push_back({Actions::Call::kExecute, index,
                           static_cast<int>(next - instance.slots.data()),
                           next->batch.get()});
  ++in_calls_;
}

void Scheduler::Assign(int index, absl::Time now, Actions& actions) {
  const Instance& instance = instances_[index];
  bool busy = false;
  bool free = false;
  for (const Slot& slot : instance.slots) {
    // One staged batch is enough; later ones are better chosen later.
    if (slot.step == Step::kUploading || slot.step == Step::kUploaded) {
      return;
    }
    busy |= slot.step == Step::kExecuting;
    free |= slot.step == Step::kEmpty;
  }
  if (!free) return;
  absl::InlinedVector<size_t, 8> order;
  for (size_t i = 0; i < models_.size(); ++i) {
    if (!models_[i].queue.empty()) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return shares_.Before(a, b); });
  for (const size_t model : order) {
    if (AssignFrom(model, index, busy, now, actions)) return;
  }
}

bool Scheduler::AssignFrom(size_t index, int instance_index, bool busy,
                           absl::Time now, Actions& actions) {
  Model& model = models_[index];
  if (model.config.max_instances > 0 &&
      model.in_works >= model.config.max_instances) {
    return false;
  }
  DropDead(model, now, actions);
  if (model.queue.empty()) return false;
  if (residents_.state(index) != ResidentSet::State::kIn) {
    PlanLoad(index, now, actions);
    return false;
  }
  Instance& instance = instances_[instance_index];
  const std::vector<const QueuedRequest*> queued = model.queue.Candidates();
  std::vector<BatchCandidate> candidates;
  candidates.reserve(queued.size());
  for (const QueuedRequest* request : queued) {
    candidates.push_back(
        {request->rows, request->call->deadline(), request->arrival});
  }
  const BatchDecision decision = DecideBatch(candidates, model.config.batching,
                                             model.times, model.arrivals, now);
  int64_t rows = 0;
  for (const size_t i : decision.members) rows += candidates[i].rows;
  if (busy) {
    const absl::Time begin =
        FreeAt(instance, now) - kUploadLead * model.uploads.Typical(rows, now);
    if (model.uploads.known(now) && begin > now) {
      WakeAt(begin);
      return false;
    }
  } else if (decision.wait_until > now) {
    WakeAt(decision.wait_until);
    return false;
  }

  Slot& slot =
      *std::find_if(instance.slots.begin(), instance.slots.end(),
                    [](const Slot& s) { return s.step == Step::kEmpty; });
  slot.step = Step::kUploading;
  slot.step_began = now;
  slot.order = batches_++;
  slot.estimate = TimeFor(model, rows, now);
  slot.batch = std::make_unique<Batch>();
  slot.batch->model = index;
  slot.batch->rows = rows;
  model.queue.CountTurn(candidates[0].deadline != absl::InfiniteFuture());
  for (const size_t i : decision.members) {
    QueuedRequest request = model.queue.Take(*queued[i]);
    model.stats.queue_time += now - request.arrival;
    BatchMember& member = slot.batch->members.emplace_back();
    member.call = std::move(request.call);
    member.rows = request.rows;
    --queued_;
  }
  const size_t members = slot.batch->members.size();
  ++model.stats.batches;
  if (members > 1) model.stats.merged += members;
  model.stats.largest_batch =
      std::max<uint64_t>(model.stats.largest_batch, members);
  ++model.in_works;
  model.ran_since_load = true;
  residents_.Touch(index);
  shares_.Begin(index, slot.estimate);
  actions.calls.push_back({Actions::Call::kUpload, instance_index,
                           static_cast<int>(&slot - instance.slots.data()),
                           slot.batch.get()});
  ++in_calls_;
  return true;
}

void Scheduler::DropDead(Model& model, absl::Time now, Actions& actions) {
  const auto drop = [&](QueuedRequest request, Verdict verdict,
                        absl::Duration time) {
    if (verdict == Verdict::kDropAbandoned) {
      ++model.stats.abandoned;
    } else {
      ++model.stats.expired;
    }
    const absl::Time deadline = request.call->deadline();
    actions.answers.push_back(
        {std::move(request.call), WhyDropped(verdict, deadline, time, now)});
    --queued_;
  };
  for (QueuedRequest& request : model.queue.TakeExpired(now)) {
    drop(std::move(request), Verdict::kDropExpired, absl::ZeroDuration());
  }
  while (!model.queue.empty()) {
    const QueuedRequest& next = model.queue.Next();
    const absl::Duration time =
        next.is_probe ? absl::ZeroDuration() : TimeFor(model, next.rows, now);
    const Verdict verdict =
        Judge(next.call->deadline(), next.call->abandoned(), time, now);
    if (verdict == Verdict::kRun) return;
    drop(model.queue.Take(next), verdict, time);
  }
}

void Scheduler::FailQueued(Model& model, const absl::Status& why,
                           Actions& actions) {
  for (QueuedRequest& request : model.queue.TakeAll()) {
    ++model.stats.unavailable;
    --queued_;
    actions.answers.push_back({std::move(request.call), why});
  }
}

void Scheduler::PlanLoad(size_t index, absl::Time now, Actions& actions) {
  Model& model = models_[index];
  if (loading_ || residents_.state(index) != ResidentSet::State::kOut) return;
  if (model.load_again > now) return WakeAt(model.load_again);
  std::vector<bool> may_go;
  for (const Model& other : models_) {
    // One that has just come in is to be of use before it goes.
    may_go.push_back(other.in_works == 0 &&
                     (other.ran_since_load || other.queue.empty()));
  }
  std::optional<std::vector<size_t>> evicted =
      residents_.PlanLoad(index, may_go);
  if (!evicted.has_value()) return;
  for (const size_t out : *evicted) {
    residents_.Evict(out);
    ++models_[out].stats.evictions;
  }
  residents_.BeginLoad(index);
  model.ran_since_load = false;
  // What a model's coming and going costs is its own to pay for.
  shares_.Begin(index, LoadTime(model));
  loading_ = true;
  ++in_calls_;
  actions.load = static_cast<int>(index);
  actions.evicted = *std::move(evicted);
}

}  // namespace refract::gpu_node
