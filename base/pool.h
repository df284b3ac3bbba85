#ifndef REFRACT_BASE_POOL_H_
#define REFRACT_BASE_POOL_H_

// A pool of objects that are expensive to create or keep grown memory; each
// object has one user at a time.

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace refract::base {

// Grows to the most simultaneous uses. Thread-safe; must outlive its leases.
template <typename T>
class Pool {
 public:
  // `make` is called under no lock, on the acquiring threads.
  explicit Pool(std::function<std::unique_ptr<T>()> make)
      : make_(std::move(make)) {}

  // Exclusive use of an object, which returns to the pool on destruction.
  class Lease {
   public:
    Lease(Lease&&) noexcept = default;
    Lease& operator=(Lease&& other) noexcept {
      if (this != &other) {
        if (object_ != nullptr) pool_->Return(std::move(object_));
        pool_ = other.pool_;
        object_ = std::move(other.object_);
      }
      return *this;
    }
    ~Lease() {
      if (object_ != nullptr) pool_->Return(std::move(object_));
    }
    T& operator*() const { return *object_; }
    T* operator->() const { return object_.get(); }

   private:
    friend class Pool;
    Lease(Pool* pool, std::unique_ptr<T> object)
        : pool_(pool), object_(std::move(object)) {}
    Pool* pool_;
    std::unique_ptr<T> object_;
  };

  Lease Acquire() {
    std::unique_ptr<T> object;
    {
      absl::MutexLock lock(&mu_);
      if (!idle_.empty()) {
        // The object returned last: its memory is most likely in caches.
        object = std::move(idle_.back());
        idle_.pop_back();
      } else {
        // Reserves room for its return, because Return() must not throw.
        idle_.reserve(++made_);
      }
    }
    if (object == nullptr) object = make_();
    return Lease(this, std::move(object));
  }

 private:
  void Return(std::unique_ptr<T> object) {
    absl::MutexLock lock(&mu_);
    idle_.push_back(std::move(object));
  }

  const std::function<std::unique_ptr<T>()> make_;
  absl::Mutex mu_;
  std::vector<std::unique_ptr<T>> idle_ ABSL_GUARDED_BY(mu_);
  size_t made_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_POOL_H_
