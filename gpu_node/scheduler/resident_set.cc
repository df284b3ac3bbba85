#include "gpu_node/scheduler/resident_set.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace refract::gpu_node {

ResidentSet::ResidentSet(size_t capacity, std::vector<size_t> bytes)
    : capacity_(capacity), models_(bytes.size()) {
  for (size_t i = 0; i < bytes.size(); ++i) models_[i].bytes = bytes[i];
}

absl::Status ResidentSet::CheckFits(size_t model) const {
  if (capacity_ == 0 || models_[model].bytes <= capacity_) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "out of device memory: its weights need ", models_[model].bytes,
      " bytes, the device has ", capacity_, " of which ", free(), " are free"));
}

void ResidentSet::Set(size_t model, size_t bytes) {
  if (model == models_.size()) models_.emplace_back();
  if (models_[model].state == State::kIn) Evict(model);
  CHECK(models_[model].state == State::kOut);
  models_[model] = {.bytes = bytes};
}

std::optional<std::vector<size_t>> ResidentSet::PlanLoad(
    size_t model, const std::vector<bool>& may_go) const {
  std::vector<size_t> evicted;
  size_t room = free();
  if (room >= models_[model].bytes) return evicted;
  std::vector<size_t> order;
  for (size_t i = 0; i < models_.size(); ++i) {
    if (i != model && may_go[i] && models_[i].state == State::kIn) {
      order.push_back(i);
    }
  }
  // Sorts by last use, oldest first.
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return models_[a].last_use < models_[b].last_use;
  });
  for (const size_t i : order) {
    evicted.push_back(i);
    room += models_[i].bytes;
    if (room >= models_[model].bytes) break;
  }
  if (room < models_[model].bytes) return std::nullopt;
  // The last eviction may have made room for earlier candidates to stay.
  for (size_t i = evicted.size() - 1; i-- > 0;) {
    const size_t bytes = models_[evicted[i]].bytes;
    if (room - bytes < models_[model].bytes) continue;
    room -= bytes;
    evicted.erase(evicted.begin() + static_cast<ptrdiff_t>(i));
  }
  return evicted;
}

void ResidentSet::BeginLoad(size_t model) {
  CHECK(models_[model].state == State::kOut);
  CHECK_LE(models_[model].bytes, free());
  models_[model].state = State::kLoading;
  // The newest use: the next load does not evict this model first.
  models_[model].last_use = ++uses_;
  used_ += models_[model].bytes;
}

void ResidentSet::FinishLoad(size_t model, bool ok) {
  CHECK(models_[model].state == State::kLoading);
  models_[model].state = ok ? State::kIn : State::kOut;
  if (!ok) used_ -= models_[model].bytes;
}

void ResidentSet::Evict(size_t model) {
  CHECK(models_[model].state == State::kIn);
  models_[model].state = State::kOut;
  used_ -= models_[model].bytes;
}

}  // namespace refract::gpu_node
