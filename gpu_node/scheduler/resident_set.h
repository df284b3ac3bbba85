#ifndef REFRACT_GPU_NODE_SCHEDULER_RESIDENT_SET_H_
#define REFRACT_GPU_NODE_SCHEDULER_RESIDENT_SET_H_

// Decides which models' weights are in a device's memory. The weights of every
// model stay in the host's memory (pinned, where the device copies from it), so
// that an evicted model returns in the time of one copy; the idea is DistMind's
// (Jin et al., "DistMind: Efficient Resource Disaggregation for Deep Learning
// Workloads", IEEE/ACM ToN 2024).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace refract::gpu_node {

// Bookkeeping only. Not thread-safe.
class ResidentSet {
 public:
  enum class State : uint8_t { kOut, kLoading, kIn };

  // `bytes` of each model's weights; `capacity` 0: memory is not limited.
  ResidentSet(size_t capacity, std::vector<size_t> bytes);

  // ResourceExhausted, with bytes needed and free, for a model that does not
  // fit even alone.
  absl::Status CheckFits(size_t model) const;

  // Puts a model, not resident, in the place `model`, which is at most one past
  // the last place. Replaces the model that was there, resident or not.
  void Set(size_t model, size_t bytes);

  State state(size_t model) const { return models_[model].state; }
  size_t used() const { return used_; }
  size_t free() const { return capacity_ == 0 ? SIZE_MAX : capacity_ - used_; }

  // The models to evict so that there is room for `model`, which is not
  // resident: the least recently used of the models that `may_go`, and no more
  // than needed. nullopt: evicting all of them is not enough now.
  std::optional<std::vector<size_t>> PlanLoad(
      size_t model, const std::vector<bool>& may_go) const;

  // Reserves the room of `model`; there must be enough.
  void BeginLoad(size_t model);
  // `ok`: the weights are resident now. Otherwise the memory reserved for them
  // is free again.
  void FinishLoad(size_t model, bool ok);
  void Evict(size_t model);
  // Call when an execution of `model`, which is resident, begins.
  void Touch(size_t model) { models_[model].last_use = ++uses_; }

 private:
  struct Model {
    size_t bytes = 0;
    State state = State::kOut;
    uint64_t last_use = 0;
  };
  const size_t capacity_;
  std::vector<Model> models_;
  size_t used_ = 0;
  uint64_t uses_ = 0;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_SCHEDULER_RESIDENT_SET_H_
