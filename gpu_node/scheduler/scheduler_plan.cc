// What to do next: which instance gets which requests.

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gpu_node/scheduler/scheduler.h"

namespace refract::gpu_node {
namespace {

// Uploads begin this many times their typical time before they are needed.
constexpr int64_t kUploadLead = 2;

// A model whose last request is longer ago than so many times the mean between
// them and than kQuietPauses of its longest pause lately (requests may come in
// bursts), or than kQuietMemory, is not held back for: it may have gone.
constexpr int64_t kQuietGaps = 10;
constexpr int64_t kQuietPauses = 2;
constexpr absl::Duration kQuietMemory = absl::Seconds(10);

// How often it is seen how much models ask for.
constexpr absl::Duration kDemandPeriod = absl::Milliseconds(10);

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
  UpdateStandings(now);
  for (size_t i = 0; i < instances_.size(); ++i) {
    FindStuck(static_cast<int>(i), now);
    PlanInstance(static_cast<int>(i), now, actions);
  }
  for (size_t i = 0; i < models_.size(); ++i) {
    if (!models_[i].load_error.ok() && !closed_) PlanLoad(i, now, actions);
  }
  for (Model& model : models_) {
    absl::Status ready = ReadyLocked(model);
    if (ready == model.told) continue;
    model.told = std::move(ready);
    actions.listener = listener_;
  }
  const absl::Status unready = Unready();
  if (!unready.ok()) {
    for (Model& model : models_) FailQueued(model, unready, actions);
    return;
  }
  for (Model& model : models_) {
    const absl::Status held_up = HeldUp(model);
    if (!held_up.ok()) FailQueued(model, held_up, actions);
  }
  // Those that are free soonest first.
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
    if (queued_ == 0 && unfinished_ == 0) break;
    Assign(index, now, actions);
  }
  for (size_t i = 0; i < models_.size(); ++i) {
    standings_.SetWaiting(i, models_[i].has_work(), AtOwnLimit(models_[i]));
  }
}

void Scheduler::UpdateStandings(absl::Time now) {
  standings_.Advance(now);
  if (now - demands_at_ < kDemandPeriod) return;
  demands_at_ = now;
  std::vector<Demand>& demands = scratch_.demands;
  demands.clear();
  for (const Model& model : models_) {
    const ArrivalRate& rate = model.all_arrivals;
    Demand& demand = demands.emplace_back();
    demand.asks = model.has_work() || now - rate.last <= kQuietMemory;
    // Each alone: more than it takes if they are merged. What is asked for
    // beyond a share is divided among no others.
    const auto rows = std::max<int64_t>(1, std::llround(rate.rows));
    demand.instances = absl::FDivDuration(TimeFor(model, rows, now),
                                          std::max(rate.gap, now - rate.last));
  }
  double up = 0;
  for (const Instance& instance : instances_) {
    up += instance.up();
  }
  standings_.SetDemands(demands, up);
}

void Scheduler::FindStuck(int index, absl::Time now) {
  Instance& instance = instances_[index];
  if (instance.health != Health::kUp) {
    instance.stuck = false;
    return;
  }
  const Slot* stuck = nullptr;
  for (const Slot& slot : instance.slots) {
    // Without a batch, whose answers are being sent, the device is done with
    // it.
    if (slot.step == Step::kEmpty || slot.step == Step::kUploaded ||
        slot.batch == nullptr) {
      continue;
    }
    const absl::Time limit =
        slot.step_began +
        std::max(options_.stuck_after, kStuckTimes * slot.estimate);
    if (limit <= now) {
      stuck = &slot;
      continue;
    }
    // Not a time of its own for every step, most of which end long before.
    const absl::Duration period = options_.stuck_after / 4;
    WakeAt(absl::UnixEpoch() + absl::Ceil(limit - absl::UnixEpoch(), period));
  }
  if (instance.stuck == (stuck != nullptr)) return;
  instance.stuck = stuck != nullptr;
  if (stuck == nullptr) {
    LOG(INFO) << "instance " << index << " of device " << device_->traits().name
              << " goes on";
    return;
  }
  instance.error = absl::UnavailableError(absl::StrCat(
      "instance ", index, " of device ", device_->traits().name,
      " has not finished ", models_[stuck->batch->model].config.label, " in ",
      absl::FormatDuration(now - stuck->step_began), ", expected were ",
      absl::FormatDuration(stuck->estimate)));
  LOG(ERROR) << instance.error.message()
             << "; it is given nothing else until that ends";
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
  Model& model = models_[next->batch->model];
  model.last_run = model.SizeOf(next->batch->rows).last_run = now;
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
    // One whose load has failed has none while it is tried again.
    if (models_[i].has_work() || !models_[i].load_error.ok()) {
      order.push_back(i);
    }
  }
  // Whose weights are to come in is a matter of shares: each copy is paid for.
  // Those that are in go first while they ask for little, but not for ever: on
  // several instances even such a model may have something in the works always.
  const auto standing = [&](size_t model) {
    if (residents_.state(model) == ResidentSet::State::kIn) {
      return StandingOf(model);
    }
    return now - models_[model].last_run < Standings::kBurst
               ? Standing::kOver
               : Standing::kModest;
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Standing of_a = standing(a);
    const Standing of_b = standing(b);
    return of_a != of_b ? of_a < of_b : shares_.Before(a, b);
  });
  bool owed_is_held = false;
  bool room_is_wanted = false;
  std::vector<size_t> make_room;
  for (const size_t model : order) {
    const bool out = residents_.state(model) == ResidentSet::State::kOut;
    // One that comes in now would take the room of the one whose turn it is:
    // small ones, one after the other, for ever.
    if (room_is_wanted && (out || std::find(make_room.begin(), make_room.end(),
                                            model) != make_room.end())) {
      continue;
    }
    if (AssignFrom(model, index, busy, now, &owed_is_held, actions)) return;
    if (room_is_wanted || !WaitsForRoom(model, now)) continue;
    room_is_wanted = true;
    make_room = residents_.PlanLoad(model, MayGo(false, now))
                    .value_or(std::vector<size_t>());
  }
}

bool Scheduler::WaitsForRoom(size_t index, absl::Time now) const {
  const Model& model = models_[index];
  return !loading_ && (model.has_work() || !model.load_error.ok()) &&
         !AtOwnLimit(model) &&
         residents_.state(index) == ResidentSet::State::kOut &&
         model.load_again <= now && model.evict_again <= now;
}

std::vector<bool> Scheduler::MayGo(bool at_once, absl::Time now) const {
  std::vector<bool> may_go;
  for (const Model& model : models_) {
    // One that has just come in is to be of use before it goes, for as long as
    // that took: else models that take turns only come and go.
    const bool was_of_use = model.ran_since_load && model.stays_until <= now;
    may_go.push_back((!at_once || model.in_works == 0) &&
                     (was_of_use || !model.has_work()));
  }
  return may_go;
}

bool Scheduler::AssignFrom(size_t index, int instance_index, bool busy,
                           absl::Time now, bool* owed_is_held,
                           Actions& actions) {
  Model& model = models_[index];
  if (AtOwnLimit(model)) return false;
  DropDead(model, now, actions);
  if (!model.has_work()) return false;
  if (residents_.state(index) != ResidentSet::State::kIn) {
    PlanLoad(index, now, actions);
    return false;
  }
  const Instance& instance = instances_[instance_index];
  std::vector<QuietModel>& quiet = scratch_.quiet;
  QuietBeside(index, now, quiet);
  int64_t most = model.config.batching.max_rows;
  if (quiet.empty()) {
    // That it was held back is not made up for.
    if (model.held_back) shares_.Activate(index);
    model.held_back = false;
  }
  if (options_.isolation && models_.size() > 1) {
    const int64_t least = std::min(model.config.least_rows, most);
    const absl::Duration own = model.times.Typical(least, now);
    absl::Duration longest =
        std::min(LongestBesideNone(own), LongestBeside(quiet, own));
    // Where the next batch is staged, two are in the way of what comes.
    longest /= device_->traits().slots;
    most = RowsWithin(longest, model.times, least, most, now);
  }
  // What begins next, and how it changes the queue once it is sure that it
  // does.
  const bool goes_on = !model.unfinished.empty();
  std::vector<const QueuedRequest*>& queued = scratch_.queued;
  BatchDecision& decision = scratch_.decision;
  decision.wait_until = absl::InfinitePast();
  int64_t rows = 0;
  if (goes_on) {
    const Batch& batch = *model.unfinished.front();
    rows = batch.members[0].rows - batch.first_row;
  } else {
    queued = model.queue.Candidates(std::move(queued));
    std::vector<BatchCandidate>& candidates = scratch_.candidates;
    candidates.clear();
    for (const QueuedRequest* request : queued) {
      candidates.push_back(
          {request->rows, request->call->deadline(), request->arrival});
    }
    scratch_.batching = model.config.batching;
    scratch_.batching.max_rows = most;
    decision = DecideBatch(candidates, scratch_.batching, model.times,
                           model.arrivals, now, std::move(decision));
    for (const size_t i : decision.members) rows += candidates[i].rows;
  }
  const bool stepwise = device_->traits().steps && model.config.stepwise;
  if (goes_on || stepwise) {
    // About equal steps, none of which has fewer rows than the least.
    const int64_t step = std::max(most, 2 * model.config.least_rows - 1);
    rows /= (rows - 1) / step + 1;
  }
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
  // One that is felt at a time is never denied, so that all come to go on.
  const absl::Duration time = TimeFor(model, rows, now);
  if (IsFelt(quiet, time) && FeltInWorks(index, quiet) &&
      (*owed_is_held ||
       !MayBeginBeside(quiet, time, OthersFreeAt(instance_index, now), now))) {
    ++model.stats.held;
    // Others, whose executions are shorter, do not go before it for ever.
    *owed_is_held |= shares_.Owed(index);
    // Nor do those that execute meanwhile, however long they were alone.
    for (const Instance& other : instances_) {
      for (const Slot& slot : other.slots) {
        if (slot.batch != nullptr && slot.batch->model != index &&
            StandingOf(slot.batch->model) == StandingOf(index) &&
            IsFelt(quiet, slot.estimate)) {
          shares_.KeepNear(slot.batch->model, index);
        }
      }
    }
    model.held_back = true;
    return false;
  }

  std::unique_ptr<Batch> batch;
  if (goes_on) {
    batch = std::move(model.unfinished.front());
    model.unfinished.erase(model.unfinished.begin());
    --unfinished_;
  } else {
    batch = NewBatch(index);
    model.queue.CountTurn(queued[0]->call->deadline() !=
                          absl::InfiniteFuture());
    for (const size_t i : decision.members) {
      QueuedRequest request = model.queue.Take(*queued[i]);
      model.stats.queue_time += now - request.arrival;
      BatchMember& member = batch->members.emplace_back();
      member.call = std::move(request.call);
      member.rows = request.rows;
      --queued_;
    }
  }
  batch->rows = rows;
  Begin(instance_index, std::move(batch), now, actions);
  return true;
}

void Scheduler::Begin(int index, std::unique_ptr<Batch> batch, absl::Time now,
                      Actions& actions) {
  Instance& instance = instances_[index];
  Model& model = models_[batch->model];
  Slot& slot =
      *std::find_if(instance.slots.begin(), instance.slots.end(),
                    [](const Slot& s) { return s.step == Step::kEmpty; });
  slot.step = Step::kUploading;
  slot.step_began = now;
  slot.order = batches_++;
  slot.estimate = TimeFor(model, batch->rows, now);
  slot.batch = std::move(batch);
  const size_t members = slot.batch->members.size();
  ++model.stats.batches;
  if (members > 1) model.stats.merged += members;
  if (slot.batch->first_row > 0 || !slot.batch->last_step()) {
    ++model.stats.steps;
  }
  model.stats.largest_batch =
      std::max<uint64_t>(model.stats.largest_batch, members);
  ++model.in_works;
  model.ran_since_load = true;
  residents_.Touch(slot.batch->model);
  shares_.Begin(slot.batch->model, slot.estimate);
  standings_.Use(slot.batch->model, slot.estimate);
  actions.calls.push_back({Actions::Call::kUpload, index,
                           static_cast<int>(&slot - instance.slots.data()),
                           slot.batch.get()});
  ++in_calls_;
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

void Scheduler::QuietBeside(size_t index, absl::Time now,
                            std::vector<QuietModel>& quiet) const {
  quiet.clear();
  if (StandingOf(index) == Standing::kModest) return;
  for (size_t i = 0; i < models_.size(); ++i) {
    const Model& other = models_[i];
    const ArrivalRate& rate = other.all_arrivals;
    if (StandingOf(i) >= StandingOf(index) || AtOwnLimit(other) ||
        rate.gap == absl::InfiniteDuration()) {
      continue;
    }
    const absl::Duration silence = now - rate.last;
    const absl::Duration expected =
        std::max(kQuietGaps * rate.gap, kQuietPauses * rate.pause);
    if (silence > std::min(expected, kQuietMemory)) continue;
    const auto rows = std::max<int64_t>(1, std::llround(rate.rows));
    const absl::Duration time = TimeFor(other, rows, now);
    if (time > absl::ZeroDuration()) {
      quiet.push_back({time, std::max(rate.gap, silence)});
    }
  }
}

bool Scheduler::FeltInWorks(size_t index,
                            absl::Span<const QuietModel> quiet) const {
  for (const Instance& instance : instances_) {
    for (const Slot& slot : instance.slots) {
      const bool to_come =
          slot.step == Step::kUploading || slot.step == Step::kUploaded;
      if ((to_come || slot.step == Step::kExecuting) &&
          // Those of better standing are not in its way.
          StandingOf(slot.batch->model) >= StandingOf(index) &&
          IsFelt(quiet, slot.estimate)) {
        return true;
      }
    }
  }
  return false;
}

absl::InlinedVector<absl::Time, 16> Scheduler::OthersFreeAt(
    int index, absl::Time now) const {
  absl::InlinedVector<absl::Time, 16> free_at;
  for (size_t i = 0; i < instances_.size(); ++i) {
    if (static_cast<int>(i) == index || !instances_[i].up()) {
      continue;
    }
    free_at.push_back(FreeAt(instances_[i], now));
  }
  return free_at;
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
  for (auto it = model.unfinished.begin(); it != model.unfinished.end();) {
    BatchMember& member = (*it)->members[0];
    const Verdict verdict =
        Judge(member.call->deadline(), member.call->abandoned(),
              absl::ZeroDuration(), now);
    if (verdict == Verdict::kRun) {
      ++it;
      continue;
    }
    const absl::Time deadline = member.call->deadline();
    ++(verdict == Verdict::kDropAbandoned ? model.stats.abandoned
                                          : model.stats.expired);
    actions.answers.push_back(
        {std::move(member.call),
         WhyDropped(verdict, deadline, absl::ZeroDuration(), now)});
    actions.dropped.push_back(std::move(*it));
    it = model.unfinished.erase(it);
    --unfinished_;
  }
  for (QueuedRequest& request : model.queue.TakeExpired(now)) {
    drop(std::move(request), Verdict::kDropExpired, absl::ZeroDuration());
  }
  // Wherever in the order they are: else they would be merged with the next.
  if (std::exchange(model.any_abandoned, false)) {
    for (QueuedRequest& request : model.queue.TakeAbandoned()) {
      drop(std::move(request), Verdict::kDropAbandoned, absl::ZeroDuration());
    }
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
  for (std::unique_ptr<Batch>& batch : model.unfinished) {
    ++model.stats.unavailable;
    --unfinished_;
    actions.answers.push_back({std::move(batch->members[0].call), why});
    actions.dropped.push_back(std::move(batch));
  }
  model.unfinished.clear();
}

void Scheduler::PlanLoad(size_t index, absl::Time now, Actions& actions) {
  Model& model = models_[index];
  if (loading_ || residents_.state(index) != ResidentSet::State::kOut) return;
  if (model.load_again > now) return WakeAt(model.load_again);
  std::optional<std::vector<size_t>> evicted =
      residents_.PlanLoad(index, MayGo(true, now));
  if (!evicted.has_value()) {
    for (const Model& other : models_) {
      if (other.stays_until > now) WakeAt(other.stays_until);
    }
    return;
  }
  if (!evicted->empty() && model.evict_again > now) {
    return WakeAt(model.evict_again);
  }
  model.eviction_time = absl::ZeroDuration();
  for (const size_t out : *evicted) {
    residents_.Evict(out);
    ++models_[out].stats.evictions;
    model.eviction_time += LoadTime(models_[out]);
  }
  residents_.BeginLoad(index);
  model.ran_since_load = false;
  // What a model's coming and going costs is its own to pay for.
  shares_.Begin(index, LoadTime(model));
  standings_.Use(index, LoadTime(model));
  loading_ = true;
  ++in_calls_;
  actions.load = static_cast<int>(index);
  actions.evicted = *std::move(evicted);
}

}  // namespace refract::gpu_node
