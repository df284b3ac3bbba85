#include "cpu_node/engine.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "cpu_node/engine/task.h"

namespace refract::cpu_node {
namespace {

// Interval at which model control looks whether others have let go.
constexpr absl::Duration kLook = absl::Milliseconds(2);

// The level, counted from 0, of a request that asks for `priority`, by Triton's
// rule: the model's default for 0 and for levels that the model does not have.
uint8_t LevelOf(uint64_t priority, const models::ServingConfig& serving) {
  const bool known = priority >= 1 && priority <= serving.priority_levels;
  return static_cast<uint8_t>((known ? priority : serving.default_priority) -
                              1);
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
  REFRACT_RETURN_IF_ERROR(engine->CreateShardGroup());
  REFRACT_RETURN_IF_ERROR(engine->CreateNodePool());
  if (engine->options_.hedge.on()) {
    engine->hedge_timer_ = std::make_unique<HedgeTimer>(
        engine->options_.clock,
        [&engine = *engine](HedgeTimer::Request race) {
          engine.OnHedgeDue(std::static_pointer_cast<Race>(std::move(race)));
        },
        [&engine = *engine] { engine.LearnRoundTrips(); });
  }
  return engine;
}

absl::Status Engine::CreateShardGroup() {
  if (options_.shards.addresses.empty()) return absl::OkStatus();
  ShardGroupOptions shards = options_.shards;
  shards.clock = options_.clock;
  shards.on_change = [this] { NotifyReadiness(); };
  REFRACT_ASSIGN_OR_RETURN(shards_, ShardGroup::Create(std::move(shards)));
  return absl::OkStatus();
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
    if (entry.model->sharded() != nullptr) {
      REFRACT_ASSIGN_OR_RETURN(places.shards, shards_->Add(entry.model));
    }
    entry.model->set_places(places);
  }
  REFRACT_ASSIGN_OR_RETURN(nodes_, NodePool::Create(std::move(nodes)));
  checks_ = std::make_unique<NodeChecks>(nodes_.get(), shards_.get(),
                                         options_.clock);
  for (const Catalog::Entry& entry : catalog->entries()) {
    if (entry.model == nullptr || !entry.model->split()) continue;
    if (entry.model->checks().empty()) continue;
    checks_->Add(entry.model->places().offer, entry.model);
  }
  has_nodes_.store(true, std::memory_order_release);
  ChooseDefaults();
  return absl::OkStatus();
}

bool Engine::Usable(const ServedModel& model) const {
  if (model.sharded() != nullptr && !model.sharded()->zero_when_lost() &&
      !shards_->WhyLost(model.places().shards).ok()) {
    return false;
  }
  return model.can_run_whole() || nodes_->Usable(model.places().offer);
}

void Engine::ChooseDefaults() {
  // The pool is still being created; CreateNodePool() chooses afterwards.
  if (!has_nodes_.load(std::memory_order_acquire)) return;
  const std::shared_ptr<const Catalog> catalog = this->catalog();
  catalog->ChooseDefaults([this](const ServedModel& model) {
    return Usable(model);
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
  if (model.sharded() != nullptr) {
    const absl::StatusOr<size_t> place = shards_->Add(adopted);
    if (!place.ok()) {
      if (model.split()) nodes_->RemoveOffer(places.offer);
      return place.status();
    }
    places.shards = *place;
  }
  // Another version of the model, if there is one.
  const auto alike = catalog()->Find(model.name(), "");
  places.queue = workers_.AddModel(
      Queued(model),
      alike.ok() ? std::make_optional((*alike)->places().queue) : std::nullopt);
  model.set_places(places);
  // Last, because a check begins at once and uses the places.
  if (checked) checks_->Add(places.offer, adopted);
  return absl::OkStatus();
}

void Engine::Publish(std::vector<Catalog::Entry> entries) {
  auto next = std::make_shared<const Catalog>(std::move(entries));
  // Chosen before the swap: no request finds the new catalog without defaults.
  next->KeepDefaults(*catalog());
  next->ChooseDefaults([this](const ServedModel& model) {
    return Usable(model);
  });
  // A writer that waits holds up all later readers, which are requests. It could
  // wait for DeltaWatch, a reader that gets a processor only in idle time.
  while (!catalog_mu_.TryLock()) absl::SleepFor(kLook);
  // The old catalog is freed by its last reader.
  catalog_.swap(next);
  catalog_mu_.Unlock();
  // Chooses defaults again: a node may have become ready meanwhile.
  NotifyReadiness();
}

void Engine::Retire(std::shared_ptr<ServedModel> model) {
  // Requests that hold the model end by their deadlines; no new request gets
  // it.
  // A check holds the model as a request does, so no further check may begin.
  if (model->split()) checks_->Remove(model->places().offer);
  while (model.use_count() > 1) absl::SleepFor(kLook);
  if (model->sharded() != nullptr) shards_->Remove(model->places().shards);
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
  // Kept for a refusal: Admit() may take the request over.
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
  // Without a name the front end did not get as far as to read it.
  const absl::Status& answer =
      found.ok() || model.empty() ? status : found.status();
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
  // From a pool, with the memory of earlier requests; Leave() gives it back.
  Task* const task = tasks_.Take().release();
  task->arrived = arrived;
  task->model = pinned;
  task->newest = newest;
  task->request = std::move(request);
  if (task->request.deadline == absl::InfiniteFuture()) {
    task->request.deadline = arrived + options_.default_timeout;
  }
  task->priority = LevelOf(task->request.priority,
                           model.model().config.serving);
  absl::Status status = model.interface().Bind(task->request, task->bound);
  // Recorded requests include those that are refused below: they are load.
  if (status.ok() && options_.recorder != nullptr) {
    options_.recorder->Offer(model, task->request, task->bound.batch, arrived);
  }
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
    // in_flight_ counts the request already: from here on a worker may answer
    // it before Admit() returns.
    status = workers_.Admit(*task, model.places().queue, task->bound.batch,
                            task->request.deadline);
    if (status.ok()) {
      retry_budget_.OnAdmitted();
      return status;
    }
    // Refused: the caller answers, and needs the callback and the id back.
    done = std::move(task->done);
    request.id = std::move(task->request.id);  // the caller logs it
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

// Called under the workers' lock: must not wait.
bool Engine::Reserve(Task& task) {
  const ServedModel& model = *task.model;
  if (!model.split()) return true;
  const size_t offer = model.places().offer;
  task.node = nodes_->Acquire(offer, std::nullopt);
  // Waiting helps only if a node serves the model. Otherwise the request
  // starts, and Dispatch() finds the reason and the fallback.
  return task.node.has_value() || model.can_run_whole() ||
         !nodes_->Usable(offer);
}

void Engine::Leave(Task* task, bool answered) {
  // The part that a worker is in the middle of ends here.
  if (task->started && task->began != absl::InfinitePast()) {
    absl::Duration& part =
        task->response.has_value() ? task->parts.finish : task->parts.start;
    part += options_.clock->Now() - task->began;
    task->began = absl::InfinitePast();
  }
  if (const std::shared_ptr<Race> race = task->race; race != nullptr) {
    absl::MutexLock lock(&race->mu);
    if (race->reading) {  // Hedge() calls again
      race->left = answered;
      return;
    }
  }
  if (task->started) {
    // Before the task ends: room for the next request.
    task->node.reset();
    workers_.End(*task, task->parts, answered);
  }
  task->Clear();
  tasks_.Give(std::unique_ptr<Task>(task));
  // Last: the thread in Drain() may destroy the engine once nothing is in
  // flight.
  absl::MutexLock lock(&mu_);
  --in_flight_;
}
// ----------------------------------------------------------- readiness, stop

absl::Status Engine::ModelReady(const ServedModel& model) const {
  {
    absl::MutexLock lock(&mu_);
    if (leaving_) return Stopping();
  }
  if (model.sharded() != nullptr && !model.sharded()->zero_when_lost()) {
    REFRACT_RETURN_IF_ERROR(shards_->WhyLost(model.places().shards));
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
  absl::MutexLock lock(&listener_mu_);
  readiness_listener_ = std::move(listener);
}

void Engine::NotifyReadiness() {
  ChooseDefaults();
  if (has_nodes_.load(std::memory_order_acquire)) checks_->Wake();
  {
    absl::MutexLock lock(&listener_mu_);
    if (readiness_listener_ != nullptr) readiness_listener_();
  }
  // Waiting jobs may have lost their node, or may go to a new node.
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
  if (shards_ != nullptr) shards_->StopAsking();
  if (hedge_timer_ != nullptr) hedge_timer_->Stop();
  // Workers first: afterwards no thread is about to use a connection. Then the
  // connections: closing them fails the requests at GPU nodes.
  workers_.Stop();
  if (checks_ != nullptr) checks_->StopSending();
  if (nodes_ != nullptr) nodes_->Close();
  if (checks_ != nullptr) checks_->Join();
  if (shards_ != nullptr) shards_->Close();
  // ModelControl still runs, and may publish a change.
  absl::MutexLock lock(&listener_mu_);
  readiness_listener_ = nullptr;
}

}  // namespace refract::cpu_node
