#ifndef REFRACT_CPU_NODE_WORKER_POOL_H_
#define REFRACT_CPU_NODE_WORKER_POOL_H_

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "transport/loop/ring_queue.h"

namespace refract::cpu_node {

// Threads that run the CPU parts of requests, one part at a time each.
//
// Two lanes: starting a request may be refused, going on with one may not.
// Going on comes first, because it frees memory and a client already waits for
// it. Allocates only to hold more tasks than ever before. Thread-safe.
class WorkerPool {
 public:
  using Task = std::function<void()>;

  // `threads` ≥ 1. At most `max_waiting` (≥ 1) requests wait to be started.
  WorkerPool(int threads, size_t max_waiting);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False, with `task` untouched, when `max_waiting` tasks wait or after
  // Stop().
  bool TryStart(Task&& task);

  // As many wait as there are requests in flight at most, which the engine
  // bounds. After Stop() the task runs on the calling thread.
  void Continue(Task task);

  // Runs what waits, then joins. Not from a task. May be called again.
  void Stop();

 private:
  void Work();
  bool HasTaskOrStopping() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !starting_.empty() || !continuing_.empty();
  }

  const size_t max_waiting_;
  absl::Mutex mu_;
  transport::RingQueue<Task> starting_ ABSL_GUARDED_BY(mu_);
  transport::RingQueue<Task> continuing_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool joined_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_WORKER_POOL_H_
