// The stages of a request: CN-pre, GPU node, CN-post. A worker thread or the
// transport's callback runs each stage and hands the task to the next one.

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "cpu_node/engine.h"
#include "cpu_node/engine/task.h"
#include "runtime/stable_inputs.h"
#include "runtime/torch/loop_limits.h"
#include "runtime/wire/elements.h"

namespace refract::cpu_node {
namespace {

// The first attempt and one retry at another GPU node. A third attempt would
// spend the rest of the deadline on a pool that is evidently in trouble.
constexpr int kMaxAttempts = 2;

constexpr char kInLoop[] = "in a loop of the model";

}  // namespace

bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

absl::Status InQuarantine() {
  return absl::UnavailableError(absl::StrCat(
      "GPU nodes ended ", Quarantine::kLosses,
      " times while they had a request of this content; the content "
      "is refused for ",
      absl::FormatDuration(Quarantine::kTime)));
}

absl::Status Engine::CheckAlive(const Task& task, const char* where) const {
  if (aborting_.load(std::memory_order_relaxed)) return Stopping();
  if (task.request.cancel.stop_requested()) {
    return absl::CancelledError("the client does not wait any more");
  }
  const absl::Time now = options_.clock->Now();
  if (task.request.deadline <= now) {
    return absl::DeadlineExceededError(absl::StrCat(
        "deadline passed ", where, ", ",
        absl::FormatDuration(now - task.request.deadline), " ago"));
  }
  return absl::OkStatus();
}
void Engine::Start(Task* task) {
  task->started = true;
  task->began = options_.clock->Now();
  task->times.queue = task->began - task->arrived;
  // All pieces of a request read the same state of the tables.
  if (task->whole == nullptr) task->tables = task->model->PinTables();
  const absl::Status status = base::WithinMemory([&] {
    REFRACT_RETURN_IF_ERROR(CheckAlive(*task, "at CN queue"));
    return task->model->padding().Pad(task->bound.inputs, task->padded);
  });
  if (!status.ok()) return Fail(task, status);
  if (task->model->split()) return Dispatch(task);
  RunWhole(task);
}

void Engine::RunWhole(Task* task) {
  // Keeps the model: the lease below returns its context after the task ended.
  const std::shared_ptr<const ServedModel> pinned = task->model;
  const ServedModel& model = *pinned;
  const CompiledPart& part = model.whole();
  const absl::Time begin = options_.clock->Now();
  std::optional<runtime::ContextPool::Lease> context;  // owns the outputs
  task->run_stats = runtime::RunStats();
  std::optional<ShardGroup::Run> shards = ShardsFor(*task);
  const runtime::aten::ScopedLoopCheck check(
      [this, &task = *task] { return CheckAlive(task, kInLoop); });
  const absl::Status status = base::WithinMemory([&] {
    model.WholeInputs(task->padded.inputs(), task->inputs);
    context.emplace(part.Acquire());
    (*context)->set_tables_at(task->tables_at());
    (*context)->set_shard_peers(shards ? &*shards : nullptr);
    return part.program().Run(task->inputs, {}, **context, task->outputs,
                              &task->run_stats);
  });
  if (!status.ok()) return Fail(task, status);
  if (shards) task->shards_delta = shards->oldest_delta();
  task->times.compute_infer = options_.clock->Now() - begin;
  Succeed(task);
}

void Engine::Dispatch(Task* task) {
  const size_t offer = task->model->places().offer;
  // An attempt that fails before the message is sent is repeated here; an
  // attempt that fails later comes back through OnResponse().
  while (task->attempts < kMaxAttempts) {
    const absl::Status alive = CheckAlive(*task, "before the GPU node");
    if (!alive.ok()) return Fail(task, alive);
    if (task->only_in_time) {
      task->node = nodes_->AcquireWithin(
          offer, *task->avoid, task->request.deadline - options_.clock->Now());
    } else if (!task->node.has_value()) {  // else: reserved before the start
      task->node = nodes_->Acquire(
          offer, task->avoid, absl::IsResourceExhausted(task->last_failure));
    }
    if (!task->node.has_value()) {
      // The reason is the refusal of the node that was asked last.
      if (task->only_in_time || absl::IsResourceExhausted(task->last_failure)) {
        break;
      }
      task->last_failure = nodes_->WhyUnusable(offer);
      if (task->last_failure.ok()) {
        task->last_failure = nodes_->WhyNoRoom(offer);
      }
      break;
    }
    ++task->attempts;
    const size_t node = task->node->node();
    const absl::Status status = RunPreAndSend(task);
    // Sent: the transport's callback owns the task from here on.
    if (status.ok()) return;
    // The message is longer than the transport carries.
    if (absl::IsOutOfRange(status)) return SendInPieces(task, status);
    task->node.reset();
    if (!IsRetryable(status) || task->shard_failed) return Fail(task, status);
    task->last_failure = status;
    task->avoid = node;
  }
  // --local-fallback: the last resort.
  if (task->model->can_run_whole() && IsRetryable(task->last_failure)) {
    return RunWhole(task);
  }
  Fail(task, task->last_failure);
}

absl::Status Engine::RunPreAndSend(Task* task) {
  const absl::Time begin = options_.clock->Now();
  transport::OutgoingMessage message;
  task->run_stats = runtime::RunStats();
  REFRACT_RETURN_IF_ERROR(
      base::WithinMemory([&] { return RunPre(*task, message); }));
  // Read before the send, whose callback may run on another thread at once and
  // end the task.
  task->sent = options_.clock->Now();
  task->sent_to_node = task->sent;
  task->times.compute_input = task->sent - begin;
  task->parts.start += task->sent - task->began;
  task->began = absl::InfinitePast();
  transport::Client& client = task->node->client();
  Address(*task, message);
  const absl::Duration hedge_after = HedgeAfter(*task);
  if (hedge_after < absl::InfiniteDuration()) {
    SendInRace(task, std::move(message), hedge_after);
    return absl::OkStatus();
  }
  client.Send(
      std::move(message), task->request.deadline, task->request.cancel,
      [this, task](absl::StatusOr<transport::IncomingMessage> response) {
        OnResponse(task, std::move(response));
      });
  return absl::OkStatus();
}

void Engine::Address(const Task& task,
                     transport::OutgoingMessage& message) const {
  // GPU nodes measure now: only the answer shows whether the request was slow.
  const tracing::RequestContext& trace = task.request.trace;
  if (trace.on && (trace.sampled || options_.tracer->MayKeepLater())) {
    message.AskForTimes();
  }
  message.SetPriority(task.priority);
}

absl::StatusOr<transport::OutgoingMessage> Engine::Allocate(
    Task& task, absl::Span<const base::TensorSpec> tensors) {
  task.message_bytes = 0;
  for (const base::TensorSpec& tensor : tensors) {
    task.message_bytes += base::ByteSize(tensor.dtype, tensor.dims).value_or(0);
  }
  return task.node->client().Allocate(task.model->places().offer, tensors,
                                      task.request.id);
}

std::optional<ShardGroup::Run> Engine::ShardsFor(const Task& task) const {
  if (task.model->sharded() == nullptr) return std::nullopt;
  return std::make_optional<ShardGroup::Run>(
      shards_.get(), task.model->places().shards, task.request.deadline,
      task.request.cancel, task.request.id);
}

absl::Status Engine::RunPre(Task& task, transport::OutgoingMessage& message) {
  const ServedModel& model = *task.model;
  const runtime::aten::ScopedLoopCheck check(
      [this, &task] { return CheckAlive(task, kInLoop); });
  model.PreInputs(task.padded.inputs(), task.inputs);
  if (!task.pre_context.has_value()) {
    task.pre_context.emplace(model.pre().Acquire());
  }
  (*task.pre_context)->set_tables_at(task.tables_at());
  const runtime::UniquePart* const unique = model.unique();
  if (unique == nullptr) return ComputePre(task, {}, message);

  const auto request = unique->Acquire();
  const size_t num_inputs = task.inputs.size();
  REFRACT_RETURN_IF_ERROR(
      unique->AddInputs(/*distinct=*/true, *request, task.inputs));
  const absl::Status status = ComputePre(task, request->indexes(), message);
  // An id without a row is counted each time that a request has it, and is
  // refused with its position: both need all ids. Only the owners of divided
  // tables know which ids have no row.
  const bool incomplete =
      status.ok() ? task.run_stats.replaced_ids + task.run_stats.lost_ids > 0
                  : absl::IsInvalidArgument(status);
  if (!incomplete || !request->has_index()) return status;
  if (status.ok() && model.sharded() == nullptr) {
    return unique->CountAllIds(task.tables_at(), *request, task.inputs,
                               task.run_stats);
  }
  message = transport::OutgoingMessage();
  task.run_stats = runtime::RunStats();
  task.inputs.resize(num_inputs);
  REFRACT_RETURN_IF_ERROR(
      unique->AddInputs(/*distinct=*/false, *request, task.inputs));
  return ComputePre(task, request->indexes(), message);
}

absl::Status Engine::ComputePre(
    Task& task, absl::Span<const runtime::wire::UniqueRows* const> indexes,
    transport::OutgoingMessage& message) {
  const ServedModel& model = *task.model;
  const runtime::Program& program = model.pre().program();
  const runtime::wire::Codec& codec = model.up_codec();
  const size_t num_up = model.num_up();

  REFRACT_RETURN_IF_ERROR(
      program.OutputSpecs(task.inputs, **task.pre_context, task.specs));
  task.up_specs.clear();
  for (size_t i = 0; i < num_up; ++i) {
    if (task.specs[i].has_value()) task.up_specs.push_back(*task.specs[i]);
  }
  // Known sizes: the message is allocated before the run, and the kernels write
  // values that cross as they are straight into registered memory. Encoded
  // values are written after the run.
  const bool sizes_known = (codec.sizes_known() || !indexes.empty()) &&
                           task.up_specs.size() == num_up;
  const bool encodes = !sizes_known || !codec.plain();
  std::optional<runtime::wire::EncoderPool::Lease> encoder;
  if (encodes) encoder.emplace(model.encoders().Acquire());
  task.destinations.assign(task.specs.size(), nullptr);
  if (sizes_known) {
    absl::Span<const base::TensorSpec> tensors;
    if (indexes.empty()) {
      task.message_specs =
          codec.MessageSpecs(task.up_specs, std::move(task.message_specs));
      tensors = task.message_specs;
    } else {
      task.pre_outputs.clear();
      for (base::TensorSpec& spec : task.up_specs) {
        task.pre_outputs.push_back({spec.dtype, std::move(spec.dims)});
      }
      REFRACT_ASSIGN_OR_RETURN(tensors,
                               (*encoder)->Prepare(task.pre_outputs, indexes));
    }
    REFRACT_ASSIGN_OR_RETURN(message, Allocate(task, tensors));
    for (size_t i = 0; i < num_up; ++i) {
      const runtime::wire::Codec::Value& value = codec.values()[i];
      if (value.form.type == models::WireType::kAsIs) {
        task.destinations[i] = message.data(value.tensor);
      }
    }
  }
  std::optional<ShardGroup::Run> shards = ShardsFor(task);
  (*task.pre_context)->set_shard_peers(shards ? &*shards : nullptr);
  const absl::Status ran =
      program.Run(task.inputs, task.destinations, **task.pre_context,
                  task.pre_outputs, &task.run_stats);
  task.shard_failed = !ran.ok() && shards && shards->failed();
  if (shards) task.shards_delta = shards->oldest_delta();
  REFRACT_RETURN_IF_ERROR(ran);
  if (encodes) {
    const auto up = absl::MakeConstSpan(task.pre_outputs).subspan(0, num_up);
    if (sizes_known && !indexes.empty()) {
      (*encoder)->SetValues(up);  // prepared above
    } else {
      absl::StatusOr<absl::Span<const base::TensorSpec>> tensors =
          indexes.empty() ? (*encoder)->Prepare(up)
                          : (*encoder)->Prepare(up, indexes);
      REFRACT_RETURN_IF_ERROR(tensors.status());
      // Sizes that depend on data are known only after the run; plain values
      // cost a copy then.
      if (!sizes_known) {
        REFRACT_ASSIGN_OR_RETURN(message, Allocate(task, *tensors));
      }
    }
    (*encoder)->WriteTo([&](size_t tensor) { return message.data(tensor); });
  }
  KeepFromMessage(num_up, task);
  return absl::OkStatus();
}

// A value that crosses and is also read by CN-post may have been written once,
// into the message. The transport owns that memory once the message is sent, so
// KeepFromMessage() copies such values out of it before.
void Engine::KeepFromMessage(size_t num_up, Task& task) {
  const absl::Span<base::TensorView> kept =
      absl::MakeSpan(task.pre_outputs).subspan(num_up);
  const auto in_message = [&](const base::TensorView& value) {
    const std::less<const std::byte*> before;
    for (size_t i = 0; i < num_up; ++i) {
      const base::TensorView& sent = task.pre_outputs[i];
      if (task.destinations[i] != nullptr && !before(value.data, sent.data) &&
          before(value.data, sent.data + sent.bytes)) {
        return true;
      }
    }
    return false;
  };
  size_t bytes = 0;
  for (const base::TensorView& value : kept) {
    if (in_message(value)) bytes += runtime::wire::RoundUp(value.bytes);
  }
  if (bytes > task.kept.size()) {
    task.kept = base::AlignedBuffer(std::bit_ceil(bytes));
  }
  std::byte* to = task.kept.data();
  for (base::TensorView& value : kept) {
    if (!in_message(value)) continue;
    std::memcpy(to, value.data, value.bytes);
    value.data = to;
    to += runtime::wire::RoundUp(value.bytes);
  }
}

void Engine::OnResponse(Task* task,
                        absl::StatusOr<transport::IncomingMessage> response) {
  task->times.compute_infer = options_.clock->Now() - task->sent;
  task->parts.away = task->times.compute_infer;
  const size_t node = task->node->node();
  // Kept before the lease ends: the node may leave the pool afterwards.
  const std::string address = response.ok() ? "" : task->node->address();
  const absl::Time now = options_.clock->Now();
  if (log_.IsSlow(now - task->arrived) || task->request.trace.on) {
    task->gpu_node = task->node->address();
  }
  task->node->Finish(response.status(), now - task->sent_to_node,
                     /*in_time=*/now < task->request.deadline);
  task->node.reset();
  if (response.ok()) {
    task->response = *std::move(response);
    // This is the polling thread, which must not compute.
    workers_.Continue([this, task] { RunPost(task); });
    return;
  }
  const absl::Status status =
      base::Annotate(response.status(), absl::StrCat("GPU node ", address));
  if (absl::IsOutOfRange(status)) {  // the answer is too long
    task->message_bytes = 0;
    workers_.Continue([this, task, status] {
      task->began = options_.clock->Now();
      SendInPieces(task, status);
    });
    return;
  }
  if (aborting_.load(std::memory_order_relaxed)) return Fail(task, Stopping());
  // The GPU node predicted from its own times that it would be late.
  task->only_in_time =
      absl::IsDeadlineExceeded(status) && now < task->request.deadline;
  if (!IsRetryable(status) && !task->only_in_time) return Fail(task, status);
  const absl::Status repeat = MayRepeat(*task, response.status());
  if (!repeat.ok()) return Fail(task, base::Annotate(status, repeat.message()));
  task->last_failure = status;
  task->avoid = node;
  workers_.Continue([this, task] {
    task->began = options_.clock->Now();
    Dispatch(task);
  });
}

absl::Status Engine::MayRepeat(const Task& task, const absl::Status& failure) {
  // A refusal cost the GPU node no work.
  if (!absl::IsUnavailable(failure)) return absl::OkStatus();
  if (transport::PeerEndedWithRequest(failure)) {
    const base::Digest content = Quarantine::Fingerprint(task.client_request());
    const absl::Time now = options_.clock->Now();
    quarantine_.OnLoss(content, now);
    if (quarantine_.Holds(content, now)) return InQuarantine();
  }
  if (task.attempts < kMaxAttempts && !retry_budget_.Take()) {
    return absl::UnavailableError(
        "not sent to another GPU node: more than a tenth of the requests were "
        "sent twice");
  }
  return absl::OkStatus();
}

void Engine::RunPost(Task* task) {
  // Keeps the model: the lease below returns its context after the task ended.
  const std::shared_ptr<const ServedModel> pinned = task->model;
  const ServedModel& model = *pinned;
  const CompiledPart& part = model.post();
  const absl::Time begin = options_.clock->Now();
  task->began = begin;
  // The outputs may be views of the decoder's memory.
  runtime::wire::DecoderPool::Lease decoder = model.decoders().Acquire();
  std::optional<runtime::ContextPool::Lease> context;
  runtime::RunStats post_stats;
  const runtime::aten::ScopedLoopCheck check(
      [this, &task = *task] { return CheckAlive(task, kInLoop); });
  const absl::Status status = base::WithinMemory([&] {
    REFRACT_RETURN_IF_ERROR(CheckAlive(*task, "after the GPU node"));
    REFRACT_ASSIGN_OR_RETURN(
        const absl::Span<const base::TensorView> response,
        model.ReadAnswer(*task->response, *decoder, task->stable));
    model.PostInputs(task->padded.inputs(), task->pre_outputs, response,
                     task->inputs);
    context.emplace(part.Acquire());
    (*context)->set_tables_at(task->tables_at());
    return part.program().Run(task->inputs, {}, **context, task->outputs,
                              &post_stats);
  });
  if (!status.ok()) return Fail(task, status);
  task->run_stats.replaced_ids += post_stats.replaced_ids;
  task->times.compute_output = options_.clock->Now() - begin;
  Succeed(task);
}

}  // namespace refract::cpu_node
