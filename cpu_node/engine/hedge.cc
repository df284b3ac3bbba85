// Hedged requests: a request that a GPU node has not answered for a while is
// sent to a second GPU node too, and the first answer is taken
// (dispatch/hedging.h). The second attempt runs CN-pre once more, as a retry
// does, because the transport owns the first message. CN-post runs once, on
// the request's own results of CN-pre, whichever node answered.

#include <memory>
#include <optional>
#include <utility>

#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "cpu_node/engine.h"
#include "cpu_node/engine/task.h"

namespace refract::cpu_node {
namespace {

// Retries that hedges leave in the budget: the requests that are in flight to a
// GPU node, which must be sent again if that node is lost.
constexpr int kLeftForRetries = 64;

}  // namespace

absl::Duration Engine::HedgeAfter(const Task& task) const {
  // The rows of other shards may have changed when the second attempt asks for
  // them, and CN-post would then read rows of two states.
  if (hedge_timer_ == nullptr || task.attempts != 1 || task.whole != nullptr ||
      task.model->sharded() != nullptr) {
    return absl::InfiniteDuration();
  }
  const absl::Duration after = options_.hedge.after < absl::InfiniteDuration()
                                   ? options_.hedge.after
                                   : task.model->hedge_delay().Get();
  return task.sent + after < task.request.deadline ? after
                                                   : absl::InfiniteDuration();
}

void Engine::SendInRace(Task* task, transport::OutgoingMessage message,
                        absl::Duration hedge_after) {
  const auto race = std::make_shared<Race>();
  transport::Client& client = task->node->client();
  const absl::Time deadline = task->request.deadline;
  const absl::Time due = task->sent + hedge_after;
  std::stop_token cancel;
  {
    absl::MutexLock lock(&race->mu);
    race->model = task->model;
    race->task = task;
    Race::Attempt& first = race->attempts[0];
    first.node = std::move(task->node);
    first.sent = task->sent;
    first.away = true;
    cancel = first.cancel.get_token();
    race->client_cancel.emplace(
        task->request.cancel,
        [a = first.cancel, b = race->attempts[1].cancel]() mutable {
          // On the stack: the end of an attempt may destroy the callback.
          std::stop_source first = a, second = b;
          first.request_stop();
          second.request_stop();
        });
  }
  task->node.reset();
  task->race = race;
  client.Send(std::move(message), deadline, std::move(cancel),
              [this, race](absl::StatusOr<transport::IncomingMessage> response) {
                OnAttemptEnd(race, 0, std::move(response));
              });
  hedge_timer_->Add(due, race);
}

void Engine::OnHedgeDue(const std::shared_ptr<Race>& race) {
  {
    absl::MutexLock lock(&race->mu);
    if (race->task == nullptr) return;
  }
  workers_.Continue([this, race] { Hedge(race); });
}

void Engine::Hedge(const std::shared_ptr<Race>& race) {
  Task* task = nullptr;
  size_t avoid = 0;
  {
    absl::MutexLock lock(&race->mu);
    task = race->task;
    if (task == nullptr) return;
    // Until `reading` is false again, the task must not be cleared: Leave() by
    // another worker only notes its call in race->left.
    race->reading = true;
    avoid = race->attempts[0].node->node();
  }
  const absl::StatusOr<HedgeOutcome> failed = SendHedge(race, *task, avoid);
  if (failed.ok()) race->model->statistics().RecordHedge(*failed);
  std::optional<bool> left;
  {
    absl::MutexLock lock(&race->mu);
    race->reading = false;
    left = race->left;
  }
  if (left.has_value()) Leave(task, *left);
}

// Returns why no second attempt was made; an error: it was made, or the request
// ended. `task` may be with another worker meanwhile, so that only fields are
// read here that no later stage changes.
absl::StatusOr<HedgeOutcome> Engine::SendHedge(
    const std::shared_ptr<Race>& race, Task& task, size_t avoid) {
  REFRACT_RETURN_IF_ERROR(CheckAlive(task, "before the second GPU node"));
  // A node that has answered requests of the model, is ready and has room.
  std::optional<NodePool::Lease> node = nodes_->AcquireWithin(
      race->model->places().offer, avoid, absl::InfiniteDuration());
  if (!node.has_value()) return HedgeOutcome::kNoNode;
  if (!retry_budget_.Take(kLeftForRetries)) return HedgeOutcome::kNoBudget;

  // A task of its own for CN-pre: the first attempt's task may already continue
  // with its answer.
  const std::unique_ptr<Task, std::function<void(Task*)>> copy(
      tasks_.Take().release(), [this](Task* used) {
        used->Clear();
        tasks_.Give(std::unique_ptr<Task>(used));
      });
  std::stop_token cancel;
  {
    absl::MutexLock lock(&race->mu);
    cancel = race->attempts[1].cancel.get_token();
  }
  copy->engine = this;
  copy->whole = &task;  // reads the same state of the tables
  copy->model = race->model;
  copy->node = std::move(node);
  copy->request.id = task.request.id;
  copy->request.deadline = task.request.deadline;
  copy->request.cancel = cancel;
  transport::OutgoingMessage message;
  const absl::Status status = base::WithinMemory([&] {
    REFRACT_RETURN_IF_ERROR(
        race->model->padding().Pad(task.bound.inputs, copy->padded));
    return RunPre(*copy, message);
  });
  if (!status.ok()) {
    // The first answer may have come meanwhile and cancelled this attempt.
    if (!IsRetryable(status)) return status;
    return HedgeOutcome::kNoNode;
  }
  Address(task, message);
  transport::Client& client = copy->node->client();
  {
    absl::MutexLock lock(&race->mu);
    if (race->task == nullptr) return HedgeOutcome::kLost;
    Race::Attempt& second = race->attempts[1];
    second.node = std::move(copy->node);
    second.sent = options_.clock->Now();
    second.away = true;
    ++task.attempts;
    task.hedged = true;
  }
  client.Send(std::move(message), copy->request.deadline, std::move(cancel),
              [this, race](absl::StatusOr<transport::IncomingMessage> response) {
                OnAttemptEnd(race, 1, std::move(response));
              });
  return absl::CancelledError();
}

void Engine::OnAttemptEnd(const std::shared_ptr<Race>& race, size_t attempt,
                          absl::StatusOr<transport::IncomingMessage> response) {
  const absl::Time now = options_.clock->Now();
  const absl::Status& status = response.status();
  std::optional<NodePool::Lease> node;
  absl::Time sent;
  Task* task = nullptr;
  std::optional<std::stop_source> other_attempt;
  bool hedged = false;
  {
    absl::MutexLock lock(&race->mu);
    Race::Attempt& mine = race->attempts[attempt];
    Race::Attempt& other = race->attempts[1 - attempt];
    mine.away = false;
    node = std::move(mine.node);
    mine.node.reset();
    sent = mine.sent;
    task = race->task;
    if (task != nullptr && other.away && !status.ok() &&
        (IsRetryable(status) || absl::IsDeadlineExceeded(status))) {
      // The other attempt takes the place of a retry.
      if (transport::PeerEndedWithRequest(status)) {
        quarantine_.OnLoss(Quarantine::Fingerprint(task->client_request()),
                           now);
      }
      task = nullptr;
    } else if (task != nullptr) {
      race->task = nullptr;
      hedged = task->hedged;
      task->keep_inputs = race->reading;
      other_attempt = other.cancel;
    }
  }
  if (task == nullptr) {
    // A lost attempt only shows how long its node took at least.
    node->Finish(status, now - sent);
    return;
  }
  if (hedged) {
    race->model->statistics().RecordHedge(attempt == 1 && status.ok()
                                              ? HedgeOutcome::kWon
                                              : HedgeOutcome::kLost);
  }
  other_attempt->request_stop();
  task->node = std::move(node);
  task->sent_to_node = sent;
  OnResponse(task, std::move(response));
}

void Engine::LearnRoundTrips() {
  if (options_.hedge.quantile == 0) return;
  for (const Catalog::Entry& entry : catalog()->entries()) {
    if (entry.model == nullptr || !entry.model->split()) continue;
    entry.model->hedge_delay().Learn(
        entry.model->statistics().stage(Stage::kGpuNode).snapshot(),
        options_.hedge.quantile);
  }
}

}  // namespace refract::cpu_node
