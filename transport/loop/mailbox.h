#ifndef REFRACT_TRANSPORT_LOOP_MAILBOX_H_
#define REFRACT_TRANSPORT_LOOP_MAILBOX_H_

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace refract::transport {

// Passes values from any thread to a polling thread, in order. The two sides
// swap two vectors, so that it allocates only to hold more values than ever
// before. Thread-safe; Take() is for one thread.
template <typename T>
class Mailbox {
 public:
  // Reserves room for `usual` values.
  explicit Mailbox(size_t usual) { values_.reserve(usual); }

  // Returns false if the mailbox is closed; `value` is dropped then.
  bool Push(T value) {
    absl::MutexLock lock(&mu_);
    if (closed_) return false;
    values_.push_back(std::move(value));
    any_.store(true, std::memory_order_release);
    return true;
  }
  // Replaces the contents of `taken` by all waiting values, and keeps the old
  // vector for later values. Takes no lock when no value waits.
  void Take(std::vector<T>* taken) {
    taken->clear();
    if (!any_.load(std::memory_order_acquire)) return;
    absl::MutexLock lock(&mu_);
    any_.store(false, std::memory_order_relaxed);
    if (taken->capacity() < values_.capacity()) {
      taken->reserve(values_.capacity());
    }
    taken->swap(values_);
  }
  // Drops the waiting and all later values.
  void Close() {
    std::vector<T> dropped;  // destroyed outside the lock
    absl::MutexLock lock(&mu_);
    closed_ = true;
    dropped.swap(values_);
  }

 private:
  std::atomic<bool> any_ = false;
  absl::Mutex mu_;
  std::vector<T> values_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_LOOP_MAILBOX_H_
