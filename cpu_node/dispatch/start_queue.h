#ifndef REFRACT_CPU_NODE_DISPATCH_START_QUEUE_H_
#define REFRACT_CPU_NODE_DISPATCH_START_QUEUE_H_

// Chooses which request a CPU node starts next, and which requests it refuses.
//
// Requests of a model wait by their priority levels, and within a level in the
// order of their deadlines. In a full queue a request displaces a request of a
// lower level of its model. Models take turns
// by their shares of the workers' time (deficit round robin). A request is
// refused on arrival if it would end too late behind the waiting requests, and
// dropped at its turn if the remaining time is too short. Both checks use the
// times of the model's latest requests: the CPU part before the GPU node
// (start), the GPU node with transport and its queue (away), and the CPU part
// after it (finish). Without this, an overloaded node spends its time on
// requests that miss their deadlines (docs/design/scheduling.md).
//
// A state machine without threads and without a clock: WorkerPool drives it,
// tests drive it in virtual time.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "scheduling/admission.h"
#include "scheduling/deadline_queue.h"
#include "scheduling/deficit_round_robin.h"
#include "scheduling/execution_times.h"

namespace refract::cpu_node {

// A model as the queue sees it.
struct QueuedModel {
  std::string label;  // for messages: "model 'x' version 1"
  double share = 1;   // of the workers' time, relative to the other models; > 0
};

// Times of the parts of one request. Zero: the request had no such part.
struct PartTimes {
  absl::Duration start;   // on a worker, until the GPU node has the request
  absl::Duration away;    // at the GPU node, transport included
  absl::Duration finish;  // on a worker, after the GPU node
};

// Not thread-safe.
class StartQueue {
 public:
  // A request from admission to its end. The queue owns nothing: a job lives
  // until End() or until Next() has refused it.
  class Job {
   public:
    virtual ~Job() = default;
    // Takes what the request needs besides a worker: room at a GPU node. False:
    // no room now, try again after a change. Called once per turn.
    virtual bool Reserve() = 0;
    // Whether the client has given up the request.
    virtual bool abandoned() const = 0;

    // Level, 0 goes first; < scheduling::kPriorityLevels. Set before Admit().
    uint8_t priority = 0;

   private:
    friend class StartQueue;
    size_t model_ = 0;
    int64_t rows_ = 1;
    bool probe_ = false;
    // Set when the job was started:
    absl::Duration start_, finish_;  // predicted
    int64_t rows_in_flight_ = 0;     // this request included
  };

  struct Options {
    int workers = 1;          // threads, ≥ 1
    size_t max_queue = 1024;  // waiting jobs, ≥ 1
    std::vector<QueuedModel> models;
  };
  explicit StartQueue(Options options);

  // Adds a model and returns its number, which may be that of a removed model.
  // `alike`: a model whose times serve as first predictions for the new one.
  size_t AddModel(QueuedModel model, std::optional<size_t> alike);
  // The model must have no request waiting or in flight.
  void RemoveModel(size_t model);

  // The result of Admit() for a job of `rows` rows. With 1 row and priority 0 a
  // lower bound for a request that is not decoded yet.
  absl::Status Foresee(size_t model, uint8_t priority, int64_t rows,
                       absl::Time deadline, absl::Time now,
                       const std::vector<absl::Time>& free_at);

  // Queues the job, or says why not:
  //   ResourceExhausted  `max_queue` jobs wait and the model has its share of
  //                      them, or the job would end after its deadline
  //   DeadlineExceeded   an idle node would be too slow for the deadline
  // `free_at`: predicted end of each worker's present work.
  absl::Status Admit(Job& job, size_t model, int64_t rows, absl::Time deadline,
                     absl::Time now, const std::vector<absl::Time>& free_at);

  // A decision for the next job: a free worker starts or refuses it.
  struct Turn {
    Job* job = nullptr;
    absl::Status refused;  // OK: start the job; else answer it with this
    absl::Time queued_at;
    absl::Duration time;  // predicted, of its start
  };
  // Nullopt: no job can be started now. The returned job counts as in flight
  // until End(); a refused job is forgotten.
  std::optional<Turn> Next(absl::Time now);
  // Removes any waiting job, for refusal; null: no job waits.
  Job* TakeAny();

  // Next time at which Next() has a job to refuse if no event comes before.
  absl::Time NextExpiry() const;

  // Ends a job. `times`: of the parts that it went through. `typical`: the
  // request was answered, so its times serve to predict others.
  void End(const Job& job, const PartTimes& times, bool typical,
           absl::Time now);

  size_t waiting() const { return waiting_; }
  size_t waiting(size_t model) const { return models_[model].queue.size(); }

 private:
  using Queue = scheduling::DeadlineQueue<Job*>;
  struct Model {
    QueuedModel config;
    bool present = true;  // else the number is free
    size_t places = 1;  // of max_queue, kept for it while others fill the rest
    Queue queue;
    size_t in_flight = 0;  // started jobs that have not ended
    int64_t rows_in_flight = 0;
    absl::Time last_started = absl::InfinitePast();
    // Predicted times of the parts: start and finish by the rows of a request,
    // away by all rows in flight with it. Busy GPU nodes need longer for the
    // same request, by the work that they have before it.
    scheduling::ExecutionTimes start, away, finish;
  };

  void SetPlaces();
  bool Probes(const Model& model, absl::Time now) const;
  absl::Duration WorkerTime(const Model& model, int64_t rows,
                            absl::Time now) const;
  // Predicted time from start to answer while `in_flight` rows of other
  // requests are at GPU nodes.
  absl::Duration OwnTime(const Model& model, int64_t rows, int64_t in_flight,
                         absl::Time now) const;
  absl::Duration WorkOfOthers(size_t index, absl::Duration own);
  std::optional<Turn> TurnOf(size_t index, absl::Time now);
  // Takes the last job of the model, to be refused at the next turn.
  void Displace(Model& model);

  const Options options_;
  std::vector<Model> models_;
  scheduling::DeficitRoundRobin turns_;
  size_t waiting_ = 0;           // in the models' queues
  std::vector<Turn> displaced_;  // their jobs wait to be refused
  // Predicted finish time of all jobs in flight together.
  absl::Duration to_finish_;
  // Scratch of Admit() and Next().
  std::vector<scheduling::Competitor> competitors_;
  std::vector<size_t> order_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISPATCH_START_QUEUE_H_
