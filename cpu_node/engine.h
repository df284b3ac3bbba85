#ifndef REFRACT_CPU_NODE_ENGINE_H_
#define REFRACT_CPU_NODE_ENGINE_H_

// The path of a request through a CPU node: admission, CN-pre, the GPU node,
// CN-post, answer. Front ends decode requests and encode answers.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/tensor.h"
#include "cpu_node/catalog.h"
#include "cpu_node/dispatch/hedging.h"
#include "cpu_node/dispatch/node_checks.h"
#include "cpu_node/dispatch/node_pool.h"
#include "cpu_node/dispatch/request_log.h"
#include "cpu_node/dispatch/retries.h"
#include "cpu_node/dispatch/worker_pool.h"
#include "cpu_node/readiness.h"
#include "cpu_node/request.h"
#include "cpu_node/recording/recorder.h"
#include "cpu_node/shadow/shadow.h"
#include "cpu_node/shards/shard_group.h"
#include "tracing/tracer.h"
#include "transport/memory/free_list.h"

namespace refract::cpu_node {

struct EngineOptions {
  // Threads that run CN-pre and CN-post. ≥ 1.
  int workers = 1;
  // Requests that may wait for a worker or for room at a GPU node; further
  // requests are refused. ≥ 1.
  size_t max_queue = 1024;
  // Requests that may be admitted and unanswered; further requests are refused.
  // ≥ 1. Bounds the memory that requests hold while they are at a GPU node.
  size_t max_in_flight = 4096;
  // Deadline after arrival for requests without a deadline; infinite: none.
  absl::Duration default_timeout = absl::InfiniteDuration();
  // A request that takes longer is logged with its stages; infinite: never.
  absl::Duration slow_after = absl::InfiniteDuration();
  base::Clock* clock = &base::Clock::Real();
  // Receives traces of requests; null: no traces. Outlives the engine.
  tracing::Tracer* tracer = nullptr;
  // Scores a sample of the answered requests again; null: no sample. Outlives
  // the engine.
  Shadow* shadow = nullptr;
  // Writes a sample of the valid requests into a file; null: none. Outlives the
  // engine.
  Recorder* recorder = nullptr;
  // Requests that are sent to a second GPU node because the first is slow.
  HedgeOptions hedge;
  ReadinessRule readiness;
  // Whether clients may load and unload models; for the server's metadata.
  bool loads_by_request = false;
  // Whether clients may change settings of the tracer.
  bool trace_settings_by_request = false;
  // The shard group of this node; no addresses: there is none. The engine fills
  // in `clock` and `on_change`.
  ShardGroupOptions shards;
  // GPU nodes. The engine fills in `offers`, `clock` and `on_change`.
  NodePoolOptions nodes;
};

// Thread-safe.
class Engine {
 public:
  // Starts workers and connections. InvalidArgument: options out of range or a
  // bad address.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Catalog catalog,
                                                        EngineOptions options);
  // Calls Stop().
  ~Engine();

  // Answers with the model's outputs, or
  //   NotFound           unknown model or version
  //   InvalidArgument    inputs or outputs do not fit the model, or the ids in
  //                      them do not fit its tables
  //   DeadlineExceeded   the deadline passed or would pass, here or at the GPU
  //                      node
  //   ResourceExhausted  too many requests wait, here or at the GPU node, for
  //                      this request to be answered in time
  //   Unavailable        no GPU node, or it was lost (after one retry
  //                      elsewhere; execution has no side effects), or stopping
  //   Cancelled          `request.cancel` said so
  //   Internal           anything that is our fault
  // Refusals may run `done` before this returns.
  void Infer(InferRequest request, InferCallback done);

  // The refusal that every request of the model would get now, so that front
  // ends need not decode it. OK: Infer() decides, also for unknown models.
  absl::Status Foresee(absl::string_view model, absl::string_view version,
                       absl::Time deadline);

  // Counts and logs a request as failed that a front end did not decode.
  // Returns the error to answer: NotFound or Unavailable when already the model
  // is wrong, else `status`. `model`: empty if it was not read. `received`: as
  // in InferRequest.
  absl::Status Refuse(absl::string_view model, absl::string_view version,
                      const absl::Status& status,
                      const tracing::RequestContext& trace = {},
                      absl::Time received = absl::InfinitePast());

  // Null: requests are not traced.
  tracing::Tracer* tracer() const { return options_.tracer; }
  // Whether front ends must look for a traceparent and call Tracer::Begin().
  bool traces() const {
    return options_.tracer != nullptr && options_.tracer->on();
  }

  // The catalog as it is now. Never null.
  std::shared_ptr<const Catalog> catalog() const;

  // Model control; one caller at a time (control/model_control.h).
  //
  // Makes `model` known to the queue and offers it to the GPU nodes from now
  // on; ModelReady() says when they have it. Call before Publish(). Errors: as
  // NodePool::AddOffer().
  absl::Status Adopt(const std::shared_ptr<ServedModel>& model);
  // Makes `entries`, whose models were adopted, the catalog of all later
  // requests, in one step. Requests under way end on the versions that they
  // began with.
  void Publish(std::vector<Catalog::Entry> entries);
  // For a model that no catalog contains any more: waits until no request uses
  // it, then undoes Adopt() and destroys the model.
  void Retire(std::shared_ptr<ServedModel> model);
  bool loads_by_request() const { return options_.loads_by_request; }
  bool trace_settings_by_request() const {
    return options_.trace_settings_by_request;
  }
  base::Clock& clock() const { return *options_.clock; }

  // Whether a request of `model` would find all it needs: a GPU node that
  // serves the model, unless it needs no GPU node or may run here as a whole.
  // Unavailable gives the reason.
  absl::Status ModelReady(const ServedModel& model) const;
  // OK, or the reason why no GPU node will serve `model` as it is: its answers
  // differ from the recorded answers (NodePool::FailedCheck).
  absl::Status FailedCheck(const ServedModel& model) const;
  // Whether this node is ready by EngineOptions::readiness.
  bool Ready() const;

  // Calls `listener` after each later change of readiness, one call at a time,
  // and never after Stop(). At most one call per engine; read the state after
  // this call, not before.
  void WatchReadiness(std::function<void()> listener);

  const NodePool& nodes() const { return *nodes_; }
  NodePool& nodes() { return *nodes_; }
  // Null: this node is in no shard group.
  const ShardGroup* shards() const { return shards_.get(); }

  // Requests admitted and not yet answered.
  size_t in_flight() const;
  // Of these, requests of a model of the catalog that wait for a worker.
  size_t waiting(const ServedModel& model) const {
    return workers_.Waiting(model.places().queue);
  }
  // Requests so far for a model or version that is not served.
  uint64_t unknown_models() const {
    return unknown_models_.load(std::memory_order_relaxed);
  }

  // Reports every model as not ready from now on, but still serves requests, so
  // that load balancers notice before requests fail.
  void AnnounceStop();
  // AnnounceStop(), then refuses new requests.
  void StopAdmitting();
  // Waits until all admitted requests are answered, but at most `timeout`;
  // returns whether all were answered.
  bool Drain(absl::Duration timeout);
  // StopAdmitting(), then fails the requests in flight with Unavailable and
  // closes the connections. May be called again. Not from a callback.
  void Stop();

 private:
  // A request under way. One stage at a time owns it and hands it to the next
  // stage: a worker, the transport's callback, a worker again.
  struct Task;
  struct Race;

  Engine(Catalog catalog, EngineOptions options);
  absl::Status CreateShardGroup();
  absl::Status CreateNodePool();
  QueuedModel Queued(const ServedModel& model) const;
  // Whether the shards and a GPU node that requests of `model` need are there.
  bool Usable(const ServedModel& model) const;
  // Chooses ready versions for requests that name no version.
  void ChooseDefaults();

  absl::Status Admit(const std::shared_ptr<const ServedModel>& pinned,
                     int64_t newest, absl::Time arrived, InferRequest& request,
                     InferCallback& done);
  StartQueue::Options QueueOptions();
  bool Reserve(Task& task);
  // Stages, in order. Each ends in the next stage, in Succeed() or in Fail().
  void Start(Task* task);
  void RunWhole(Task* task);
  void Dispatch(Task* task);
  absl::Status RunPreAndSend(Task* task);
  absl::StatusOr<transport::OutgoingMessage> Allocate(
      Task& task, absl::Span<const base::TensorSpec> tensors);
  absl::Status RunPre(Task& task, transport::OutgoingMessage& message);
  // The run of CN-pre with `task.inputs` in `task.pre_context`. `indexes`: of
  // the values whose distinct rows alone are computed (ServedModel::unique()).
  absl::Status ComputePre(
      Task& task, absl::Span<const runtime::wire::UniqueRows* const> indexes,
      transport::OutgoingMessage& message);
  static void KeepFromMessage(size_t num_up, Task& task);
  // The other shards for a run of the task's model; nullopt: none are needed.
  std::optional<ShardGroup::Run> ShardsFor(const Task& task) const;
  void OnResponse(Task* task,
                  absl::StatusOr<transport::IncomingMessage> response);
  void RunPost(Task* task);
  // Sets the fields of a message that only the GPU node reads.
  void Address(const Task& task, transport::OutgoingMessage& message) const;

  // A second attempt at another GPU node while the first is slow
  // (engine/hedge.cc). HedgeAfter(): infinite if the request is sent once.
  absl::Duration HedgeAfter(const Task& task) const;
  void SendInRace(Task* task, transport::OutgoingMessage message,
                  absl::Duration hedge_after);
  void OnHedgeDue(const std::shared_ptr<Race>& race);
  void Hedge(const std::shared_ptr<Race>& race);
  absl::StatusOr<HedgeOutcome> SendHedge(const std::shared_ptr<Race>& race,
                                         Task& task, size_t avoid);
  void OnAttemptEnd(const std::shared_ptr<Race>& race, size_t attempt,
                    absl::StatusOr<transport::IncomingMessage> response);
  void LearnRoundTrips();

  // A request whose message is too long, in pieces (engine/pieces.cc).
  void SendInPieces(Task* task, const absl::Status& too_long);
  void StartPiece(Task* whole);
  static absl::Status KeepPiece(const Task& piece);
  void EndPiece(Task* piece, const absl::Status& status);

  // Why `task` must not continue: stopping, cancelled or too late. `where`
  // names the point on its way.
  absl::Status CheckAlive(const Task& task, const char* where) const;

  // End the request, and with it the task, with outputs or with an error.
  void Succeed(Task* task);
  void Fail(Task* task, const absl::Status& status);
  // Hands an answered request to options_.shadow if it belongs to the
  // sample.
  void OfferToShadow(Task& task);
  static bool RanLocally(const Task& task);
  // Records the stages of a task whose outputs are there since `computed`.
  static void RecordStages(const Task& task, absl::Time computed);
  // Logs the end of a task with `status`.
  void LogEnd(const Task& task, const absl::Status& status);
  // Traces the end of a task (engine/trace.cc). Its outputs, if any, were there
  // at `computed`.
  void TraceEnd(const Task& task, const absl::Status& status,
                absl::Time computed = absl::InfinitePast());
  // Traces a request that was refused before it became a task.
  void TraceRefusal(const tracing::RequestContext& request, absl::Time start,
                    absl::string_view model, absl::string_view id,
                    const absl::Status& status);
  // OK if a request that failed at a GPU node may be sent once more.
  absl::Status MayRepeat(const Task& task, const absl::Status& failure);
  // `answered`: the request's times serve to predict others.
  void Leave(Task* task, bool answered = false);
  void NotifyReadiness();
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return in_flight_ == 0;
  }

  const EngineOptions options_;
  mutable absl::Mutex catalog_mu_;
  // Each request pins the version that it runs on.
  std::shared_ptr<const Catalog> catalog_ ABSL_GUARDED_BY(catalog_mu_);
  RequestLog log_;
  std::atomic<uint64_t> unknown_models_ = 0;
  // Idle tasks, which keep the memory they have grown.
  transport::FreeList<Task> tasks_;

  // Held while the listener runs, so that Stop() waits for it.
  absl::Mutex listener_mu_;
  std::function<void()> readiness_listener_ ABSL_GUARDED_BY(listener_mu_);

  mutable absl::Mutex mu_;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;  // AnnounceStop was called
  bool admitting_ ABSL_GUARDED_BY(mu_) = true;
  size_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  // Set by Stop(): no further stage begins.
  std::atomic<bool> aborting_ = false;

  RetryBudget retry_budget_;
  Quarantine quarantine_;
  // Null: there is none.
  std::unique_ptr<ShardGroup> shards_;
  std::unique_ptr<NodePool> nodes_;
  std::unique_ptr<NodeChecks> checks_;
  std::atomic<bool> has_nodes_ = false;  // nodes_ is set
  WorkerPool workers_;
  // Null: no request is sent twice because it is slow.
  std::unique_ptr<HedgeTimer> hedge_timer_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_ENGINE_H_
