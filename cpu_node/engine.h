#ifndef REFRACT_CPU_NODE_ENGINE_H_
#define REFRACT_CPU_NODE_ENGINE_H_

// The path of a request through a CPU node: admit, CN-pre, the GPU node,
// CN-post, answer. Knows nothing of how requests come in.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
#include "cpu_node/dispatch/node_checks.h"
#include "cpu_node/dispatch/node_pool.h"
#include "cpu_node/dispatch/request_log.h"
#include "cpu_node/dispatch/retries.h"
#include "cpu_node/dispatch/worker_pool.h"
#include "cpu_node/readiness.h"
#include "cpu_node/request.h"
#include "cpu_node/shadow/shadow.h"
#include "tracing/tracer.h"
#include "transport/memory/free_list.h"

namespace refract::cpu_node {

struct EngineOptions {
  // Threads that run CN-pre and CN-post. ≥ 1.
  int workers = 1;
  // Requests that wait for a worker or for room at a GPU node; more are
  // refused. ≥ 1.
  size_t max_queue = 1024;
  // Requests admitted and not yet answered; more are refused. ≥ 1. Bounds the
  // memory that requests hold while they are at a GPU node.
  size_t max_in_flight = 4096;
  // Deadline of a request that brings none, from its arrival; infinite = none.
  absl::Duration default_timeout = absl::InfiniteDuration();
  // A request that takes longer is logged with its stages; infinite: none is.
  absl::Duration slow_after = absl::InfiniteDuration();
  base::Clock* clock = &base::Clock::Real();
  // Where traces of requests go; null: there are none. Outlives the engine.
  tracing::Tracer* tracer = nullptr;
  // Scores a sample of the answered requests again; null: none. Outlives the
  // engine.
  Shadow* shadow = nullptr;
  ReadinessRule readiness;
  // Whether clients may load and unload models; for the server's metadata.
  bool loads_by_request = false;
  // Whether clients may change settings of the tracer.
  bool trace_settings_by_request = false;
  // GPU nodes. `offers`, `clock` and `on_change` are the engine's to fill in.
  NodePoolOptions nodes;
};

// Thread-safe.
class Engine {
 public:
  // Starts workers and connections. InvalidArgument for options out of range,
  // a bad address included.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Catalog catalog,
                                                        EngineOptions options);
  // Stops.
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

  // The refusal that every request of the model would get now, so that a front
  // end need not decode it. OK: Infer() decides, also for unknown models.
  absl::Status Foresee(absl::string_view model, absl::string_view version,
                       absl::Time deadline);

  // For a request that a front end did not decode: counts and logs it as
  // failed. Returns what to answer: `status`, or NotFound / Unavailable when
  // the model is the first thing wrong with it. `received`: as in InferRequest.
  absl::Status Refuse(absl::string_view model, absl::string_view version,
                      const absl::Status& status,
                      const tracing::RequestContext& trace = {},
                      absl::Time received = absl::InfinitePast());

  // Null: requests are not traced.
  tracing::Tracer* tracer() const { return options_.tracer; }
  // Whether a front end is to look for a traceparent and call Tracer::Begin().
  bool traces() const {
    return options_.tracer != nullptr && options_.tracer->on();
  }

  // The catalog as it is now. Never null.
  std::shared_ptr<const Catalog> catalog() const;

  // Model control; one caller at a time (control/model_control.h).
  //
  // Makes `model` known to the queue and to the GPU nodes, which are asked for
  // it from now on; ModelReady() says when they have it. For Publish(). Errors:
  // as NodePool::AddOffer().
  absl::Status Adopt(const std::shared_ptr<ServedModel>& model);
  // Makes a catalog of `entries`, whose models were adopted, the catalog of all
  // requests that come from now on: in one step. Requests under way end on the
  // versions that they have begun with.
  void Publish(std::vector<Catalog::Entry> entries);
  // For a model that is in no catalog any more: waits until no request uses it,
  // then ends what Adopt() began and destroys it.
  void Retire(std::shared_ptr<ServedModel> model);
  bool loads_by_request() const { return options_.loads_by_request; }
  bool trace_settings_by_request() const {
    return options_.trace_settings_by_request;
  }
  base::Clock& clock() const { return *options_.clock; }

  // Whether a request of `model` would find everything it needs: a GPU node
  // that serves it, unless it needs none or may run here as a whole.
  // Unavailable says why not.
  absl::Status ModelReady(const ServedModel& model) const;
  // OK, or that no GPU node will serve `model` as it is, because its answers
  // are not those that were recorded (NodePool::FailedCheck).
  absl::Status FailedCheck(const ServedModel& model) const;
  // Whether this node counts as ready by EngineOptions::readiness.
  bool Ready() const;

  // `listener` is called after each change of readiness from now on, under no
  // lock, and never after Stop(). At most once per engine; read the state after
  // this call, not before.
  void WatchReadiness(std::function<void()> listener);

  const NodePool& nodes() const { return *nodes_; }
  NodePool& nodes() { return *nodes_; }

  // Requests admitted and not yet answered.
  size_t in_flight() const;
  // Requests so far that named no model or version that is served.
  uint64_t unknown_models() const {
    return unknown_models_.load(std::memory_order_relaxed);
  }

  // Nothing is ready from now on; requests are served as before. For the time
  // in which load balancers notice.
  void AnnounceStop();
  // New requests are refused, too.
  void StopAdmitting();
  // Waits until all admitted requests are answered, or for `timeout`; whether
  // it is so.
  bool Drain(absl::Duration timeout);
  // StopAdmitting(), then fails what is still in flight with Unavailable and
  // closes the connections. May be called again. Not from a callback.
  void Stop();

 private:
  // A request on its way. One stage has it at a time and hands it to the next:
  // a worker, the transport's callback, a worker again.
  struct Task;

  Engine(Catalog catalog, EngineOptions options);
  absl::Status CreateNodePool();
  QueuedModel Queued(const ServedModel& model) const;
  // Requests without a version go to versions that are ready.
  void ChooseDefaults();

  absl::Status Admit(const std::shared_ptr<const ServedModel>& pinned,
                     int64_t newest, absl::Time arrived, InferRequest& request,
                     InferCallback& done);
  StartQueue::Options QueueOptions();
  bool Reserve(Task& task);
  // Stages, in order. Each ends in the next, in Succeed() or in Fail().
  void Start(Task* task);
  void RunWhole(Task* task);
  void Dispatch(Task* task);
  absl::Status RunPreAndSend(Task* task);
  absl::StatusOr<transport::OutgoingMessage> Allocate(
      Task& task, absl::Span<const base::TensorSpec> tensors);
  absl::Status RunPre(Task& task, transport::OutgoingMessage& message);
  static void KeepFromMessage(size_t num_up, Task& task);
  void OnResponse(Task* task,
                  absl::StatusOr<transport::IncomingMessage> response);
  void RunPost(Task* task);

  // A request whose message is too long, in pieces (engine_pieces.cc).
  void SendInPieces(Task* task, const absl::Status& too_long);
  void StartPiece(Task* whole);
  static absl::Status KeepPiece(const Task& piece);
  void EndPiece(Task* piece, const absl::Status& status);

  // Why `task` should not go on: stopping, cancelled or too late; `where` says
  // at what point of its way.
  absl::Status CheckAlive(const Task& task, const char* where) const;

  // End the request with its outputs, or with an error, and the task with it.
  void Succeed(Task* task);
  void Fail(Task* task, const absl::Status& status);
  // Hands the request of a task that has been answered to options_.shadow, if
  // it is one of the sample.
  void OfferToShadow(Task& task);
  static bool RanLocally(const Task& task);
  // Of a task that has its outputs since `computed`.
  static void RecordStages(const Task& task, absl::Time computed);
  // Of a task that ends now with `status`.
  void LogEnd(const Task& task, const absl::Status& status);
  // engine_trace.cc. The same; its outputs were there at `computed`, if it has
  // any.
  void TraceEnd(const Task& task, const absl::Status& status,
                absl::Time computed = absl::InfinitePast());
  // Of a request that did not become a task.
  void TraceRefusal(const tracing::RequestContext& request, absl::Time start,
                    absl::string_view model, absl::string_view id,
                    const absl::Status& status);
  // Whether a request that failed at a GPU node may be sent once more.
  absl::Status MayRepeat(const Task& task, const absl::Status& failure);
  // `answered`: the request's times tell about those of others.
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
  // Those not in use, with the memory that they have grown.
  transport::FreeList<Task> tasks_;

  mutable absl::Mutex mu_;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;  // AnnounceStop was called
  bool admitting_ ABSL_GUARDED_BY(mu_) = true;
  size_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  // Shared with calls under way, so that none runs under the lock.
  std::shared_ptr<const std::function<void()>> readiness_listener_
      ABSL_GUARDED_BY(mu_);
  // Set by Stop(): stages that have not begun do not begin.
  std::atomic<bool> aborting_ = false;

  RetryBudget retry_budget_;
  Quarantine quarantine_;
  std::unique_ptr<NodePool> nodes_;
  std::unique_ptr<NodeChecks> checks_;
  std::atomic<bool> has_nodes_ = false;  // nodes_ is set
  WorkerPool workers_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_ENGINE_H_
