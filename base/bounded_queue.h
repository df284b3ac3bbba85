#ifndef REFRACT_BASE_BOUNDED_QUEUE_H_
#define REFRACT_BASE_BOUNDED_QUEUE_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace refract::base {

// Many producers, many consumers, a fixed bound. Thread-safe.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when full or closed; `value` is then left as it was, so the caller
  // can refuse it with a reason.
  bool TryPush(T&& value) {
    absl::MutexLock lock(&mu_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(value));
    return true;
  }

  // Waits for an item. nullopt once closed and empty.
  std::optional<T> Pop() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](BoundedQueue* queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(queue->mu_) {
          return queue->closed_ || !queue->items_.empty();
        },
        this));
    if (items_.empty()) return std::nullopt;
    T value = std::move(items_.front());
    items_.pop_front();
    return value;
  }

  // No more pushes; what is queued is still popped.
  void Close() {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }

  size_t size() const {
    absl::MutexLock lock(&mu_);
    return items_.size();
  }

 private:
  const size_t capacity_;
  mutable absl::Mutex mu_;
  std::deque<T> items_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_BOUNDED_QUEUE_H_
