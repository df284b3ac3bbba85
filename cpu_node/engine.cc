#include "cpu_node/engine.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/finite.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "cpu_node/engine_task.h"
#include "glog/logging.h"
#include "runtime/stable_inputs.h"
#include "runtime/torch/loop_limits.h"

namespace refract::cpu_node {
namespace {

// The first try and one elsewhere (DESIGN section 6): a third would spend a
// deadline on a pool that is evidently in trouble.
constexpr int kMaxAttempts = 2;

constexpr char kInLoop[] = "in a loop of the model";

// Worth another try: the node is gone, or has no room while another may have.
bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

absl::Status InQuarantine() {
  return absl::UnavailableError(absl::StrCat(
      "GPU nodes ended ", Quarantine::kLosses,
      " times while they had a request of this content; it is refused for ",
      absl::FormatDuration(Quarantine::kTime)));
}

absl::Status CheckOptions(const EngineOptions& options) {
  if (options.workers < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("workers is ", options.workers, ", wanted ≥ 1"));
  }
  if (options.max_queue < 1 || options.max_in_flight < 1) {
    return absl::InvalidArgumentError(
        "max_queue and max_in_flight must be ≥ 1");
  }
  if (options.default_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("default_timeout must be > 0");
  }
  return absl::OkStatus();
}

}  // namespace

Engine::Engine(Catalog catalog, EngineOptions options)
    : options_(std::move(options)),
      catalog_(std::make_shared<const Catalog>(std::move(catalog))),
      log_(options_.slow_after, *options_.clock),
      workers_(QueueOptions(), options_.clock) {}

StartQueue::Options Engine::QueueOptions() {
  StartQueue::Options queue;
  queue.workers = options_.workers;
  queue.max_queue = options_.max_queue;
  return queue;
}

QueuedModel Engine::Queued(const ServedModel& model) const {
  return {absl::StrCat("model '", model.name(), "' version ", model.version()),
          model.model().config.serving.share};
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Catalog catalog,
                                                       EngineOptions options) {
  REFRACT_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<Engine> engine(
      new Engine(std::move(catalog), std::move(options)));
  REFRACT_RETURN_IF_ERROR(
      CheckReadinessRule(engine->options_.readiness, *engine->catalog()));
  REFRACT_RETURN_IF_ERROR(engine->CreateNodePool());
  return engine;
}

absl::Status Engine::CreateNodePool() {
  NodePoolOptions nodes = options_.nodes;
  nodes.clock = options_.clock;
  nodes.on_change = [this] { NotifyReadiness(); };
  nodes.offers.clear();
  nodes.checked_offers.clear();
  const std::shared_ptr<const Catalog> catalog = this->catalog();
  for (const Catalog::Entry& entry : catalog->entries()) {
    if (entry.model == nullptr) continue;
    ServedModel::Places places;
    places.queue = workers_.AddModel(Queued(*entry.model), std::nullopt);
    if (entry.model->split()) {
      places.offer = nodes.offers.size();
      nodes.offers.push_back(entry.model->offer());
      nodes.checked_offers.push_back(!entry.model->checks().empty());
    }
    entry.model->set_places(places);
  }
  REFRACT_ASSIGN_OR_RETURN(nodes_, NodePool::Create(std::move(nodes)));
  checks_ = std::make_unique<NodeChecks>(nodes_.get(), options_.clock);
  for (const Catalog::Entry& entry : catalog->entries()) {
    if (entry.model == nullptr || !entry.model->split()) continue;
    if (entry.model->checks().empty()) continue;
    checks_->Add(entry.model->places().offer, entry.model);
  }
  has_nodes_.store(true, std::memory_order_release);
  ChooseDefaults();
  return absl::OkStatus();
}

void Engine::ChooseDefaults() {
  // A change while the pool is created; CreateNodePool() looks afterwards.
  if (!has_nodes_.load(std::memory_order_acquire)) return;
  const std::shared_ptr<const Catalog> catalog = this->catalog();
  catalog->ChooseDefaults([this](const ServedModel& model) {
    return model.can_run_whole() || nodes_->Usable(model.places().offer);
  });
}

std::shared_ptr<const Catalog> Engine::catalog() const {
  absl::ReaderMutexLock lock(&catalog_mu_);
  return catalog_;
}

// -------------------------------------------------------------- model control

absl::Status Engine::Adopt(const std::shared_ptr<ServedModel>& adopted) {
  ServedModel& model = *adopted;
  ServedModel::Places places;
  const bool checked = model.split() && !model.checks().empty();
  if (model.split()) {
    REFRACT_ASSIGN_OR_RETURN(places.offer,
                             nodes_->AddOffer(model.offer(), checked));
  }
  // Another version of it, as far as there is one.
  const auto alike = catalog()->Find(model.name(), "");
  places.queue = workers_.AddModel(
      Queued(model),
      alike.ok() ? std::make_optional((*alike)->places().queue) : std::nullopt);
  model.set_places(places);
  if (checked) checks_->Add(places.offer, adopted);
  return absl::OkStatus();
}

void Engine::Publish(std::vector<Catalog::Entry> entries) {
  auto next = std::make_shared<const Catalog>(std::move(entries));
  next->KeepDefaults(*catalog());
  next->ChooseDefaults([this](const ServedModel& model) {
    return model.can_run_whole() || nodes_->Usable(model.places().offer);
  });
  {
    absl::MutexLock lock(&catalog_mu_);
    // The old one ends with its last reader.
    catalog_.swap(next);
  }
  // Chooses once more: a node may have become ready meanwhile.
  NotifyReadiness();
}

void Engine::Retire(std::shared_ptr<ServedModel> model) {
  // Requests that have it end by their deadlines; nobody else can get it.
  constexpr absl::Duration kLook = absl::Milliseconds(2);
  if (model->split()) checks_->Remove(model->places().offer);
  while (model.use_count() > 1) absl::SleepFor(kLook);
  if (model->split()) nodes_->RemoveOffer(model->places().offer);
  workers_.RemoveModel(model->places().queue);
}

Engine::~Engine() { Stop(); }

// ------------------------------------------------------------------ admission

void Engine::Infer(InferRequest request, InferCallback done) {
  const absl::Time arrived = options_.clock->Now();
  int64_t newest = 0;
  const auto model =
      catalog()->Find(request.model_name, request.model_version, &newest);
  if (!model.ok()) unknown_models_.fetch_add(1, std::memory_order_relaxed);
  const tracing::RequestContext trace = request.trace;
  const absl::Time received = request.received;
  const absl::Status status =
      model.ok() ? Admit(*model, newest, arrived, request, done)
                 : model.status();
  if (status.ok()) return;
  log_.OnFailure(model.ok() ? (*model)->name() : request.model_name, request.id,
                 status);
  TraceRefusal(trace, received,
               model.ok() ? (*model)->name() : request.model_name, request.id,
               status);
  done(status);
}

absl::Status Engine::Foresee(absl::string_view model, absl::string_view version,
                             absl::Time deadline) {
  const auto found = catalog()->Find(model, version);
  if (!found.ok()) return absl::OkStatus();
  return workers_.Foresee((*found)->places().queue, deadline);
}

absl::Status Engine::Refuse(absl::string_view model, absl::string_view version,
                            const absl::Status& status,
                            const tracing::RequestContext& trace,
                            absl::Time received) {
  const auto found = catalog()->Find(model, version);
  const absl::Status& answer = found.ok() ? status : found.status();
  if (!found.ok()) {
    unknown_models_.fetch_add(1, std::memory_order_relaxed);
  } else {
    (*found)->statistics().RecordFailure(absl::ZeroDuration(), answer,
                                         absl::Now());
  }
  log_.OnFailure(model, /*id=*/"", answer);
  TraceRefusal(trace, received, model, /*id=*/"", answer);
  return answer;
}

// Takes over `done`, and `request` with its id, only if it returns OK.
absl::Status Engine::Admit(const std::shared_ptr<const ServedModel>& pinned,
                           int64_t newest, absl::Time arrived,
                           InferRequest& request, InferCallback& done) {
  const ServedModel& model = *pinned;
  Task* const task = tasks_.Take().release();
  task->arrived = arrived;
  task->model = pinned;
  task->newest = newest;
  task->request = std::move(request);
  if (task->request.deadline == absl::InfiniteFuture()) {
    task->request.deadline = arrived + options_.default_timeout;
  }
  absl::Status status = model.interface().Bind(task->request, task->bound);
  if (status.ok() && !quarantine_.empty() &&
      quarantine_.Holds(Quarantine::Fingerprint(task->request), arrived)) {
    status = InQuarantine();
  }
  if (status.ok()) {
    absl::MutexLock lock(&mu_);
    if (!admitting_) {
      status = Stopping();
    } else if (in_flight_ >= options_.max_in_flight) {
      status = absl::ResourceExhaustedError(
          absl::StrCat(in_flight_, " requests are in flight on the CPU node"));
    } else {
      ++in_flight_;
    }
  }
  if (status.ok()) {
    task->engine = this;
    task->done = std::move(done);
    status = workers_.Admit(*task, model.places().queue, task->bound.batch,
                            task->request.deadline);
    if (status.ok()) {
      retry_budget_.OnAdmitted();
      return status;
    }
    done = std::move(task->done);
    request.id = std::move(task->request.id);  // for the log
    Leave(task);
  } else {
    request.id = std::move(task->request.id);
    task->Clear();
    tasks_.Give(std::unique_ptr<Task>(task));
  }
  model.statistics().RecordFailure(options_.clock->Now() - arrived, status,
                                   absl::Now());
  return status;
}

// Called under the lock of the workers: it must not wait for anything.
bool Engine::Reserve(Task& task) {
  const ServedModel& model = *task.model;
  if (!model.split()) return true;
  const size_t offer = model.places().offer;
  task.node = nodes_->Acquire(offer, std::nullopt);
  // Waiting helps only where a node serves the model. Dispatch() finds out why
  // there is none, and what may be done instead.
  return task.node.has_value() || model.can_run_whole() ||
         !nodes_->Usable(offer);
}

void Engine::Leave(Task* task, bool answered) {
  if (task->started) {
    if (task->began != absl::InfinitePast()) {
      absl::Duration& part =
          task->response.has_value() ? task->parts.finish : task->parts.start;
      part += options_.clock->Now() - task->began;
    }
    // Before the task: room for the next request.
    task->node.reset();
    workers_.End(*task, task->parts, answered);
  }
  task->Clear();
  tasks_.Give(std::unique_ptr<Task>(task));
  // Last: who drains may end the engine as soon as nothing is in flight.
  absl::MutexLock lock(&mu_);
  --in_flight_;
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

// --------------------------------------------------------------------- stages

void Engine::Start(Task* task) {
  task->started = true;
  task->began = options_.clock->Now();
  task->times.queue = task->began - task->arrived;
  // Pieces of a request read what their whole reads.
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
  // What is leased below goes back to it after the task has ended.
  const std::shared_ptr<const ServedModel> pinned = task->model;
  const ServedModel& model = *pinned;
  const CompiledPart& part = model.whole();
  const absl::Time begin = options_.clock->Now();
  std::optional<runtime::ContextPool::Lease> context;  // holds the outputs
  task->run_stats = runtime::RunStats();
  const runtime::aten::ScopedLoopCheck check(
      [this, &task = *task] { return CheckAlive(task, kInLoop); });
  const absl::Status status = base::WithinMemory([&] {
    model.WholeInputs(task->padded.inputs(), task->inputs);
    context.emplace(part.Acquire());
    (*context)->set_tables_at(task->tables_at());
    return part.program().Run(task->inputs, {}, **context, task->outputs,
                              &task->run_stats);
  });
  if (!status.ok()) return Fail(task, status);
  task->times.compute_infer = options_.clock->Now() - begin;
  Succeed(task);
}

void Engine::Dispatch(Task* task) {
  const size_t offer = task->model->places().offer;
  while (task->attempts < kMaxAttempts) {
    const absl::Status alive = CheckAlive(*task, "before the GPU node");
    if (!alive.ok()) return Fail(task, alive);
    if (task->only_in_time) {
      task->node = nodes_->AcquireWithin(
          offer, *task->avoid, task->request.deadline - options_.clock->Now());
    } else if (!task->node.has_value()) {  // else reserved before the start
      task->node = nodes_->Acquire(
          offer, task->avoid, absl::IsResourceExhausted(task->last_failure));
    }
    if (!task->node.has_value()) {
      // What the node that has just refused it said is the reason.
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
    if (absl::IsOutOfRange(status)) return SendInPieces(task, status);
    task->node.reset();
    if (!IsRetryable(status)) return Fail(task, status);
    task->last_failure = status;
    task->avoid = node;
  }
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
  task->sent = options_.clock->Now();
  task->times.compute_input = task->sent - begin;
  task->parts.start += task->sent - task->began;
  task->began = absl::InfinitePast();
  transport::Client& client = task->node->client();
  // Whether a request is slow is known when its answer is here.
  const tracing::RequestContext& trace = task->request.trace;
  if (trace.on && (trace.sampled || options_.tracer->MayKeepLater())) {
    message.AskForTimes();
  }
  client.Send(
      std::move(message), task->request.deadline, task->request.cancel,
      [this, task](absl::StatusOr<transport::IncomingMessage> response) {
        OnResponse(task, std::move(response));
      });
  return absl::OkStatus();
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

absl::Status Engine::RunPre(Task& task, transport::OutgoingMessage& message) {
  const ServedModel& model = *task.model;
  const runtime::Program& program = model.pre().program();
  const runtime::wire::Codec& codec = model.up_codec();
  const size_t num_up = model.num_up();

  model.PreInputs(task.padded.inputs(), task.inputs);
  if (!task.pre_context.has_value()) {
    task.pre_context.emplace(model.pre().Acquire());
  }
  (*task.pre_context)->set_tables_at(task.tables_at());
  REFRACT_RETURN_IF_ERROR(
      program.OutputSpecs(task.inputs, **task.pre_context, task.specs));
  task.up_specs.clear();
  for (size_t i = 0; i < num_up; ++i) {
    if (task.specs[i].has_value()) task.up_specs.push_back(*task.specs[i]);
  }
  const bool sizes_known =
      codec.sizes_known() && task.up_specs.size() == num_up;
  task.destinations.assign(task.specs.size(), nullptr);
  if (sizes_known) {
    task.message_specs =
        codec.MessageSpecs(task.up_specs, std::move(task.message_specs));
    REFRACT_ASSIGN_OR_RETURN(message, Allocate(task, task.message_specs));
    for (size_t i = 0; i < num_up; ++i) {
      const runtime::wire::Codec::Value& value = codec.values()[i];
      if (value.form.is_plain()) {
        task.destinations[i] = message.data(value.tensor);
      }
    }
  }
  const runtime::aten::ScopedLoopCheck check(
      [this, &task] { return CheckAlive(task, kInLoop); });
  REFRACT_RETURN_IF_ERROR(program.Run(task.inputs, task.destinations,
                                      **task.pre_context, task.pre_outputs,
                                      &task.run_stats));
  if (!sizes_known || !codec.plain()) {
    runtime::wire::EncoderPool::Lease encoder = model.encoders().Acquire();
    REFRACT_ASSIGN_OR_RETURN(
        const absl::Span<const base::TensorSpec> tensors,
        encoder->Prepare(
            absl::MakeConstSpan(task.pre_outputs).subspan(0, num_up)));
    // Sizes that depend on data are known only after the run; values that are
    // sent as they are cost a copy then.
    if (!sizes_known) {
      REFRACT_ASSIGN_OR_RETURN(message, Allocate(task, tensors));
    }
    encoder->WriteTo([&](size_t tensor) { return message.data(tensor); });
  }
  KeepFromMessage(num_up, task);
  return absl::OkStatus();
}

// A value that crosses and is also read by CN-post may have been written once,
// into the message. That memory is the transport's as soon as it is sent, so
// such values are copied out of it before.
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
  const auto room_for = [](const base::TensorView& value) {
    return (value.bytes + base::kTensorAlignBytes - 1) /
           base::kTensorAlignBytes * base::kTensorAlignBytes;
  };
  size_t bytes = 0;
  for (const base::TensorView& value : kept) {
    if (in_message(value)) bytes += room_for(value);
  }
  if (bytes > task.kept.size()) {
    task.kept = base::AlignedBuffer(std::bit_ceil(bytes));
  }
  std::byte* to = task.kept.data();
  for (base::TensorView& value : kept) {
    if (!in_message(value)) continue;
    std::memcpy(to, value.data, value.bytes);
    value.data = to;
    to += room_for(value);
  }
}

void Engine::OnResponse(Task* task,
                        absl::StatusOr<transport::IncomingMessage> response) {
  task->times.compute_infer = options_.clock->Now() - task->sent;
  task->parts.away = task->times.compute_infer;
  const size_t node = task->node->node();
  const std::string address = response.ok() ? "" : task->node->address();
  const absl::Time now = options_.clock->Now();
  if (log_.IsSlow(now - task->arrived) || task->request.trace.on) {
    task->gpu_node = task->node->address();
  }
  task->node->Finish(response.status(), task->times.compute_infer,
                     /*in_time=*/now < task->request.deadline);
  task->node.reset();
  if (response.ok()) {
    task->response = *std::move(response);
    workers_.Continue([this, task] { RunPost(task); });
    return;
  }
  const absl::Status status =
      base::Annotate(response.status(), absl::StrCat("GPU node ", address));
  if (absl::IsOutOfRange(status)) {  // the answer would be too long
    task->message_bytes = 0;
    workers_.Continue([this, task, status] {
      task->began = options_.clock->Now();
      SendInPieces(task, status);
    });
    return;
  }
  if (aborting_.load(std::memory_order_relaxed)) return Fail(task, Stopping());
  // Before its time: predicted by that node, from its own times.
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
  // A refusal costs the GPU nodes nothing: no work is repeated.
  if (!absl::IsUnavailable(failure)) return absl::OkStatus();
  if (transport::PeerEndedWithRequest(failure)) {
    const base::Digest content = Quarantine::Fingerprint(task.client_request());
    const absl::Time now = options_.clock->Now();
    quarantine_.OnLoss(content, now);
    if (quarantine_.Holds(content, now)) return InQuarantine();
  }
  if (task.attempts < kMaxAttempts && !retry_budget_.Take()) {
    return absl::UnavailableError(
        "not sent again, as more than a tenth of the requests were");
  }
  return absl::OkStatus();
}

void Engine::RunPost(Task* task) {
  // What is leased below goes back to it after the task has ended.
  const std::shared_ptr<const ServedModel> pinned = task->model;
  const ServedModel& model = *pinned;
  const CompiledPart& part = model.post();
  const absl::Time begin = options_.clock->Now();
  task->began = begin;
  // What the outputs may be views of.
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

// -------------------------------------------------------------------- answers

// A split model, as a whole, for want of a GPU node.
bool Engine::RanLocally(const Task& task) {
  return task.model->split() && !task.response.has_value() &&
         !task.gathered.has_value();
}

void Engine::Succeed(Task* task) {
  const ServedModel& model = *task->model;
  if (!task->gathered.has_value()) {  // whose pieces were padded themselves
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
  response.delta_sequence = task->tables.sequence();
  response.retries = std::max(0, task->attempts - 1);
  response.ran_locally = RanLocally(*task);
  response.replaced_ids = task->run_stats.replaced_ids;
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
  RecordStages(*task, computed);
  LogEnd(*task, absl::OkStatus());
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
  // LibTorch reads the tables as imported, and has no id policy.
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
    // The request ends here: its tensors are moved, not copied.
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
  statistics.RecordAttempts(task.attempts);
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
  statistics.RecordStage(Stage::kResume,
                         task.began - task.sent - task.times.compute_infer);
  statistics.RecordStage(Stage::kPost, computed - task.began);
}

void Engine::Fail(Task* task, const absl::Status& status) {
  // `status` may be the task's own.
  const absl::Status reason = status;
  if (task->whole != nullptr) return EndPiece(task, reason);
  const ServedModel& model = *task->model;
  model.statistics().RecordFailure(options_.clock->Now() - task->arrived,
                                   reason, absl::Now());
  model.statistics().RecordAttempts(task->attempts);
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

// ----------------------------------------------------------- readiness, stop

absl::Status Engine::ModelReady(const ServedModel& model) const {
  {
    absl::MutexLock lock(&mu_);
    if (leaving_) return Stopping();
  }
  if (model.can_run_whole()) return absl::OkStatus();
  return nodes_->WhyUnusable(model.places().offer);
}

absl::Status Engine::FailedCheck(const ServedModel& model) const {
  if (!model.split() || model.can_run_whole()) return absl::OkStatus();
  return nodes_->FailedCheck(model.places().offer);
}

bool Engine::Ready() const {
  {
    absl::MutexLock lock(&mu_);
    if (leaving_) return false;
  }
  return NodeReady(
      options_.readiness, *catalog(),
      [this](const ServedModel& model) { return ModelReady(model).ok(); });
}

void Engine::WatchReadiness(std::function<void()> listener) {
  absl::MutexLock lock(&mu_);
  readiness_listener_ =
      std::make_shared<const std::function<void()>>(std::move(listener));
}

void Engine::NotifyReadiness() {
  ChooseDefaults();
  if (has_nodes_.load(std::memory_order_acquire)) checks_->Wake();
  std::shared_ptr<const std::function<void()>> listener;
  {
    absl::MutexLock lock(&mu_);
    listener = readiness_listener_;
  }
  if (listener != nullptr) (*listener)();
  // Jobs may wait for a node that is lost, or have a new node to go to.
  workers_.Wake();
}

void Engine::AnnounceStop() {
  {
    absl::MutexLock lock(&mu_);
    if (leaving_) return;
    leaving_ = true;
  }
  NotifyReadiness();
}

void Engine::StopAdmitting() {
  {
    absl::MutexLock lock(&mu_);
    admitting_ = false;
  }
  AnnounceStop();
}

size_t Engine::in_flight() const {
  absl::MutexLock lock(&mu_);
  return in_flight_;
}

bool Engine::Drain(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  return options_.clock->AwaitWithDeadline(mu_,
                                           absl::Condition(this, &Engine::Idle),
                                           options_.clock->Now() + timeout);
}

void Engine::Stop() {
  StopAdmitting();
  aborting_.store(true, std::memory_order_relaxed);
  // First the workers: after that nobody is about to use a connection. Then
  // the connections, which fails what was at a GPU node on their threads.
  workers_.Stop();
  if (checks_ != nullptr) checks_->StopSending();
  if (nodes_ != nullptr) nodes_->Close();
}

}  // namespace refract::cpu_node
