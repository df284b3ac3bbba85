#include "cpu_node/places.h"

#include <algorithm>

namespace refract::cpu_node {

Places::Places(size_t models, int places) : places_(places), models_(models) {
  Recount();
}

void Places::SetServed(size_t model, bool served) {
  if (models_[model].served == served) return;
  models_[model].served = served;
  Recount();
}

void Places::SetAsks(size_t model, bool asks) {
  if (models_[model].asks == asks) return;
  models_[model].asks = asks;
  Recount();
}

int Places::KeptFor(const Model& model) const {
  return model.counts() ? std::max(0, own_ - model.taken) : 0;
}

void Places::Recount() {
  served_ = 0;
  asking_ = 0;
  for (const Model& model : models_) {
    served_ += model.served;
    asking_ += model.counts();
  }
  own_ = std::max(1, places_ / (2 * std::max(asking_, 1)));
  kept_ = 0;
  for (const Model& model : models_) kept_ += KeptFor(model);
}

bool Places::MayTake(size_t model) const {
  if (taken_ >= places_) return false;
  const Model& own = models_[model];
  if (own.taken < own_) return true;
  // Of more models than that, not each has one that is its own.
  const int kept = std::min(kept_ - KeptFor(own), places_ / 2);
  const bool others_may_come = served_ > asking_;
  return taken_ + kept + (others_may_come ? 1 : 0) < places_;
}

void Places::Take(size_t model) {
  kept_ -= KeptFor(models_[model]);
  ++models_[model].taken;
  kept_ += KeptFor(models_[model]);
  ++taken_;
}

void Places::GiveBack(size_t model) {
  kept_ -= KeptFor(models_[model]);
  --models_[model].taken;
  kept_ += KeptFor(models_[model]);
  --taken_;
}

}  // namespace refract::cpu_node
