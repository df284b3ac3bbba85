#ifndef REFRACT_GPU_NODE_SCHEDULER_SCHEDULER_H_
#define REFRACT_GPU_NODE_SCHEDULER_SCHEDULER_H_

// Which requests a device executes when: admission, order, batches, shares of
// several models, weights in device memory, instances that fail. The rules are
// in the files that are included here; this one keeps the state and asks them.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log_limiter.h"
#include "gpu_node/scheduler/admission.h"
#include "gpu_node/scheduler/batch_policy.h"
#include "gpu_node/device/device.h"
#include "gpu_node/scheduler/execution_times.h"
#include "gpu_node/scheduler/fair_share.h"
#include "gpu_node/scheduler/isolation.h"
#include "gpu_node/scheduler/model_queue.h"
#include "gpu_node/scheduler/resident_set.h"
#include "gpu_node/scheduler/standing.h"

namespace refract::gpu_node {

struct SchedulerOptions {
  // Requests of all models that wait; more are refused, but those of a model
  // that has less than its share of the places. ≥ 1.
  size_t max_queue = 256;
  // Until a lost instance is started again; doubles with each loss until an
  // execution succeeds.
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration last_backoff = absl::Seconds(10);
  // A step of a batch that has taken so long, and kStuckTimes what it was
  // expected to execute, may never end: until it does, its instance is not up.
  // > 0.
  absl::Duration stuck_after = absl::Seconds(10);
  // Whether executions are kept short beside quiet models (isolation.h).
  bool isolation = true;
};

// One model as the scheduler sees it.
struct ScheduledModel {
  std::string label;  // for messages: "model 'x' version 1"
  // Of the device's time while others want it too, relative to theirs. > 0.
  double share = 1;
  // Batches in the works at once; 0: as many as there are instances.
  int max_instances = 0;
  // Requests that wait; 0: no limit but SchedulerOptions::max_queue.
  size_t max_queue = 0;
  size_t weight_bytes = 0;
  BatchingOptions batching;
  // A request with more rows than batching.max_rows is executed in several
  // steps; else it is refused.
  bool splittable = false;
  // Its requests may be executed in steps of any size from least_rows on, for
  // the sake of other models, where the device takes steps.
  bool stepwise = false;
  int64_t least_rows = 1;
  // Times measured at load.
  ExecutionTimes times;
};

// Sums since the start.
struct ModelStats {
  uint64_t succeeded = 0;
  uint64_t failed = 0;     // executed, but with an error
  uint64_t expired = 0;    // deadline passed in the queue, or would have
  uint64_t abandoned = 0;  // not executed: nobody waited any more
  uint64_t refused = 0;    // predicted to be too late, when they came
  uint64_t queue_full = 0;
  uint64_t too_large = 0;
  uint64_t unavailable = 0;    // no instance, or lost with one, or stopping
  uint64_t batches = 0;        // executions
  uint64_t steps = 0;          // of these, of a part of a request
  uint64_t held = 0;           // times that one waited for another model's sake
  uint64_t merged = 0;         // requests that shared an execution
  uint64_t largest_batch = 0;  // requests in one execution
  uint64_t non_finite = 0;     // answers with a NaN or an infinity
  uint64_t loads = 0;          // of the weights
  uint64_t evictions = 0;
  absl::Duration device_time;
  absl::Duration queue_time;  // of those executed, until their batch was formed
};

// Thread-safe. Answers every request exactly once.
//
//  - Per model earliest deadline first; among models those that ask for less
//    than their share (standing.h), then the one furthest behind its share of
//    the device's time. Executions of a model that asks for more are kept
//    short, or wait, for the sake of those that ask for less (isolation.h).
//  - One batch executes per instance. Where the device can, the next one's
//    inputs are uploaded meanwhile, as late as they will still be there in
//    time: until then an urgent request can still go first, and others can
//    join.
//  - A request that is predicted to miss its deadline is refused. If a model
//    has executed nothing for kProbeInterval, one request is let through all
//    the same, so that a wrong prediction is found out. So is one of a size
//    that it has not executed for so long, nor for kProbeRest times as long as
//    it is predicted to take, if that alone is what makes it late.
class Scheduler {
 public:
  static constexpr absl::Duration kProbeInterval = absl::Seconds(1);
  static constexpr int64_t kProbeRest = 20;
  static constexpr int64_t kStuckTimes = 10;

  // `device` and `clock` outlive this. Start() begins.
  Scheduler(const SchedulerOptions& options, std::vector<ScheduledModel> models,
            Device* device, base::Clock& clock);
  // Fails what waits with Unavailable, then waits for what the device holds.
  ~Scheduler();

  void Start();

  // Would a request with so many rows be queued now? Counts a refusal. For
  // requests whose payload is still to be pulled.
  absl::Status Admit(size_t model, int64_t rows, absl::Time deadline);

  // Queues `call`, or fails it:
  //   InvalidArgument    more rows than the largest batch, and not divisible
  //   ResourceExhausted  too many wait, or it cannot be executed in time
  //   DeadlineExceeded   its deadline passed, or would, while it waited
  //   Unavailable        no instance is up, its instance was lost, or closed
  //   Cancelled          its client does not wait any more
  // `merge_key` is copied.
  void Submit(size_t model, std::unique_ptr<transport::ServerCall> call,
              int64_t rows, absl::string_view merge_key);

  // Calls of `model` have become abandoned: those that wait are failed now, so
  // that they neither keep places nor count as work.
  void OnAbandoned(size_t model);
  // Counts a request that was given up before it could be submitted.
  void OnWithdrawn(size_t model);

  // Nothing more is queued.
  void Close();
  // Waits until nothing is queued or in the works, or for `timeout`; whether it
  // is so.
  bool AwaitIdle(absl::Duration timeout);
  // OK, or why no instance can execute the model now.
  absl::Status ModelReady(size_t model) const;
  // `listener` is called after ModelReady() of any model may have changed,
  // under no lock, on any thread, also concurrently. A call may still be under
  // way when it is replaced. Null: nobody is told.
  void WatchReadiness(std::function<void()> listener);

  // Something is to be done at next_timer(): OnTimer() does it. RunTimers()
  // does that until StopTimers(); a thread of the owner's.
  absl::Time next_timer() const;
  void OnTimer() { Pump(); }
  void RunTimers();
  void StopTimers();

  ModelStats stats(size_t model) const;
  size_t pending() const;  // queued or in the works

 private:
  struct Model {
    ScheduledModel config;
    ModelQueue queue;
    ExecutionTimes times;
    ExecutionTimes uploads;
    ArrivalRate arrivals;  // of those that can be merged
    ArrivalRate all_arrivals;
    // Requests that have been executed in part and are in no slot.
    std::vector<std::unique_ptr<Batch>> unfinished;  // oldest first
    size_t guaranteed_places = 1;                    // in the queue
    ModelStats stats;
    int in_works = 0;  // batches
    bool ran_since_load = false;
    absl::Time stays_until = absl::InfinitePast();  // while it has work
    bool held_back = false;      // since it last ran beside no quiet model
    bool any_abandoned = false;  // perhaps, in the queue
    absl::Time last_run = absl::InfinitePast();
    absl::Time last_probe = absl::InfinitePast();
    // The same of requests of about as many rows.
    struct Size {
      absl::Time last_run = absl::InfinitePast();
      absl::Time last_probe = absl::InfinitePast();
    };
    std::array<Size, kNumBuckets> sizes;
    // After a failed load, which is tried again without being asked for: until
    // it succeeds the model's requests are refused.
    absl::Status load_error;
    int load_failures = 0;  // since one succeeded
    // To bring back in what went out for the load that is under way.
    absl::Duration eviction_time;
    // Earliest times for the next try after a failure: at all, and if others
    // must go out for it.
    absl::Time load_again = absl::InfinitePast();
    absl::Time evict_again = absl::InfinitePast();
    absl::Status told;  // ModelReady() when the listener was last called

    bool has_work() const { return !queue.empty() || !unfinished.empty(); }
    // Of an execution of a request of so many rows.
    Size& SizeOf(int64_t rows) {
      return sizes[BucketOf(std::min(rows, config.batching.max_rows))];
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
    uint64_t order = 0;  // in which batches came
    absl::Time step_began;
    absl::Duration estimate;  // of the execution
  };
  enum class Health : uint8_t { kStarting, kUp, kFailing, kDown };
  struct Instance {
    Health health = Health::kStarting;
    std::vector<Slot> slots;
    bool stuck = false;  // a step does not end
    absl::Status error;  // the last one
    int failures = 0;    // since an execution succeeded
    absl::Time start_again;

    bool up() const { return health == Health::kUp && !stuck; }
  };
  // To be done without the lock, in this order.
  struct Actions {
    struct Answer {
      std::unique_ptr<transport::ServerCall> call;
      absl::Status status;
      bool was_queued = true;
    };
    struct Call {
      enum Kind : uint8_t { kStart, kUpload, kExecute, kDownload } kind;
      int instance;
      int slot;
      Batch* batch;
    };
    // Destroyed first: their replies are memory of their calls.
    std::vector<std::unique_ptr<Batch>> dropped;
    std::vector<Answer> answers;
    absl::InlinedVector<Call, 4> calls;
    int load = -1;  // model
    std::vector<size_t> evicted;
    // Shared with other threads that call it now.
    std::shared_ptr<const std::function<void()>> listener;
    bool empty() const {
      return answers.empty() && calls.empty() && load < 0 &&
             listener == nullptr;
    }
  };

  // Decides and acts until there is nothing to do but wait.
  void Pump();
  void Perform(Actions& actions);
  void Plan(absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PlanInstance(int index, absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a step of the instance does not end.
  void FindStuck(int index, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the instance a batch, if it can take one and there is one.
  void Assign(int index, absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `*owed_is_held` is set if the model is owed time and held back; models that
  // come after one then begin nothing that is felt.
  bool AssignFrom(size_t model, int index, bool busy, absl::Time now,
                  bool* owed_is_held, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Puts a batch into an empty slot of the instance.
  void Begin(int index, std::unique_ptr<Batch> batch, absl::Time now,
             Actions& actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whose turn it is before others': all alike without isolation.
  Standing StandingOf(size_t model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return options_.isolation ? standings_.Of(model) : Standing::kOver;
  }
  void UpdateStandings(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AtOwnLimit(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return model.config.max_instances > 0 &&
           model.in_works >= model.config.max_instances;
  }
  // A request was refused for want of room.
  void CountRefused(size_t model, int64_t rows, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Models for whose sake `index` is to hold back: to `quiet`.
  void QuietBeside(size_t index, absl::Time now,
                   std::vector<QuietModel>& quiet) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether an execution is under way, or about to, that those feel, of a model
  // of `index`'s standing or worse.
  bool FeltInWorks(size_t index, absl::Span<const QuietModel> quiet) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // When the instances other than `index` are free.
  absl::InlinedVector<absl::Time, 16> OthersFreeAt(int index,
                                                   absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropDead(Model& model, absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PlanLoad(size_t model, absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether nothing but the room for its weights keeps a model, whose turn it
  // is, from coming in. Models that are to go for it then begin nothing more:
  // one that always has something in the works would keep its place for ever.
  bool WaitsForRoom(size_t model, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Per model, whether its weights may go: now, or once nothing of it is in the
  // works.
  std::vector<bool> MayGo(bool at_once, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A batch without members, and where it goes when they are gone.
  std::unique_ptr<Batch> NewBatch(size_t model)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Recycle(std::unique_ptr<Batch> batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailQueued(Model& model, const absl::Status& why, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // A call of the device has been answered, and nothing comes of it any more.
  void EndCall();
  void OnStarted(int instance, const absl::Status& status);
  void OnUploaded(int instance, int slot, const absl::Status& status);
  void OnExecuted(int instance, int slot, const absl::Status& status);
  void OnDownloaded(int instance, int slot, const absl::Status& status);
  void OnLoaded(size_t model, absl::Time began, const absl::Status& status);
  // Takes a step's end in; false if the instance is lost, and with it the
  // batch, which has then been answered.
  bool EndStep(int instance, int slot, const absl::Status& status);
  void Lose(int instance, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A lost instance is down once the device has let go of all that it held.
  static void Settle(Instance& instance);

  void LogFailure(const std::string& label, const absl::Status& status);
  absl::Status CheckAdmission(Model& model, size_t index, int64_t rows,
                              absl::Time deadline, absl::Time now, bool* probe)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether one that is refused is to be let through, to find out.
  bool MayProbe(Model& model, int64_t rows, const AdmissionSnapshot& snapshot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Where the queue is full, those in it that nobody waits for go.
  void MakePlaces(Model& model, absl::Time now, Actions& actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // In how long to try again what has failed `failures` times in a row.
  absl::Duration BackOff(int failures) const;
  absl::Status ReadyLocked(const Model& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Unready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Why no instance takes requests of the model, though one is up: it may have
  // no more than those that it is stuck on.
  absl::Status HeldUp(const Model& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How long a request of so many rows typically executes, in steps if need be.
  absl::Duration TimeFor(const Model& model, int64_t rows, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Duration LoadTime(const Model& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Time FreeAt(const Instance& instance, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeAt(absl::Time time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return pending_ == 0; }
  bool DeviceIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return in_calls_ == 0;
  }

  const SchedulerOptions options_;
  Device* const device_;
  base::Clock& clock_;
  base::LogLimiter failure_log_;

  mutable absl::Mutex mu_;
  // Models are never added or removed; what they hold is guarded.
  std::vector<Model> models_ ABSL_GUARDED_BY(mu_);
  std::vector<Instance> instances_ ABSL_GUARDED_BY(mu_);
  FairShare shares_ ABSL_GUARDED_BY(mu_);
  Standings standings_ ABSL_GUARDED_BY(mu_);
  absl::Time demands_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  ResidentSet residents_ ABSL_GUARDED_BY(mu_);
  double load_bytes_per_s_ ABSL_GUARDED_BY(mu_);
  bool loading_ ABSL_GUARDED_BY(mu_) = false;
  size_t queued_ ABSL_GUARDED_BY(mu_) = 0;
  size_t unfinished_ ABSL_GUARDED_BY(mu_) = 0;
  size_t pending_ ABSL_GUARDED_BY(mu_) = 0;
  int in_calls_ ABSL_GUARDED_BY(mu_) = 0;  // `done`s that are still to come
  uint64_t batches_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const std::function<void()>> listener_ ABSL_GUARDED_BY(mu_);
  absl::Time next_timer_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool stop_timers_ ABSL_GUARDED_BY(mu_) = false;
  // Memory that stays, so that a request of a warm node allocates nothing.
  std::vector<std::unique_ptr<Batch>> spare_batches_ ABSL_GUARDED_BY(mu_);
  struct Scratch {
    std::vector<Demand> demands;
    std::vector<QuietModel> quiet;
    std::vector<const QueuedRequest*> queued;
    std::vector<BatchCandidate> candidates;
    std::vector<Competitor> competitors;
    BatchingOptions batching;
    BatchDecision decision;
  } scratch_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_SCHEDULER_SCHEDULER_H_
