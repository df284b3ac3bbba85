#include "cpu_node/worker_pool.h"

#include <utility>

namespace refract::cpu_node {

WorkerPool::WorkerPool(int threads, size_t max_waiting)
    : max_waiting_(max_waiting) {
  threads_.reserve(threads);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Work(); });
  }
}

WorkerPool::~WorkerPool() { Stop(); }

bool WorkerPool::TryStart(Task&& task) {
  absl::MutexLock lock(&mu_);
  if (stopping_ || starting_.size() >= max_waiting_) return false;
  starting_.push_back(std::move(task));
  return true;
}

void WorkerPool::Continue(Task task) {
  {
    absl::MutexLock lock(&mu_);
    if (!joined_) {
      continuing_.push_back(std::move(task));
      return;
    }
  }
  task();
}

void WorkerPool::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  // What came between a worker's last look and its end.
  transport::RingQueue<Task> left;
  {
    absl::MutexLock lock(&mu_);
    joined_ = true;
    std::swap(left, continuing_);
  }
  for (; !left.empty(); left.pop_front()) left.front()();
}

void WorkerPool::Work() {
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &WorkerPool::HasTaskOrStopping));
      transport::RingQueue<Task>& lane =
          continuing_.empty() ? starting_ : continuing_;
      if (lane.empty()) return;  // stopping, and nothing waits
      task = std::move(lane.front());
      lane.pop_front();
    }
    task();
  }
}

}  // namespace refract::cpu_node
