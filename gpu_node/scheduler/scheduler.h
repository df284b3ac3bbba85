#ifndef REFRACT_GPU_NODE_SCHEDULER_SCHEDULER_H_
#define REFRACT_GPU_NODE_SCHEDULER_SCHEDULER_H_

// Decides which requests a device executes and when. docs/design/gpu_node.md
// explains the design. Each rule is a file of its own that
// knows nothing of devices or locks:
//
//   admission.h             refuse what cannot be executed in time
//   deadline_queue.h        earliest deadline first within a model
//   deficit_round_robin.h   whose turn it is, and how long a turn may be
//   batch_policy.h          what is executed together
//   execution_times.h       predictions, from what was measured
//   resident_set.h          whose weights are in device memory
//
// This class keeps the state, asks the rules, and drives the device.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log/log_limiter.h"
#include "gpu_node/device/device.h"
#include "gpu_node/scheduler/resident_set.h"
#include "metrics/histogram.h"
#include "scheduling/admission.h"
#include "scheduling/batch_policy.h"
#include "scheduling/deadline_queue.h"
#include "scheduling/deficit_round_robin.h"
#include "scheduling/execution_times.h"

namespace refract::gpu_node {

struct SchedulerOptions {
  // Most requests of all models that wait. Once these places are taken, a model
  // still gets its share of them. ≥ 1.
  size_t max_queue = 256;
  // Pause before a lost instance is started again; doubles with each loss until
  // an execution succeeds.
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration last_backoff = absl::Seconds(10);
  // A step of a batch that has taken this long, and kStuckTimes its predicted
  // time, may never end: until it ends, its instance counts as down. > 0.
  absl::Duration stuck_after = absl::Seconds(10);
  // Whether turns are bounded if there are several models (Quantum()).
  bool isolation = true;
  // An executed request whose answer took longer than this is logged; infinite:
  // never.
  absl::Duration slow_after = absl::InfiniteDuration();
};

// A model as the scheduler sees it.
struct ScheduledModel {
  std::string label;  // for messages: "model 'x' version 1"
  // Share of the device's time while other models want it too, relative to
  // their shares. > 0.
  double share = 1;
  // Most batches under way at once; 0: as many as there are instances.
  int max_instances = 0;
  // Most requests that wait; 0: only SchedulerOptions::max_queue.
  size_t max_queue = 0;
  size_t weight_bytes = 0;
  scheduling::BatchingOptions batching;
  // A request with more rows than batching.max_rows is executed in several
  // steps; else it is refused.
  bool splittable = false;
  // Its requests may be executed in steps of any size ≥ least_rows, if the
  // device takes steps, so that turns are short.
  bool stepwise = false;
  int64_t least_rows = 1;
  // Times measured at load.
  scheduling::ExecutionTimes times;
  // The times are still being measured: requests are refused until SetTimes().
  bool measuring = false;
  // Not OK: the reason why nothing can be executed (yet); requests are refused
  // until SetModel().
  absl::Status unavailable;
};

// Sums since the start.
struct ModelStats {
  uint64_t succeeded = 0;
  uint64_t failed = 0;     // executed, but with an error
  uint64_t expired = 0;    // deadline passed in the queue, or would pass
  uint64_t abandoned = 0;  // not executed: cancelled by the client
  uint64_t refused = 0;    // predicted on arrival to be too late
  uint64_t queue_full = 0;
  uint64_t too_large = 0;
  uint64_t unavailable = 0;    // no instance, or lost with one, or stopping
  uint64_t batches = 0;        // executions
  uint64_t steps = 0;          // of these, executions of a part of a request
  uint64_t merged = 0;         // requests that shared an execution
  uint64_t largest_batch = 0;  // requests in one execution
  uint64_t non_finite = 0;     // answers with a NaN or an infinity
  uint64_t loads = 0;          // of the weights
  uint64_t evictions = 0;
  absl::Duration device_time;
  absl::Duration queue_time;  // of executed requests, until their batch began
};

// Histograms over the executions of a model. Thread-safe.
struct ModelHistograms {
  metrics::Histogram queue_time;      // of requests, until their batch began
  metrics::Histogram execution_time;  // of executions
  metrics::Histogram batch_requests{metrics::kSizeBounds};  // per execution
  metrics::Histogram batch_rows{metrics::kSizeBounds};      // per execution
};

// Thread-safe. Answers every request exactly once.
//
// Models are named by numbers: the initial models by 0, 1, …. A number is never
// used for two models. PlaceOf() gives a model's place on the device; places
// are reused.
class Scheduler {
 public:
  // A request that is predicted to be too late is admitted as a probe if
  // nothing of about its size was executed for kProbeInterval and for
  // kProbeRest times its predicted time. So a wrong prediction is corrected, at
  // a cost of at most 1 / kProbeRest of an instance's time.
  static constexpr absl::Duration kProbeInterval = absl::Seconds(1);
  static constexpr int64_t kProbeRest = 20;
  static constexpr int64_t kStuckTimes = 10;

  // `device` and `clock` must outlive the scheduler. Call Start() next.
  Scheduler(const SchedulerOptions& options, std::vector<ScheduledModel> models,
            Device* device, base::Clock& clock);
  // Fails waiting requests with Unavailable, then waits for the device.
  ~Scheduler();

  void Start();

  static constexpr size_t kMaxPlaces = size_t{1} << 16;
  static size_t PlaceOf(size_t model) { return model % kMaxPlaces; }

  // Adds a model and returns its number. ResourceExhausted: kMaxPlaces.
  absl::StatusOr<size_t> AddModel(ScheduledModel model);
  // Replaces the description of a model that was added as unavailable. The
  // device must have the model unless `described.unavailable` gives the reason.
  void SetModel(size_t model, ScheduledModel described);
  // Fails waiting and refuses new requests, and returns the model's sums when
  // the device holds nothing of it any more. Not on a thread of the device.
  ModelStats RemoveModel(size_t model);

  // Sets the times of a model that was added as `measuring`, which is then
  // ready as far as times are concerned.
  void SetTimes(size_t model, const scheduling::ExecutionTimes& times);

  // Whether a request with `rows` rows would be queued now. Counts a refusal.
  // For requests whose payload is still to be pulled: Submit() decides again.
  absl::Status Admit(size_t model, uint8_t priority, int64_t rows,
                     absl::Time deadline);

  // Queues `call`, or fails it:
  //   InvalidArgument    more rows than the largest batch, and not divisible
  //   ResourceExhausted  too many requests wait, or it cannot end in time
  //   DeadlineExceeded   its deadline passed, or would, while it waited
  //   Unavailable        no instance is up, its instance was lost, or closed
  //  Cancelled          its client has cancelled it
  // `merge_key` is copied.
  void Submit(size_t model, std::unique_ptr<transport::ServerCall> call,
              int64_t rows, absl::string_view merge_key);

  // Call when calls of `model` have become abandoned: fails the waiting ones,
  // so that they neither take queue places nor count as work.
  void OnAbandoned(size_t model);
  // Counts a request that was cancelled before it could be submitted.
  void OnWithdrawn(size_t model);

  // Queues no further request.
  void Close();
  // Waits until no request is queued or under way, but at most `timeout`;
  // returns whether that happened.
  bool AwaitIdle(absl::Duration timeout);
  // OK, or why no instance can execute the model now.
  absl::Status ModelReady(size_t model) const;
  // Calls `listener` when ModelReady() of any model may have changed, under no
  // lock, on any thread, also concurrently. A call may still be under way when
  // the listener is replaced. Null: no listener.
  void WatchReadiness(std::function<void()> listener);

  // Time of the next OnTimer(). RunTimers() calls OnTimer() until StopTimers(),
  // on a thread of the caller.
  absl::Time next_timer() const;
  void OnTimer() { Pump(); }
  void RunTimers();
  void StopTimers();

  // Present times, as predictions use them.
  scheduling::ExecutionTimes times(size_t model) const;
  ModelStats stats(size_t model) const;
  // Null: removed.
  std::shared_ptr<const ModelHistograms> histograms(size_t model) const;
  size_t pending() const;  // queued or under way

 private:
  // Data of a queued request besides its position.
  struct Waiting {
    BatchMember member;
    int64_t first_row = 0;  // > 0: the next step of a request
    bool is_probe = false;
  };
  using Queue = scheduling::DeadlineQueue<Waiting>;

  struct Model {
    size_t number = 0;
    bool present = true;  // else the place is free
    ScheduledModel config;
    Queue queue;
    scheduling::ExecutionTimes times;
    scheduling::ExecutionTimes uploads;
    scheduling::ArrivalRate arrivals;
    size_t quota = 1;  // of the node's places
    ModelStats stats;
    // Shared with threads that read them while the model is removed.
    std::shared_ptr<ModelHistograms> histograms =
        std::make_shared<ModelHistograms>();
    int in_works = 0;            // batches
    bool any_abandoned = false;  // perhaps, in the queue
    // Per size of requests: time of the last execution or queued probe.
    std::array<absl::Time, scheduling::kNumBuckets> last_tried;
    absl::Status told;  // ModelReady() when the listener was last called

    // Weights: whether an execution used them since they were loaded, and until
    // when they stay while the model has work.
    bool ran_since_load = false;
    absl::Time stays_until = absl::InfinitePast();
    // Error of the last load, which is repeated automatically: until a load
    // succeeds the model's requests are refused.
    absl::Status load_error;
    int load_failures = 0;  // in a row
    // Time to reload the models that were evicted for the load under way.
    absl::Duration eviction_time;
    // Earliest times of the next load after a failure: in general, and if other
    // models must be evicted for it.
    absl::Time load_again = absl::InfinitePast();
    absl::Time evict_again = absl::InfinitePast();

    // For requests with `rows` rows.
    absl::Time& LastTried(int64_t rows) {
      return last_tried[scheduling::BucketOf(
          std::min(rows, config.batching.max_rows))];
    }
  };
  enum class Step : uint8_t {
    kEmpty,
    kUploading,
    kUploaded,
    kExecuting,
    kDownloading
  };
  struct Slot {
    Step step = Step::kEmpty;
    std::unique_ptr<Batch> batch;
    uint64_t order = 0;  // sequence number of its batch
    absl::Time step_began;
    absl::Duration estimate;  // of the execution
    // Key of the first member: its position if this is a step of it.
    scheduling::QueueKey key;
    bool is_probe = false;
  };
  enum class Health : uint8_t { kStarting, kUp, kFailing, kDown };
  struct Instance {
    Health health = Health::kStarting;
    std::vector<Slot> slots;
    bool stuck = false;  // a step does not end in time
    absl::Status error;  // latest error
    int failures = 0;    // in a row
    absl::Time start_again;

    bool up() const { return health == Health::kUp && !stuck; }
  };
  // Calls to make without the lock, in this order.
  struct Actions {
    struct Answer {
      BatchMember member;
      absl::Status status;
      bool was_queued = true;
    };
    struct Call {
      enum Kind : uint8_t { kStart, kUpload, kExecute, kDownload } kind;
      int instance;
      int slot;
      Batch* batch;
    };
    std::vector<Answer> answers;
    absl::InlinedVector<Call, 4> calls;
    int load = -1;  // model
    std::vector<size_t> evicted;
    // Shared with other threads that may be calling it.
    std::shared_ptr<const std::function<void()>> listener;
    bool empty() const {
      return answers.empty() && calls.empty() && load < 0 &&
             listener == nullptr;
    }
  };

  // ---- scheduler_models.cc: adding and removing models.

  // Null: removed.
  Model* Find(size_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Model& model = models_[PlaceOf(number)];
    return model.present && model.number == number ? &model : nullptr;
  }
  const Model* Find(size_t number) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return const_cast<Scheduler*>(this)->Find(number);
  }
  void Describe(size_t place, ScheduledModel described)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Call after models or shares changed.
  void SetQuotas() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- scheduler.cc: requests come in, queries are answered.

  // nullopt: queue the request; `*probe`: as a probe.
  std::optional<absl::Status> Refuse(Model& model, size_t index,
                                     uint8_t priority, int64_t rows,
                                     absl::Time deadline, absl::Time now,
                                     bool* probe)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fills in the part of the snapshot that predicts the request's end.
  void Predict(const Model& model, size_t index, uint8_t priority,
               scheduling::AdmissionSnapshot& snapshot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Drops requests that wait in vain, so that they free their places.
  void MakePlaces(Model& model, absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Typical execution time of a request of `rows` rows, in steps if needed.
  absl::Duration TimeFor(const Model& model, int64_t rows, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return pending_ == 0; }
  void WakeAt(absl::Time time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- scheduler_plan.cc: which instance executes which requests.

  // Plans and acts until only waiting is left.
  void Pump();
  void Plan(absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the instance a batch, if it can take one and a batch can begin.
  void Assign(int index, absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // As Assign(), from one model.
  bool AssignFrom(size_t model, int index, bool busy, absl::Time now,
                  Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The most rows of the model's next execution.
  int64_t RowsOfTurn(size_t model, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Puts a batch into an empty slot of the instance.
  void Begin(int index, std::unique_ptr<Batch> batch,
             const scheduling::QueueKey& key, bool is_probe, absl::Time now,
             Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Drops requests that have expired or were cancelled, and requests at the
  // front that would end too late.
  void DropDead(Model& model, absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailQueued(Model& model, const absl::Status& why, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AtOwnLimit(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return model.config.max_instances > 0 &&
           model.in_works >= model.config.max_instances;
  }
  // Predicted time at which the instance has executed all its batches.
  absl::Time FreeAt(const Instance& instance, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A batch without members, recycled by its deleter.
  std::unique_ptr<Batch> NewBatch(size_t model)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Recycle(std::unique_ptr<Batch> batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- scheduler_weights.cc: loading and evicting weights.

  void PlanLoad(size_t model, absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether only the lack of room for its weights keeps a model, whose turn it
  // is, from being loaded. Models to be evicted for it then begin no execution:
  // a model that always has batches under way would keep its place for ever.
  bool WaitsForRoom(size_t model, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Per model, whether its weights may be evicted: now, or once no batch of it
  // is under way.
  std::vector<bool> MayGo(bool at_once, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Duration LoadTime(const Model& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnLoaded(size_t model, absl::Time began, const absl::Status& status);

  // ---- scheduler_instances.cc: instances that start, hang and are lost.

  // Starts the instance again after its back-off, or executes its next uploaded
  // batch.
  void PlanInstance(int index, absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Marks the instance as stuck if a step of it does not end.
  void FindStuck(int index, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Lose(int instance, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A lost instance is down once the device has released all its batches.
  static void Settle(Instance& instance);
  // Pause before the next try after `failures` failures in a row.
  absl::Duration BackOff(int failures) const;
  absl::Status ReadyLocked(const Model& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Unready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Why no instance takes requests of the model, though one is up: the model
  // may have as many instances as are stuck on it.
  absl::Status HeldUp(const Model& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- scheduler_events.cc: calls to the device and its answers.

  void Perform(Actions& actions);
  // Call when the device has answered a call and nothing follows from it.
  void EndCall();
  void OnStarted(int instance, const absl::Status& status);
  void OnUploaded(int instance, int slot, const absl::Status& status);
  void OnExecuted(int instance, int slot, const absl::Status& status);
  void OnDownloaded(int instance, int slot, const absl::Status& status);
  // Records a step's end; false if the instance is lost, and with it the batch,
  // which has then been answered.
  bool EndStep(int instance, int slot, const absl::Status& status);
  // Queues the rest of a request after `batch`, an executed step of it, which
  // was in `slot`.
  void QueueNextStep(const Slot& slot, std::unique_ptr<Batch> batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogFailure(const std::string& label, const BatchMember& member);
  void LogIfSlow(const std::string& label, const Batch& batch,
                 const BatchMember& member, absl::Time now);
  bool DeviceIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return in_calls_ == 0;
  }

  const SchedulerOptions options_;
  Device* const device_;
  base::Clock& clock_;
  base::LogLimiter failure_log_;
  base::LogLimiter slow_log_;

  mutable absl::Mutex mu_;
  // By place. A deque: models do not move when it grows.
  std::deque<Model> models_ ABSL_GUARDED_BY(mu_);
  size_t num_models_ ABSL_GUARDED_BY(mu_) = 0;  // present ones
  std::vector<Instance> instances_ ABSL_GUARDED_BY(mu_);
  scheduling::DeficitRoundRobin turns_ ABSL_GUARDED_BY(mu_);
  // Instances that had nothing to do since the last Plan().
  int64_t idle_instances_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time planned_at_ ABSL_GUARDED_BY(mu_);
  ResidentSet residents_ ABSL_GUARDED_BY(mu_);
  double load_bytes_per_s_ ABSL_GUARDED_BY(mu_);
  bool loading_ ABSL_GUARDED_BY(mu_) = false;
  size_t queued_ ABSL_GUARDED_BY(mu_) = 0;
  size_t pending_ ABSL_GUARDED_BY(mu_) = 0;
  int in_calls_ ABSL_GUARDED_BY(mu_) = 0;  // pending `done`s
  uint64_t batches_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const std::function<void()>> listener_ ABSL_GUARDED_BY(mu_);
  absl::Time next_timer_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool stop_timers_ ABSL_GUARDED_BY(mu_) = false;
  // Recycled memory, so that a request of a warm node allocates nothing.
  std::vector<std::unique_ptr<Batch>> spare_batches_ ABSL_GUARDED_BY(mu_);
  struct Scratch {
    std::vector<const Queue::Request*> queued;
    std::vector<scheduling::BatchCandidate> candidates;
    std::vector<scheduling::Competitor> competitors;
    std::vector<absl::Time> free_at;
    scheduling::BatchingOptions batching;
    scheduling::BatchDecision decision;
  } scratch_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_SCHEDULER_SCHEDULER_H_
