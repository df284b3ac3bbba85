#include "cpu_node/dispatch/worker_pool.h"

#include <optional>
#include <utility>

namespace refract::cpu_node {

absl::Status Stopping() {
  return absl::UnavailableError("the CPU node is stopping");
}

WorkerPool::WorkerPool(StartQueue::Options options, base::Clock* clock)
    : clock_(*clock),
      starting_(options),
      free_at_(options.workers, absl::InfinitePast()) {
  threads_.reserve(options.workers);
  for (int i = 0; i < options.workers; ++i) {
    threads_.emplace_back([this, i] { Work(i); });
  }
}

WorkerPool::~WorkerPool() { Stop(); }

size_t WorkerPool::AddModel(QueuedModel model, std::optional<size_t> alike) {
  absl::MutexLock lock(&mu_);
  return starting_.AddModel(std::move(model), alike);
}

void WorkerPool::RemoveModel(size_t model) {
  absl::MutexLock lock(&mu_);
  starting_.RemoveModel(model);
}

absl::Status WorkerPool::Admit(Job& job, size_t model, int64_t rows,
                               absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return Stopping();
  const absl::Status status =
      starting_.Admit(job, model, rows, deadline, clock_.Now(), free_at_);
  look_ |= status.ok();
  return status;
}

absl::Status WorkerPool::Foresee(size_t model, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  return starting_.Foresee(model, /*priority=*/0, /*rows=*/1, deadline,
                           clock_.Now(), free_at_);
}

size_t WorkerPool::Waiting(size_t model) const {
  absl::MutexLock lock(&mu_);
  return starting_.waiting(model);
}

void WorkerPool::End(const Job& job, const PartTimes& times, bool typical) {
  absl::MutexLock lock(&mu_);
  starting_.End(job, times, typical, clock_.Now());
  look_ = true;
}

void WorkerPool::Continue(Task task) {
  {
    absl::MutexLock lock(&mu_);
    // Room at the GPU node is free again.
    look_ = true;
    if (!joined_) {
      continuing_.push_back(std::move(task));
      return;
    }
  }
  task();
}

void WorkerPool::Wake() {
  absl::MutexLock lock(&mu_);
  look_ = true;
}

void WorkerPool::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  // Tasks that were queued between a worker's last look and its end.
  transport::RingQueue<Task> left;
  {
    absl::MutexLock lock(&mu_);
    joined_ = true;
    std::swap(left, continuing_);
  }
  for (; !left.empty(); left.pop_front()) left.front()();
}

void WorkerPool::Work(int worker) {
  while (true) {
    Task task;
    StartQueue::Turn turn;
    {
      absl::MutexLock lock(&mu_);
      free_at_[worker] = absl::InfinitePast();
      while (true) {
        if (!continuing_.empty()) {
          // Begun requests go first: most of their work is done, and they hold
          // memory.
          task = std::move(continuing_.front());
          continuing_.pop_front();
          break;
        }
        if (stopping_) {
          // Before a worker ends, it refuses jobs that still wait, so that each
          // of them gets an answer.
          turn.job = starting_.TakeAny();
          if (turn.job == nullptr) return;
          turn.refused = Stopping();
          break;
        }
        const absl::Time now = clock_.Now();
        if (std::optional<StartQueue::Turn> next = starting_.Next(now)) {
          turn = *std::move(next);
          free_at_[worker] = now + turn.time;
          break;
        }
        // Set again by every event that may let a job start; HasWork() waits
        // for it.
        look_ = false;
        // Jobs that wait for room are refused when their deadlines pass.
        clock_.AwaitWithDeadline(mu_,
                                 absl::Condition(this, &WorkerPool::HasWork),
                                 starting_.NextExpiry());
      }
    }
    if (turn.job == nullptr) {
      task();
    } else if (Job& job = static_cast<Job&>(*turn.job); turn.refused.ok()) {
      job.Start();
    } else {
      job.Refuse(turn.refused);
    }
  }
}

}  // namespace refract::cpu_node
