#ifndef REFRACT_TRANSPORT_MEMORY_FREE_LIST_H_
#define REFRACT_TRANSPORT_MEMORY_FREE_LIST_H_

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace refract::transport {

// Recycles objects, whose members keep their capacity. Holds as many objects as
// were ever in use at once. The object given back last is kept outside the
// lock: Take() exchanges it for null and so owns it alone, whatever other
// threads do. Use of one object at a time thus takes no lock. Thread-safe.
template <typename T>
class FreeList {
 public:
  FreeList() = default;
  FreeList(const FreeList&) = delete;
  FreeList& operator=(const FreeList&) = delete;
  ~FreeList() { delete last_.load(std::memory_order_acquire); }

  // A recycled object, or a new object.
  std::unique_ptr<T> Take() {
    if (T* const last = last_.exchange(nullptr, std::memory_order_acquire)) {
      return std::unique_ptr<T>(last);
    }
    {
      absl::MutexLock lock(&mu_);
      if (!free_.empty()) {
        std::unique_ptr<T> object = std::move(free_.back());
        free_.pop_back();
        return object;
      }
    }
    return std::make_unique<T>();
  }
  void Give(std::unique_ptr<T> object) {
    T* none = nullptr;
    if (last_.compare_exchange_strong(none, object.get(),
                                      std::memory_order_release,
                                      std::memory_order_relaxed)) {
      (void)object.release();
      return;
    }
    absl::MutexLock lock(&mu_);
    free_.push_back(std::move(object));
  }

 private:
  std::atomic<T*> last_ = nullptr;  // owned
  absl::Mutex mu_;
  std::vector<std::unique_ptr<T>> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MEMORY_FREE_LIST_H_
