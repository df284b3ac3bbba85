#ifndef REFRACT_TRANSPORT_MEMORY_STORAGE_POOL_H_
#define REFRACT_TRANSPORT_MEMORY_STORAGE_POOL_H_

#include <new>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace refract::transport {

// Memory blocks for objects of type T: allocates only for more objects than
// ever before. Every block must be returned before the pool is destroyed.
// Thread-safe.
template <typename T>
class StoragePool {
 public:
  StoragePool() = default;
  StoragePool(const StoragePool&) = delete;
  StoragePool& operator=(const StoragePool&) = delete;
  ~StoragePool() {
    for (void* block : free_) ::operator delete(block);
  }

  // Uninitialised memory for one T.
  void* Take() {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    {
      absl::MutexLock lock(&mu_);
      if (!free_.empty()) {
        void* const block = free_.back();
        free_.pop_back();
        return block;
      }
    }
    return ::operator new(sizeof(T));
  }
  // `block` is from Take(), and its T is destroyed.
  void Give(void* block) {
    absl::MutexLock lock(&mu_);
    free_.push_back(block);
  }

 private:
  absl::Mutex mu_;
  std::vector<void*> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_MEMORY_STORAGE_POOL_H_
