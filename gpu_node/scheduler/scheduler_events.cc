// Calls of the scheduler to the device, and events of the device.

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gpu_node/scheduler/scheduler.h"

namespace refract::gpu_node {
namespace {

// Escapes ids, which clients choose: a line break must not begin a log line.
std::string RequestText(const BatchMember& member) {
  const absl::string_view id = member.call->request_id();
  if (id.empty()) return "a request";
  return absl::StrCat("request '", absl::Utf8SafeCEscape(id), "'");
}

}  // namespace

void Scheduler::Perform(Actions& actions) {
  // Answered outside the lock: Fail() calls the transport.
  size_t answered = 0;
  for (Actions::Answer& answer : actions.answers) {
    // An unfinished reply is memory of its call.
    answer.member.between_steps.reset();
    answer.member.reply = transport::OutgoingMessage();
    answer.member.call->Fail(answer.status);
    answer.member.call.reset();
    answered += answer.was_queued;
  }
  if (answered > 0) {
    absl::MutexLock lock(&mu_);
    pending_ -= answered;
  }
  if (actions.load >= 0) {
    const auto model = static_cast<size_t>(actions.load);
    const absl::Time began = clock_.Now();
    device_->LoadWeights(model, actions.evicted,
                         [this, model, began](const absl::Status& status) {
                           OnLoaded(model, began, status);
                           EndCall();
                         });
  }
  // The captures fit into a std::function without allocating.
  for (const Actions::Call& call : actions.calls) {
    const int instance = call.instance;
    const int slot = call.slot;
    switch (call.kind) {
      case Actions::Call::kStart:
        device_->Start(instance, [this, instance](const absl::Status& status) {
          OnStarted(instance, status);
          EndCall();
        });
        break;
      case Actions::Call::kUpload:
        device_->Upload(instance, slot, call.batch,
                        [this, instance, slot](const absl::Status& status) {
                          OnUploaded(instance, slot, status);
                          EndCall();
                        });
        break;
      case Actions::Call::kExecute:
        device_->Execute(instance, slot, call.batch,
                         [this, instance, slot](const absl::Status& status) {
                           OnExecuted(instance, slot, status);
                           EndCall();
                         });
        break;
      case Actions::Call::kDownload:
        device_->Download(instance, slot, call.batch,
                          [this, instance, slot](const absl::Status& status) {
                            OnDownloaded(instance, slot, status);
                            EndCall();
                          });
        break;
    }
  }
  if (actions.listener != nullptr) (*actions.listener)();
}

void Scheduler::EndCall() {
  absl::MutexLock lock(&mu_);
  --in_calls_;
}

void Scheduler::OnStarted(int index, const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    Instance& instance = instances_[index];
    if (status.ok()) {
      if (instance.failures > 0) {
        LOG(INFO) << "instance " << index << " of device "
                  << device_->traits().name << " is up again";
      }
      instance.health = Health::kUp;
    } else {
      Lose(index, status);
    }
  }
  Pump();
}

bool Scheduler::EndStep(int index, int slot_index, const absl::Status& status) {
  // Requests are answered after the lock is released: Fail() calls the
  // transport. An instance that is lost takes the batches of all its slots with
  // it. Batches that the device still holds end with their own calls.
  std::vector<std::unique_ptr<Batch>> lost;
  absl::Status why;
  {
    absl::MutexLock lock(&mu_);
    Instance& instance = instances_[index];
    if (status.ok() && instance.health == Health::kUp) return true;
    // The first error loses the instance. Further slots end here, too, each
    // with its own device call, whatever its status.
    if (instance.health == Health::kUp) Lose(index, status);
    why = instance.error;
    for (size_t i = 0; i < instance.slots.size(); ++i) {
      Slot& slot = instance.slots[i];
      // The device is done with this slot and has not begun the batches that
      // wait to execute. It will report the other slots.
      if (static_cast<int>(i) != slot_index && slot.step != Step::kUploaded) {
        continue;
      }
      Model& model = models_[slot.batch->model];
      --model.in_works;
      model.stats.unavailable += slot.batch->members.size();
      slot.step = Step::kEmpty;
      lost.push_back(std::move(slot.batch));
    }
    Settle(instance);
  }
  size_t answered = 0;
  for (const std::unique_ptr<Batch>& batch : lost) {
    for (BatchMember& member : batch->members) {
      member.call->Fail(why);
      member.call.reset();
      ++answered;
    }
  }
  {
    absl::MutexLock lock(&mu_);
    pending_ -= answered;
  }
  Pump();
  return false;
}

void Scheduler::OnUploaded(int index, int slot_index,
                           const absl::Status& status) {
  if (!EndStep(index, slot_index, status)) return;
  {
    absl::MutexLock lock(&mu_);
    Slot& slot = instances_[index].slots[slot_index];
    const absl::Time now = clock_.Now();
    // Measures how early the next upload must begin.
    models_[slot.batch->model].uploads.Record(slot.batch->rows,
                                              now - slot.step_began, now);
    slot.step = Step::kUploaded;
  }
  Pump();
}

void Scheduler::OnExecuted(int index, int slot_index,
                           const absl::Status& status) {
  if (!EndStep(index, slot_index, status)) return;
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    Instance& instance = instances_[index];
    Slot& slot = instance.slots[slot_index];
    Model& model = models_[slot.batch->model];
    const absl::Time now = clock_.Now();
    const absl::Duration took = now - slot.step_began;
    std::vector<BatchMember>& members = slot.batch->members;
    for (BatchMember& member : members) member.executed = now;
    const bool all_ran =
        std::all_of(members.begin(), members.end(),
                    [](const BatchMember& m) { return m.status.ok(); });
    // A request that failed half-way says nothing about the time of others.
    if (all_ran && slot.batch->rows <= model.config.batching.max_rows) {
      model.times.Record(slot.batch->rows, took, now);
    }
    model.stats.device_time += took;
    model.histograms->execution_time.Record(took);
    // The turn was charged by its estimate when it began.
    turns_.Correct(slot.batch->model, took - slot.estimate);
    instance.failures = 0;
    slot.step = Step::kDownloading;
    slot.step_began = now;
    actions.calls.push_back(
        {Actions::Call::kDownload, index, slot_index, slot.batch.get()});
    ++in_calls_;
    // The next batch starts without waiting for the download.
    PlanInstance(index, now, actions);
  }
  Perform(actions);
  // With a single slot the end of the download makes the next room.
  if (device_->traits().slots > 1) Pump();
}

void Scheduler::LogFailure(const std::string& label,
                           const BatchMember& member) {
  if (const auto held_back = failure_log_.Admit("failures")) {
    LOG(WARNING) << RequestText(member) << " of " << label
                 << " failed: " << member.status << *held_back;
  }
}

void Scheduler::LogIfSlow(const std::string& label, const Batch& batch,
                          const BatchMember& member, absl::Time now) {
  const absl::Duration took = now - member.arrived;
  if (took < options_.slow_after) return;
  const auto held_back = slow_log_.Admit();
  if (!held_back.has_value()) return;
  LOG(WARNING) << "slow: " << RequestText(member) << " of " << label << " took "
               << absl::FormatDuration(took) << ": "
               << absl::FormatDuration(member.started - member.arrived)
               << " in the queue, "
               << absl::FormatDuration(now - member.started)
               << " until its answer; " << member.rows
               << " row(s), merged with " << batch.members.size() - 1
               << " other request(s)" << *held_back;
}

void Scheduler::QueueNextStep(const Slot& slot, std::unique_ptr<Batch> batch) {
  // The rest keeps the place of the request in its queue, so that only requests
  // with earlier deadlines and other models go between two steps.
  Model& model = models_[batch->model];
  const absl::Time now = clock_.Now();
  Queue::Request rest;
  rest.key = slot.key;
  rest.payload.first_row = batch->first_row + batch->rows;
  rest.payload.is_probe = slot.is_probe;
  rest.payload.member = std::move(batch->members[0]);
  rest.rows = rest.payload.member.rows - rest.payload.first_row;
  rest.queued_at = now;
  rest.estimate = TimeFor(model, rest.rows, now);
  model.queue.Return(std::move(rest));
  ++queued_;
  batch->members.clear();
  Recycle(std::move(batch));
}

void Scheduler::OnDownloaded(int index, int slot_index,
                             const absl::Status& status) {
  if (!EndStep(index, slot_index, status)) return;
  std::unique_ptr<Batch> batch;
  // Read without the lock below: a model's label does not change while a batch
  // of it is under way (RemoveModel() waits for in_works).
  const std::string* label = nullptr;
  bool unfinished = false;
  {
    absl::MutexLock lock(&mu_);
    Instance& instance = instances_[index];
    Slot& slot = instance.slots[slot_index];
    batch = std::move(slot.batch);
    Model& model = models_[batch->model];
    label = &model.config.label;
    if (!batch->last_step() && batch->members[0].status.ok()) {
      unfinished = true;
      QueueNextStep(slot, std::move(batch));
      --model.in_works;
      slot.step = Step::kEmpty;
      Settle(instance);
    }
  }
  if (unfinished) return Pump();
  // Answered outside the lock, as it calls the transport.
  ModelStats seen;
  const absl::Time now = clock_.Now();
  for (BatchMember& member : batch->members) {
    seen.non_finite += member.non_finite;
    LogIfSlow(*label, *batch, member, now);
    if (member.status.ok()) {
      ++seen.succeeded;
      member.call->SetTimes(member.started, member.executed, now);
      member.call->Reply(std::move(member.reply));
    } else {
      ++seen.failed;
      LogFailure(*label, member);
      member.call->Fail(member.status);
    }
    // Returns the request's memory to the CN before it counts as answered.
    member.call.reset();
  }
  const size_t answered = batch->members.size();
  batch->members.clear();
  {
    absl::MutexLock lock(&mu_);
    Model& model = models_[batch->model];
    model.stats.succeeded += seen.succeeded;
    model.stats.failed += seen.failed;
    model.stats.non_finite += seen.non_finite;
    --model.in_works;
    Instance& instance = instances_[index];
    instance.slots[slot_index].step = Step::kEmpty;
    Settle(instance);  // another slot may have lost it meanwhile
    pending_ -= answered;
    Recycle(std::move(batch));
  }
  Pump();
}

}  // namespace refract::gpu_node
