// Loading and evicting weights of the device's memory.

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gpu_node/scheduler/scheduler.h"

namespace refract::gpu_node {
namespace {

// A failed load may have evicted other models in vain: no model is evicted for
// it again before this many times the time of the load and of reloading the
// evicted models.
constexpr int64_t kFailedLoadShare = 20;

}  // namespace

absl::Duration Scheduler::LoadTime(const Model& model) const {
  if (load_bytes_per_s_ <= 0) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(model.config.weight_bytes) /
                       load_bytes_per_s_);
}

bool Scheduler::WaitsForRoom(size_t index, absl::Time now) const {
  const Model& model = models_[index];
  return !loading_ && (!model.queue.empty() || !model.load_error.ok()) &&
         !AtOwnLimit(model) &&
         residents_.state(index) == ResidentSet::State::kOut &&
         model.load_again <= now && model.evict_again <= now;
}

std::vector<bool> Scheduler::MayGo(bool at_once, absl::Time now) const {
  std::vector<bool> may_go;
  for (const Model& model : models_) {
    // A newly loaded model with requests stays until it has run, and for as
    // long as its copy took: otherwise models would only be loaded and evicted.
    const bool was_of_use = model.ran_since_load && model.stays_until <= now;
    may_go.push_back((!at_once || model.in_works == 0) &&
                     (was_of_use || model.queue.empty()));
  }
  return may_go;
}

void Scheduler::PlanLoad(size_t index, absl::Time now, Actions& actions) {
  Model& model = models_[index];
  // The device takes one load at a time.
  if (loading_ || residents_.state(index) != ResidentSet::State::kOut) return;
  if (model.load_again > now) return WakeAt(model.load_again);
  std::optional<std::vector<size_t>> evicted =
      residents_.PlanLoad(index, MayGo(true, now));
  if (!evicted.has_value()) {
    // The end of an execution plans again; the end of a minimum stay needs a
    // timer.
    for (const Model& other : models_) {
      if (other.stays_until > now) WakeAt(other.stays_until);
    }
    return;
  }
  if (!evicted->empty() && model.evict_again > now) {
    return WakeAt(model.evict_again);
  }
  // The memory counts as taken from here on; the device drops the evicted
  // weights before it copies (Device::LoadWeights).
  model.eviction_time = absl::ZeroDuration();
  for (const size_t out : *evicted) {
    residents_.Evict(out);
    ++models_[out].stats.evictions;
    model.eviction_time += LoadTime(models_[out]);
  }
  residents_.BeginLoad(index);
  model.ran_since_load = false;
  // The copy counts as the model's use of the device.
  turns_.TakeTurn(index, LoadTime(model));
  loading_ = true;
  ++in_calls_;
  actions.load = static_cast<int>(index);
  actions.evicted = *std::move(evicted);
}

void Scheduler::OnLoaded(size_t index, absl::Time began,
                         const absl::Status& status) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    Model& model = models_[index];
    const absl::Time now = clock_.Now();
    const absl::Duration took = now - began;
    loading_ = false;
    residents_.FinishLoad(index, status.ok());
    if (status.ok()) {
      ++model.stats.loads;
      if (!model.load_error.ok()) {
        LOG(INFO) << model.config.label
                  << " was loaded into the device after earlier failures";
      }
      model.load_error = absl::OkStatus();
      model.load_failures = 0;
      model.evict_again = absl::InfinitePast();
      model.stays_until = now + took;
      turns_.Correct(index, took - LoadTime(model));
      if (took > absl::ZeroDuration() && model.config.weight_bytes > 0) {
        const double rate = static_cast<double>(model.config.weight_bytes) /
                            absl::ToDoubleSeconds(took);
        // The copy rate is a property of the machine, not of the model.
        load_bytes_per_s_ =
            load_bytes_per_s_ <= 0 ? rate : (load_bytes_per_s_ + rate) / 2;
      }
    } else {
      // Requests do not wait for the next attempt.
      const absl::Status why = absl::UnavailableError(absl::StrCat(
          model.config.label, " cannot be loaded into device ",
          device_->traits().name, "; it needs ", model.config.weight_bytes,
          " bytes, and ", residents_.free(),
          " bytes should be free: ", status.ToString()));
      const absl::Duration backoff = BackOff(++model.load_failures);
      model.load_again = now + backoff;
      if (model.eviction_time > absl::ZeroDuration()) {
        model.evict_again =
            now + kFailedLoadShare * (took + model.eviction_time);
      }
      LOG(ERROR) << why.message() << "; it is tried again in "
                 << absl::FormatDuration(backoff)
                 << (model.evict_again > model.load_again
                         ? absl::StrCat(
                               "; if other models' weights take its memory "
                               "until then, in ",
                               absl::FormatDuration(model.evict_again - now))
                         : "");
      model.load_error = why;
      FailQueued(model, why, actions);
    }
  }
  Perform(actions);
  Pump();
}

}  // namespace refract::gpu_node
