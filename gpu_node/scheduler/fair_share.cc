#include "gpu_node/scheduler/fair_share.h"

#include <algorithm>
#include <utility>

namespace refract::gpu_node {

FairShare::FairShare(std::vector<double> shares)
    : shares_(std::move(shares)), virtual_s_(shares_.size(), 0.0) {}

double FairShare::Earliest(size_t model) const {
  return system_s_ - absl::ToDoubleSeconds(kCredit) / shares_[model];
}

void FairShare::Activate(size_t model) {
  virtual_s_[model] = std::max(virtual_s_[model], Earliest(model));
}

void FairShare::KeepNear(size_t model, size_t other) {
  virtual_s_[model] = std::max(
      virtual_s_[model],
      virtual_s_[other] - absl::ToDoubleSeconds(kCredit) / shares_[model]);
}

bool FairShare::Owed(size_t model) const {
  return virtual_s_[model] <= Earliest(model);
}

bool FairShare::Before(size_t a, size_t b) const {
  if (virtual_s_[a] != virtual_s_[b]) return virtual_s_[a] < virtual_s_[b];
  return a < b;
}

void FairShare::Begin(size_t model, absl::Duration time) {
  system_s_ = std::max(system_s_, virtual_s_[model]);
  virtual_s_[model] += absl::ToDoubleSeconds(time) / shares_[model];
}

void FairShare::Correct(size_t model, absl::Duration difference) {
  virtual_s_[model] += absl::ToDoubleSeconds(difference) / shares_[model];
}

}  // namespace refract::gpu_node
