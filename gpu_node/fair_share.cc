#include "gpu_node/fair_share.h"

#include <algorithm>
#include <utility>

namespace refract::gpu_node {

FairShare::FairShare(std::vector<double> shares)
    : shares_(std::move(shares)), virtual_s_(shares_.size(), 0.0) {}

void FairShare::Activate(size_t model) {
  const double credit_s = absl::ToDoubleSeconds(kCredit) / shares_[model];
  virtual_s_[model] = std::max(virtual_s_[model], system_s_ - credit_s);
}

bool FairShare::Before(size_t a, size_t b) const {
  if (virtual_s_[a] != virtual_s_[b]) return virtual_s_[a] < virtual_s_[b];
  return a < b;
}

bool FairShare::BelowShare(size_t model) const {
  const double half_s = absl::ToDoubleSeconds(kCredit) / 2 / shares_[model];
  return system_s_ - virtual_s_[model] >= half_s;
}

void FairShare::Begin(size_t model, absl::Duration time) {
  system_s_ = std::max(system_s_, virtual_s_[model]);
  virtual_s_[model] += absl::ToDoubleSeconds(time) / shares_[model];
}

void FairShare::Correct(size_t model, absl::Duration difference) {
  virtual_s_[model] += absl::ToDoubleSeconds(difference) / shares_[model];
}

}  // namespace refract::gpu_node
