// Instances of the device: start, loss, restart, and stuck steps.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gpu_node/scheduler/scheduler.h"

namespace refract::gpu_node {

void Scheduler::FindStuck(int index, absl::Time now) {
  // A stuck instance is not ended: the device has no call that ends an
  // execution, and its requests may still be answered.
  Instance& instance = instances_[index];
  if (instance.health != Health::kUp) {
    instance.stuck = false;
    return;
  }
  const Slot* stuck = nullptr;
  for (const Slot& slot : instance.slots) {
    // A slot without a batch: the device is done, and answers are being sent.
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
    // Rounded up, so that steps share timers: most steps end long before.
    const absl::Duration period = options_.stuck_after / 4;
    WakeAt(absl::UnixEpoch() + absl::Ceil(limit - absl::UnixEpoch(), period));
  }
  if (instance.stuck == (stuck != nullptr)) return;
  instance.stuck = stuck != nullptr;
  if (stuck == nullptr) {
    LOG(INFO) << "instance " << index << " of device " << device_->traits().name
              << " finished the execution that had taken too long";
    return;
  }
  instance.error = absl::UnavailableError(
      absl::StrCat("instance ", index, " of device ", device_->traits().name,
                   " has not finished an execution of ",
                   models_[stuck->batch->model].config.label, " in ",
                   absl::FormatDuration(now - stuck->step_began),
                   "; expected time: ", absl::FormatDuration(stuck->estimate)));
  LOG(ERROR) << instance.error.message()
             << "; the instance gets no other batch until then";
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
  // Batches execute in the order in which they were assigned, one at a time.
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
  // A step measures its own size and the size of its request.
  Model& model = models_[next->batch->model];
  model.LastTried(next->batch->rows) = now;
  model.LastTried(next->batch->members[0].rows) = now;
  actions.calls.push_back({Actions::Call::kExecute, index,
                           static_cast<int>(next - instance.slots.data()),
                           next->batch.get()});
  ++in_calls_;
}

void Scheduler::Lose(int index, const absl::Status& error) {
  // The instance is started again only after every slot is empty, because the
  // device may still touch the memory of its batches.
  Instance& instance = instances_[index];
  instance.health = Health::kFailing;
  instance.error = absl::UnavailableError(
      absl::StrCat("instance ", index, " of device ", device_->traits().name,
                   " failed: ", error.ToString()));
  const absl::Duration backoff = BackOff(++instance.failures);
  instance.start_again = clock_.Now() + backoff;
  LOG(ERROR) << instance.error.message() << "; it is started again in "
             << absl::FormatDuration(backoff);
  Settle(instance);
}

void Scheduler::Settle(Instance& instance) {
  if (instance.health == Health::kFailing &&
      std::all_of(instance.slots.begin(), instance.slots.end(),
                  [](const Slot& slot) { return slot.step == Step::kEmpty; })) {
    instance.health = Health::kDown;
  }
}

absl::Duration Scheduler::BackOff(int failures) const {
  // Bounded, so that the shift does not overflow.
  const int doublings = std::clamp(failures - 1, 0, 20);
  return std::min(options_.first_backoff * (int64_t{1} << doublings),
                  options_.last_backoff);
}

absl::Status Scheduler::Unready() const {
  const Instance* failed = nullptr;
  for (const Instance& instance : instances_) {
    // Until the first start, requests wait for instances.
    if (instance.up() ||
        (instance.health == Health::kStarting && instance.failures == 0)) {
      return absl::OkStatus();
    }
    failed = &instance;
  }
  return absl::UnavailableError(
      absl::StrCat("no instance of device ", device_->traits().name, " is up: ",
                   failed == nullptr ? "the device has no instance"
                                     : failed->error.message()));
}

absl::Status Scheduler::HeldUp(const Model& model) const {
  if (!AtOwnLimit(model)) return absl::OkStatus();
  // The model has all its instances: are all of them stuck?
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

absl::Status Scheduler::ReadyLocked(const Model& model) const {
  if (closed_) return absl::UnavailableError("the HN is stopping");
  const absl::Status unready = Unready();
  if (!unready.ok()) return unready;
  if (!model.config.unavailable.ok()) return model.config.unavailable;
  if (model.config.measuring) {
    return absl::UnavailableError(
        absl::StrCat(model.config.label, " is still being measured"));
  }
  return model.load_error.ok() ? HeldUp(model) : model.load_error;
}

}  // namespace refract::gpu_node
