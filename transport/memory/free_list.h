#ifndef REFRACT_TRANSPORT_MEMORY_FREE_LIST_H_
#define REFRACT_TRANSPORT_MEMORY_FREE_LIST_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace refract::transport {

// Recycles objects, whose members keep their capacity. Holds as many objects as
// were ever in use at once. Thread-safe.
template <typename T>
class FreeList {
 public:
  // A recycled object, or a new object.
  std::unique_ptr<T> Take() {
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
    absl::MutexLock lock(&mu_);
    free_.push_back(std::move(object));
  }

 private:
  absl::Mutex mu_;
  std::vector<std::unique_ptr<T>> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MEMORY_FREE_LIST_H_
