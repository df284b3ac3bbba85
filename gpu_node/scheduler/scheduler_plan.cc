// Decides the next step: which instance executes which requests.

#include <algorithm>
#include <cmath>
#include <utility>

#include "gpu_node/scheduler/scheduler.h"

namespace refract::gpu_node {
namespace {

// Uploads begin this many times their typical time before they are needed:
// until then a more urgent request can go first, and others can join.
constexpr int64_t kUploadLead = 2;

// A model without a request for this long counts as silent: turns are no longer
// kept short for it.
constexpr absl::Duration kAsksMemory = absl::Seconds(10);

}  // namespace

void Scheduler::Pump() {
  // Calls outside the lock may allow more steps: a device may answer before its
  // method returns.
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
  // Everything below asks again for the timers that it needs (WakeAt).
  turns_.PassIdle((now - planned_at_) * idle_instances_);
  planned_at_ = now;
  // Instances first: their state decides which models are ready, and a queue
  // that no instance can serve is failed rather than planned.
  for (size_t i = 0; i < instances_.size(); ++i) {
    FindStuck(static_cast<int>(i), now);
    PlanInstance(static_cast<int>(i), now, actions);
  }
  for (size_t i = 0; i < models_.size(); ++i) {
    if (!models_[i].load_error.ok() && !closed_) PlanLoad(i, now, actions);
  }
  // The listener is called on changes alone: it tells every CPU node.
  for (Model& model : models_) {
    absl::Status ready = ReadyLocked(model);
    if (ready == model.told) continue;
    model.told = std::move(ready);
    actions.listener = listener_;
  }
  const absl::Status unready = Unready();
  for (Model& model : models_) {
    const absl::Status why = unready.ok() ? HeldUp(model) : unready;
    if (!why.ok()) FailQueued(model, why, actions);
  }
  // The instance that is free first takes the first turn, so that the most
  // urgent batch begins earliest.
  absl::InlinedVector<int, 16> order;
  for (size_t i = 0; i < instances_.size(); ++i) {
    if (instances_[i].up()) order.push_back(static_cast<int>(i));
  }
  // (stable_sort() allocates.)
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const absl::Time free_a = FreeAt(instances_[a], now);
    const absl::Time free_b = FreeAt(instances_[b], now);
    return free_a != free_b ? free_a < free_b : a < b;
  });
  for (const int index : order) {
    if (queued_ == 0) break;
    Assign(index, now, actions);
  }
  // Covers the time until the next Plan(), in which nothing new is assigned.
  idle_instances_ = 0;
  for (const int index : order) {
    const std::vector<Slot>& slots = instances_[index].slots;
    idle_instances_ +=
        std::all_of(slots.begin(), slots.end(),
                    [](const Slot& slot) { return slot.step == Step::kEmpty; });
  }
}

void Scheduler::Assign(int index, absl::Time now, Actions& actions) {
  const Instance& instance = instances_[index];
  bool busy = false;
  bool free = false;
  for (const Slot& slot : instance.slots) {
    // One staged batch is enough: later batches are better chosen later.
    if (slot.step == Step::kUploading || slot.step == Step::kUploaded) {
      return;
    }
    busy |= slot.step == Step::kExecuting;
    free |= slot.step == Step::kEmpty;
  }
  // Without a free slot the instance has a batch to execute and nowhere to put
  // another.
  if (!free) return;
  absl::InlinedVector<size_t, 8> order;
  for (size_t i = 0; i < models_.size(); ++i) {
    // A model whose load has failed has no work until a load succeeds.
    if (!models_[i].queue.empty() || !models_[i].load_error.ok()) {
      order.push_back(i);
    }
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return turns_.Before(a, b); });
  // Models in the order of their turns. A model that cannot begin a batch now
  // is passed over, so that the instance does not idle for it.
  bool room_is_wanted = false;
  std::vector<size_t> make_room;
  for (const size_t model : order) {
    const bool out = residents_.state(model) == ResidentSet::State::kOut;
    // A model loaded now would take the room of the model whose turn it is:
    // small models, one after the other, for ever.
    if (room_is_wanted && (out || std::find(make_room.begin(), make_room.end(),
                                            model) != make_room.end())) {
      continue;
    }
    if (AssignFrom(model, index, busy, now, actions)) return;
    if (room_is_wanted || !WaitsForRoom(model, now)) continue;
    room_is_wanted = true;
    make_room = residents_.PlanLoad(model, MayGo(false, now))
                    .value_or(std::vector<size_t>());
  }
}

bool Scheduler::AssignFrom(size_t index, int instance_index, bool busy,
                           absl::Time now, Actions& actions) {
  Model& model = models_[index];
  if (AtOwnLimit(model)) return false;
  // Before the batch is chosen: a request that expired or was cancelled must
  // not take a place in it.
  DropDead(model, now, actions);
  if (model.queue.empty()) return false;
  if (residents_.state(index) != ResidentSet::State::kIn) {
    // The turn comes back when the weights are loaded.
    PlanLoad(index, now, actions);
    return false;
  }
  const int64_t most = RowsOfTurn(index, now);
  // Behind an execution a batch is uploaded as late as possible to be in time.
  // True: a batch of `rows` rows must wait for its upload.
  const auto uploads_later = [&](int64_t rows) {
    if (!busy || !model.uploads.known(now)) return false;
    const absl::Time begin = FreeAt(instances_[instance_index], now) -
                             kUploadLead * model.uploads.Typical(rows, now);
    if (begin <= now) return false;
    WakeAt(begin);
    return true;
  };
  // Too early for the largest batch: each request that arrives meanwhile would
  // cost a look at the whole queue.
  if (uploads_later(std::max(most, model.queue.Next().rows))) return false;
  // The next batch. The queue changes only once the batch is sure to begin.
  std::vector<const Queue::Request*>& queued = scratch_.queued;
  queued = model.queue.Candidates(std::move(queued));
  const Waiting& first = queued[0]->payload;
  std::vector<scheduling::BatchCandidate>& candidates = scratch_.candidates;
  candidates.clear();
  for (const Queue::Request* request : queued) {
    candidates.push_back(
        {request->rows, request->key.deadline, request->queued_at});
  }
  scratch_.batching = model.config.batching;
  scratch_.batching.max_rows = most;
  // The rest of a started request does not wait for others.
  scratch_.batching.enabled &= first.first_row == 0;
  scheduling::BatchDecision& decision = scratch_.decision;
  decision = scheduling::DecideBatch(candidates, scratch_.batching, model.times,
                                     model.arrivals, now, std::move(decision));
  int64_t rows = 0;
  for (const size_t i : decision.members) rows += candidates[i].rows;
  if (device_->traits().steps) {
    // Steps of about equal size, none below the least. Without batching,
    // requests of others must not change step sizes that change bits.
    const int64_t step =
        std::max(model.config.stepwise ? most : model.config.batching.max_rows,
                 2 * model.config.least_rows - 1);
    // The number of steps is rows ÷ step, rounded up. A step of 2 · least − 1
    // rows or more lets a request that is one row longer be halved into parts
    // of `least` rows.
    rows /= (rows - 1) / step + 1;
  }
  // On a free instance the batch may wait for others by the batching window.
  if (uploads_later(rows)) return false;
  if (!busy && decision.wait_until > now) {
    WakeAt(decision.wait_until);
    return false;
  }
  // Decided: from here on requests leave the queue.
  std::unique_ptr<Batch> batch = NewBatch(index);
  batch->rows = rows;
  batch->first_row = first.first_row;
  const scheduling::QueueKey key = queued[0]->key;
  const bool is_probe = first.is_probe;
  model.queue.CountTurn(key.deadline != absl::InfiniteFuture());
  for (const size_t i : decision.members) {
    Queue::Request request = model.queue.Take(*queued[i]);
    model.stats.queue_time += now - request.queued_at;
    model.histograms->queue_time.Record(now - request.queued_at);
    batch->members.push_back(std::move(request.payload.member));
    BatchMember& member = batch->members.back();
    if (member.started == absl::InfinitePast()) member.started = now;
    --queued_;
  }
  Begin(instance_index, std::move(batch), key, is_probe, now, actions);
  return true;
}

int64_t Scheduler::RowsOfTurn(size_t index, absl::Time now) const {
  const Model& model = models_[index];
  const int64_t most = model.config.batching.max_rows;
  if (!options_.isolation || num_models_ == 1) return most;
  // *t* of the quantum (docs/design/scheduling.md). It stays infinite for a
  // model that is itself below its share: such a model catches up.
  absl::Duration quickest = absl::InfiniteDuration();
  for (size_t i = 0; i < models_.size() && !turns_.BelowShare(index); ++i) {
    const Model& other = models_[i];
    // A model at its own limit of instances does not suffer from others.
    if (i == index || !turns_.BelowShare(i) || AtOwnLimit(other) ||
        now - other.arrivals.last > kAsksMemory) {
      continue;
    }
    // A request of the other model's usual size.
    const auto rows = std::max<int64_t>(1, std::llround(other.arrivals.rows));
    const absl::Duration time = TimeFor(other, rows, now);
    if (time > absl::ZeroDuration()) quickest = std::min(quickest, time);
  }
  const int64_t least = std::min(model.config.least_rows, most);
  return scheduling::RowsWithin(
      scheduling::Quantum(model.times.Typical(least, now), quickest),
      model.times, least, most, now);
}

void Scheduler::Begin(int index, std::unique_ptr<Batch> batch,
                      const scheduling::QueueKey& key, bool is_probe,
                      absl::Time now, Actions& actions) {
  Instance& instance = instances_[index];
  Model& model = models_[batch->model];
  Slot& slot =
      *std::find_if(instance.slots.begin(), instance.slots.end(),
                    [](const Slot& s) { return s.step == Step::kEmpty; });
  slot.step = Step::kUploading;
  slot.step_began = now;
  slot.order = batches_++;
  slot.estimate = TimeFor(model, batch->rows, now);
  slot.key = key;
  slot.is_probe = is_probe;
  slot.batch = std::move(batch);
  const size_t members = slot.batch->members.size();
  ++model.stats.batches;
  model.histograms->batch_requests.Record(members);
  model.histograms->batch_rows.Record(slot.batch->rows);
  if (members > 1) model.stats.merged += members;
  if (slot.batch->first_row > 0 || !slot.batch->last_step()) {
    ++model.stats.steps;
  }
  model.stats.largest_batch =
      std::max<uint64_t>(model.stats.largest_batch, members);
  ++model.in_works;
  model.ran_since_load = true;
  residents_.Touch(slot.batch->model);
  // Charged by prediction now, so that the next turn sees it; the end of the
  // execution corrects it by the measured time.
  turns_.TakeTurn(slot.batch->model, slot.estimate);
  actions.calls.push_back({Actions::Call::kUpload, index,
                           static_cast<int>(&slot - instance.slots.data()),
                           slot.batch.get()});
  ++in_calls_;
}

void Scheduler::DropDead(Model& model, absl::Time now, Actions& actions) {
  const auto drop = [&](Queue::Request request, scheduling::Verdict verdict,
                        absl::Duration time) {
    ++(verdict == scheduling::Verdict::kDropAbandoned ? model.stats.abandoned
                                                      : model.stats.expired);
    actions.answers.push_back(
        {std::move(request.payload.member),
         scheduling::WhyDropped(verdict, "HN", request.key.deadline, time,
                                now)});
    --queued_;
  };
  for (Queue::Request& request : model.queue.TakeExpired(now)) {
    drop(std::move(request), scheduling::Verdict::kDropExpired,
         absl::ZeroDuration());
  }
  // Anywhere in the order: otherwise they would be merged into the next batch.
  if (std::exchange(model.any_abandoned, false)) {
    for (Queue::Request& request :
         model.queue.TakeIf([](const Queue::Request& r) {
           return r.payload.member.call->abandoned();
         })) {
      drop(std::move(request), scheduling::Verdict::kDropAbandoned,
           absl::ZeroDuration());
    }
  }
  // Only the head: a request further back is judged when it gets there, by
  // execution times that may have changed.
  while (!model.queue.empty()) {
    const Queue::Request& next = model.queue.Next();
    // A probe is executed whatever its prediction.
    const absl::Duration time = next.payload.is_probe
                                    ? absl::ZeroDuration()
                                    : TimeFor(model, next.rows, now);
    const scheduling::Verdict verdict = scheduling::Judge(
        next.key.deadline, next.payload.member.call->abandoned(), time, now);
    if (verdict == scheduling::Verdict::kRun) return;
    drop(model.queue.Take(next), verdict, time);
  }
}

void Scheduler::FailQueued(Model& model, const absl::Status& why,
                           Actions& actions) {
  while (!model.queue.empty()) {
    Queue::Request request = model.queue.Take(model.queue.Next());
    ++model.stats.unavailable;
    --queued_;
    actions.answers.push_back({std::move(request.payload.member), why});
  }
}

absl::Time Scheduler::FreeAt(const Instance& instance, absl::Time now) const {
  // The rest of the execution in progress, then the batches that are staged. An
  // execution beyond its prediction is expected to end now.
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

std::unique_ptr<Batch> Scheduler::NewBatch(size_t model) {
  std::unique_ptr<Batch> batch;
  if (spare_batches_.empty()) {
    batch = std::make_unique<Batch>();
  } else {
    batch = std::move(spare_batches_.back());
    spare_batches_.pop_back();
  }
  batch->model = model;
  return batch;
}

void Scheduler::Recycle(std::unique_ptr<Batch> batch) {
  *batch = {.members = std::move(batch->members)};
  spare_batches_.push_back(std::move(batch));
}

}  // namespace refract::gpu_node
