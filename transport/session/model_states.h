#ifndef REFRACT_TRANSPORT_SESSION_MODEL_STATES_H_
#define REFRACT_TRANSPORT_SESSION_MODEL_STATES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace refract::transport {

// Whether each model can be served now, by the handler's numbers. Thread-safe.
class ModelStates {
 public:
  void Set(size_t model, const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    states_[model] = status;
    ++version_;
  }
  absl::Status Of(size_t model) const {
    absl::MutexLock lock(&mu_);
    const auto state = states_.find(model);
    return state == states_.end() ? absl::OkStatus() : state->second;
  }
  // Changes after each Set(). 0: no Set() yet.
  uint64_t version() const { return version_; }

 private:
  mutable absl::Mutex mu_;
  absl::flat_hash_map<size_t, absl::Status> states_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> version_ = 0;  // lets pollers skip the lock
};

}  // namespace refract::transport

#endif  // REFRACT_TRANSPORT_SESSION_MODEL_STATES_H_
