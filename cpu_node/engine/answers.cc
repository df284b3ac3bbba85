// The end of a request: its answer or error, with statistics, log and shadow
// scoring.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/finite.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "cpu_node/engine.h"
#include "cpu_node/engine/task.h"

namespace refract::cpu_node {

// Whether a split model ran as a whole here because no GPU node could.
bool Engine::RanLocally(const Task& task) {
  return task.model->split() && !task.response.has_value() &&
         !task.gathered.has_value();
}

void Engine::Succeed(Task* task) {
  const ServedModel& model = *task->model;
  if (!task->gathered.has_value()) {  // pieces were trimmed
    model.padding().Trim(task->padded, absl::MakeSpan(task->outputs));
  }
  if (task->whole != nullptr) return EndPiece(task, KeepPiece(*task));
  if (!quarantine_.empty()) {
    quarantine_.OnAnswer(Quarantine::Fingerprint(task->request));
  }
  std::vector<base::TensorView>& outputs = task->outputs;
  InferResponse& response = *task->answer;
  response.model_name = model.name();
  response.model_version = model.version();
  response.delta_sequence =
      std::min(task->tables.sequence(), task->shards_delta);
  response.retries = task->retries();
  response.hedged = task->hedged;
  response.ran_locally = RanLocally(*task);
  response.replaced_ids = task->run_stats.replaced_ids;
  response.lost_ids = task->run_stats.lost_ids;
  response.newest_version = task->newest;
  response.outputs.clear();
  bool non_finite = false;
  for (const size_t index : task->bound.outputs) {
    non_finite |= base::HasNonFinite(outputs[index]);
    response.outputs.push_back(
        {model.interface().outputs()[index].name, outputs[index]});
  }
  const absl::Time computed = options_.clock->Now();
  model.statistics().RecordSuccess(
      computed - task->arrived, task->times, task->bound.batch,
      task->run_stats.replaced_ids, non_finite, absl::Now());
  model.statistics().RecordLostIds(task->run_stats.lost_ids);
  RecordStages(*task, computed);
  LogEnd(*task, absl::OkStatus());
  // Statistics and the log line come before: a client that has its answer finds
  // it counted. The outputs lie in the task's memory, so encoding ends within
  // the call.
  task->done(task->answer);
  model.statistics().RecordStage(Stage::kEncode,
                                 options_.clock->Now() - computed);
  TraceEnd(*task, absl::OkStatus(), computed);
  if (options_.shadow != nullptr) OfferToShadow(*task);
  Leave(task, /*answered=*/true);
}

void Engine::OfferToShadow(Task& task) {
  const std::shared_ptr<ShadowVersion>& version = task.model->shadow();
  if (version == nullptr || !options_.shadow->Sample()) return;
  // The second attempt of a hedge still reads the inputs, which are moved
  // below.
  if (task.keep_inputs) return version->Count(ShadowOutcome::kDropped);
  // LibTorch reads the tables as imported and applies no id policy.
  if (task.tables.sequence() != 0 || task.run_stats.replaced_ids > 0) {
    return version->Count(ShadowOutcome::kSkipped);
  }
  if (!options_.shadow->HasRoom(BytesOf(task.request) +
                                BytesOf(*task.answer))) {
    return version->Count(ShadowOutcome::kDropped);
  }
  const absl::Status status = base::WithinMemory([&]() -> absl::Status {
    Shadow::Request request;
    request.version = version;
    request.id = task.request.id;
    const ModelInterface& interface = task.model->interface();
    // The request ends here, so its tensors are moved, not copied.
    for (const TensorInfo& wanted : interface.inputs()) {
      for (InputTensor& input : task.request.inputs) {
        if (input.name != wanted.name) continue;
        request.inputs.push_back(std::move(input.tensor));
      }
    }
    request.answers.resize(interface.outputs().size());
    for (const size_t index : task.bound.outputs) {
      REFRACT_ASSIGN_OR_RETURN(request.answers[index],
                               base::Tensor::CopyOf(task.outputs[index]));
    }
    options_.shadow->Add(std::move(request));
    return absl::OkStatus();
  });
  if (!status.ok()) version->Count(ShadowOutcome::kDropped);
}

void Engine::RecordStages(const Task& task, absl::Time computed) {
  ModelStatistics& statistics = task.model->statistics();
  statistics.RecordRetries(task.retries());
  if (task.newest > 0) statistics.RecordOlderAnswer();
  if (task.request.received != absl::InfinitePast()) {
    statistics.RecordStage(Stage::kDecode,
                           task.arrived - task.request.received);
  }
  statistics.RecordStage(Stage::kQueue, task.times.queue);
  if (task.gathered.has_value()) {
    statistics.RecordStage(Stage::kPre, task.parts.start);
    statistics.RecordStage(Stage::kGpuNode, computed - task.sent);
    return;
  }
  if (!task.response.has_value()) {
    if (RanLocally(task)) statistics.RecordLocalRun();
    statistics.RecordStage(Stage::kWhole, computed - task.began);
    return;
  }
  statistics.RecordStage(Stage::kPre, task.parts.start);
  statistics.RecordStage(Stage::kGpuNode, task.times.compute_infer);
  // Between the answer's arrival and a worker that continues.
  statistics.RecordStage(Stage::kResume,
                         task.began - task.sent - task.times.compute_infer);
  statistics.RecordStage(Stage::kPost, computed - task.began);
}

void Engine::Fail(Task* task, const absl::Status& status) {
  // Copied: `status` may be a field of the task, which ends here.
  const absl::Status reason = status;
  if (task->whole != nullptr) return EndPiece(task, reason);
  const ServedModel& model = *task->model;
  model.statistics().RecordFailure(options_.clock->Now() - task->arrived,
                                   reason, absl::Now());
  model.statistics().RecordRetries(task->retries());
  log_.OnFailure(model.name(), task->request.id, reason);
  LogEnd(*task, reason);
  task->done(reason);
  TraceEnd(*task, reason);
  Leave(task);
}

void Engine::LogEnd(const Task& task, const absl::Status& status) {
  log_.OnEnd({.model = task.model->name(),
              .id = task.request.id,
              .gpu_node = task.gpu_node,
              .took = options_.clock->Now() - task.arrived,
              .times = task.times,
              .attempts = task.attempts},
             status);
}

}  // namespace refract::cpu_node
