#ifndef REFRACT_CPU_NODE_DISPATCH_WORKER_POOL_H_
#define REFRACT_CPU_NODE_DISPATCH_WORKER_POOL_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cpu_node/dispatch/start_queue.h"
#include "transport/loop/ring_queue.h"

namespace refract::cpu_node {

// The status of requests that meet a stopping node.
absl::Status Stopping();

// Threads that run the CPU parts of requests, one part at a time each.
//
// Two lanes: a request that starts may be refused and waits for its turn
// (start_queue.h); a request that continues is never refused. Continuing goes
// first: it frees memory, and a client already waits for it. Allocates only to
// hold more requests than ever before. Thread-safe.
class WorkerPool {
 public:
  using Task = std::function<void()>;

  class Job : public StartQueue::Job {
   public:
    // A worker calls exactly one of Start() and Refuse() per admitted job.
    virtual void Start() = 0;
    virtual void Refuse(const absl::Status& why) = 0;
  };

  // `clock` must outlive the pool.
  WorkerPool(StartQueue::Options options, base::Clock* clock);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // As in StartQueue.
  size_t AddModel(QueuedModel model, std::optional<size_t> alike);
  void RemoveModel(size_t model);

  // As StartQueue::Admit(), or Unavailable after Stop(). After OK the job may
  // have run before this returns.
  absl::Status Admit(Job& job, size_t model, int64_t rows, absl::Time deadline);

  // The status that Admit() would give a job of one row and of priority 0
  // (StartQueue::Foresee).
  absl::Status Foresee(size_t model, absl::Time deadline);

  // Admitted jobs of a model that have not started.
  size_t Waiting(size_t model) const;

  // Ends a started job (StartQueue::End).
  void End(const Job& job, const PartTimes& times, bool typical);

  // Queues the next part of a started request; a request has at most one part
  // waiting. After Stop() the task runs on the calling thread.
  void Continue(Task task);

  // Call when jobs that wait for room may find it.
  void Wake();

  // Runs the queued tasks and refuses the waiting jobs, then joins. Not from a
  // task. May be called again.
  void Stop();

 private:
  void Work(int worker);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || look_ || !continuing_.empty();
  }

  base::Clock& clock_;
  mutable absl::Mutex mu_;
  StartQueue starting_ ABSL_GUARDED_BY(mu_);
  transport::RingQueue<Task> continuing_ ABSL_GUARDED_BY(mu_);
  // Whether a job may have a turn: set by every change since the last look.
  bool look_ ABSL_GUARDED_BY(mu_) = false;
  // Predicted end of the work that each worker runs now.
  std::vector<absl::Time> free_at_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool joined_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_DISPATCH_WORKER_POOL_H_
