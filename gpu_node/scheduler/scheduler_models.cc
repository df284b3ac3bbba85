// Adding and removing models while others are served.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_node/scheduler/scheduler.h"

namespace refract::gpu_node {

void Scheduler::Describe(size_t place, ScheduledModel described) {
  Model& model = models_[place];
  model.times = described.times;
  // The first predictions are the times measured at load.
  model.last_tried.fill(model.times.known(clock_.Now()) ? clock_.Now()
                                                        : absl::InfinitePast());
  residents_.Set(place, described.weight_bytes);
  if (described.unavailable.ok() && device_->traits().weight_memory == 0) {
    // All weights fit, so the device has them from the start.
    residents_.BeginLoad(place);
    residents_.FinishLoad(place, true);
  }
  turns_.SetShare(place, described.share);
  model.config = std::move(described);
}

void Scheduler::SetQuotas() {
  // Each model's share of the node's places.
  double shares = 0;
  for (const Model& model : models_) {
    if (model.present) shares += model.config.share;
  }
  for (Model& model : models_) {
    model.quota = std::max<size_t>(
        1, static_cast<size_t>(static_cast<double>(options_.max_queue) *
                               model.config.share / shares));
  }
  scratch_.competitors.reserve(models_.size());
}

absl::StatusOr<size_t> Scheduler::AddModel(ScheduledModel described) {
  size_t number = 0;
  {
    absl::MutexLock lock(&mu_);
    size_t place = 0;
    while (place < models_.size() && models_[place].present) ++place;
    if (place == kMaxPlaces) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the GPU node already has ", kMaxPlaces,
                       " models, which is the most that it holds"));
    }
    if (place == models_.size()) {
      models_.emplace_back().number = place;
    } else {
      const size_t last = models_[place].number;
      models_[place] = Model();
      // PlaceOf() of the new number is the same place; a request that still
      // names the old number finds no model.
      models_[place].number = last + kMaxPlaces;
    }
    ++num_models_;
    Describe(place, std::move(described));
    models_[place].told = models_[place].config.unavailable;
    SetQuotas();
    number = models_[place].number;
  }
  Pump();  // tells the listener
  return number;
}

void Scheduler::SetModel(size_t number, ScheduledModel described) {
  {
    absl::MutexLock lock(&mu_);
    if (Find(number) == nullptr) return;
    Describe(PlaceOf(number), std::move(described));
    SetQuotas();
  }
  Pump();  // tells the listener
}

ModelStats Scheduler::RemoveModel(size_t number) {
  const size_t place = PlaceOf(number);
  // Three stages: refuse new and fail waiting requests; wait until the device
  // holds no batch and no load of the model; then free the place.
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    Model* const model = Find(number);
    if (model == nullptr) return ModelStats();
    model->config.unavailable = absl::UnavailableError(
        absl::StrCat(model->config.label, " is being unloaded"));
    FailQueued(*model, model->config.unavailable, actions);
  }
  Perform(actions);
  Pump();  // tells the listener
  Actions rest;
  ModelStats stats;
  {
    absl::MutexLock lock(&mu_);
    const auto released = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return models_[place].in_works == 0 &&
             residents_.state(place) != ResidentSet::State::kLoading;
    };
    mu_.Await(absl::Condition(&released));
    // A step of a long request may have been queued again meanwhile.
    FailQueued(models_[place], models_[place].config.unavailable, rest);
    stats = models_[place].stats;
    residents_.Set(place, 0);
    turns_.SetShare(place, 0);
    models_[place].present = false;
    models_[place].load_error = absl::OkStatus();
    --num_models_;
    SetQuotas();
  }
  Perform(rest);
  return stats;
}

}  // namespace refract::gpu_node
