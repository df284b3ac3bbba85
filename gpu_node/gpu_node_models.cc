// Loading and unloading versions while a GPU node serves
// (docs/how-to/model_control.md).

#include <sys/resource.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process/idle_thread.h"
#include "base/process/within_memory.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "gpu_node/gpu_node.h"

namespace refract::gpu_node {
namespace {

bool SameOffer(const transport::ModelOffer& a, const transport::ModelOffer& b) {
  return a.name == b.name && a.version == b.version && a.model == b.model &&
         a.schema == b.schema && a.settings == b.settings;
}

}  // namespace

GpuNode::Version* GpuNode::Find(size_t number) {
  const auto found = versions_.find(number);
  return found == versions_.end() ? nullptr : &found->second;
}

std::shared_ptr<const DeviceModel> GpuNode::ModelOf(size_t number,
                                                    bool* merges) const {
  absl::ReaderMutexLock lock(&models_mu_);
  const auto found = versions_.find(number);
  if (found == versions_.end()) return nullptr;
  *merges = found->second.merges;
  return found->second.model;
}

std::vector<GpuNode::Served> GpuNode::served() const {
  std::vector<Served> served;
  {
    absl::ReaderMutexLock lock(&models_mu_);
    for (const auto& [number, version] : versions_) {
      if (version.model != nullptr) served.push_back({number, version.model});
    }
  }
  std::sort(served.begin(), served.end(), [](const Served& a, const Served& b) {
    return std::make_tuple(a.model->name(), a.model->version(), a.number) <
           std::make_tuple(b.model->name(), b.model->version(), b.number);
  });
  return served;
}

GpuNode::Changes GpuNode::changes() const {
  absl::ReaderMutexLock lock(&models_mu_);
  return changes_;
}

absl::StatusOr<size_t> GpuNode::OnOffer(const transport::ModelOffer& offer) {
  // Held so that two offers of the same new version load it once.
  absl::MutexLock offers_lock(&offers_mu_);
  const absl::StatusOr<size_t> number = [&]() -> absl::StatusOr<size_t> {
    absl::Status why;
    {
      absl::MutexLock lock(&models_mu_);
      // The reason of the last entry that does not fit is the best answer;
      // without an entry it is why the version was left out at the start.
      why = models_.WhyAbsent(offer);
      for (auto& [number, version] : versions_) {
        // Several entries may have this name and version, each with other
        // content.
        if (version.name != offer.name || version.version != offer.version) {
          continue;
        }
        // A version not yet loaded may have other content than offered.
        const absl::Status fits =
            version.model != nullptr ? version.model->CheckOffer(offer)
            : version.offer.has_value() && SameOffer(*version.offer, offer)
                ? absl::OkStatus()
                : absl::UnavailableError(
                      "this version is being loaded with other content than "
                      "the CPU node offers");
        if (!fits.ok()) {
          why = fits;
          continue;
        }
        ++version.offers;
        version.ever_offered = true;
        return number;
      }
    }
    // The version is new here, or all entries of it have other content. It is
    // accepted now, loaded by the keeper, and not ready until then.
    if (options_.load == nullptr) return why;
    return AddVersion({.name = offer.name,
                       .version = offer.version,
                       .offer = offer,
                       .offers = 1,
                       .ever_offered = true,
                       .load_at = absl::InfinitePast()});
  }();
  if (number.ok()) return number;
  if (const auto held_back = refusal_log_.Admit("refusals")) {
    LOG(WARNING) << "refused: " << number.status().message() << *held_back;
  }
  return number;
}

void GpuNode::OnOfferEnd(size_t number, bool withdrawn) {
  absl::MutexLock lock(&models_mu_);
  Version* const version = Find(number);
  if (version == nullptr || --version->offers > 0) return;
  version->withdrawn = withdrawn;
  version->unoffered_since = options_.clock->Now();
  changed_ = true;
}

absl::StatusOr<size_t> GpuNode::AddVersion(Version version) {
  const std::string label = DeviceModel::LabelOf(version.name, version.version);
  ScheduledModel described;
  described.label = label;
  described.unavailable =
      absl::UnavailableError(absl::StrCat(label, " is being loaded"));
  REFRACT_ASSIGN_OR_RETURN(const size_t number,
                           // Described as unavailable until LoadVersion() has
                           // loaded it: requests that come early fail with that
                           // reason.
                           scheduler_->AddModel(std::move(described)));
  {
    absl::MutexLock lock(&models_mu_);
    versions_[number] = std::move(version);
    changed_ = true;
  }
  // Called before the offer is answered, so that the answer has the readiness.
  TellReadiness();
  return number;
}

bool GpuNode::Wanted(const Version& version) const {
  return wanted_.contains({version.name, version.version});
}

void GpuNode::KeepModels() {
  if (options_.wanted != nullptr) {
    // Until the first poll, the versions of the start count as listed.
    absl::MutexLock lock(&models_mu_);
    for (const auto& [number, version] : versions_) {
      wanted_.insert({version.name, version.version});
    }
    next_poll_ = options_.clock->Now() + options_.poll_interval;
  }
  absl::Time next = absl::InfinitePast();
  while (true) {
    {
      absl::MutexLock lock(&models_mu_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_mu_) {
        return stop_keeper_ || changed_;
      };
      options_.clock->AwaitWithDeadline(models_mu_, absl::Condition(&due),
                                        next);
      if (stop_keeper_) return;
      changed_ = false;
    }
    next = KeepModelsOnce();
  }
}

absl::Time GpuNode::KeepModelsOnce() {
  const absl::Time now = options_.clock->Now();
  absl::Time next = absl::InfiniteFuture();
  std::vector<size_t> to_load;
  std::vector<size_t> to_unload;
  bool poll = false;
  {
    absl::MutexLock lock(&models_mu_);
    poll = next_poll_ <= now;
    if (poll) next_poll_ = now + options_.poll_interval;
    next = next_poll_;
    for (const auto& [number, version] : versions_) {
      // A version that this node loaded at its start, and that no CN has yet
      // offered, stays.
      if (version.offers == 0 && version.ever_offered && !Wanted(version)) {
        const absl::Time end = version.withdrawn ? absl::InfinitePast()
                                                 : version.unoffered_since +
                                                       options_.keep_unoffered;
        if (end <= now) {
          to_unload.push_back(number);
          continue;
        }
        next = std::min(next, end);
      }
      if (version.load_at <= now) {
        to_load.push_back(number);
      } else {
        next = std::min(next, version.load_at);
      }
    }
  }
  // Unloads first, so that there is room.
  for (const size_t number : to_unload) UnloadVersion(number);
  for (const size_t number : to_load) {
    LoadVersion(number);
    next = absl::InfinitePast();  // look again at once: it may be retried
  }
  if (poll) Poll();
  return next;
}

void GpuNode::Poll() {
  auto wanted = options_.wanted();
  if (!wanted.ok()) {
    // The repository may come back: loaded models stay.
    if (wanted.status() != poll_error_) {
      LOG(ERROR) << "the repository cannot be polled, models stay as they are: "
                 << wanted.status().message();
    }
    poll_error_ = wanted.status();
    return;
  }
  if (!poll_error_.ok()) LOG(INFO) << "the repository can be polled again";
  poll_error_ = absl::OkStatus();
  std::vector<std::pair<std::string, int64_t>> absent;
  {
    absl::MutexLock lock(&models_mu_);
    wanted_ = {wanted->begin(), wanted->end()};
    for (const auto& [name, number] : *wanted) {
      const bool known = std::any_of(
          versions_.begin(), versions_.end(), [&](const auto& entry) {
            return entry.second.name == name && entry.second.version == number;
          });
      if (!known) absent.emplace_back(name, number);
    }
    for (auto& [number, version] : versions_) {
      // The version left the repository or version_policy.
      if (Wanted(version)) continue;
      version.ever_offered = true;
      if (version.offers == 0) version.withdrawn = true;
    }
    changed_ = true;
  }
  for (const auto& [name, version] : absent) {
    absl::MutexLock offers_lock(&offers_mu_);
    const auto added = AddVersion(
        {.name = name, .version = version, .load_at = absl::InfinitePast()});
    if (!added.ok()) LOG(ERROR) << added.status().message();
  }
}

void GpuNode::LoadVersion(size_t number) {
  std::string name;
  int64_t version = 0;
  std::optional<transport::ModelOffer> offer;
  {
    absl::MutexLock lock(&models_mu_);
    const Version* const found = Find(number);
    if (found == nullptr) return;
    name = found->name;
    version = found->version;
    offer = found->offer;
  }
  const std::string label = DeviceModel::LabelOf(name, version);
  const absl::Time begin = options_.clock->Now();
  std::shared_ptr<const DeviceModel> model;
  ScheduledModel described;
  const absl::Status status = base::WithinMemory([&]() -> absl::Status {
    // Serving goes before loading. Only work without locks is done in idle
    // time: a lock of the scheduler or of the device, held by a thread that
    // does not run, would hold up requests.
    REFRACT_RETURN_IF_ERROR(base::RunInIdleTime([&]() -> absl::Status {
      REFRACT_ASSIGN_OR_RETURN(model, options_.load(name, version));
      return offer.has_value() ? model->CheckOffer(*offer) : absl::OkStatus();
    }));
    // Checked twice: the least batch before the device takes time to load the
    // model, the bytes once the device knows them.
    REFRACT_RETURN_IF_ERROR(CheckFits(*model, 0));
    REFRACT_ASSIGN_OR_RETURN(
        const std::optional<ModelOnDevice> facts,
        device_->SetModel(Scheduler::PlaceOf(number), model.get()));
    REFRACT_RETURN_IF_ERROR(CheckFits(*model, facts.has_value()
                                                  ? facts->device_bytes
                                                  : model->weight_bytes()));
    described = Describe(*model, facts);
    if (described.measuring) {
      // Times of requests are better than a measurement beside them, which
      // would also delay the requests.
      const std::optional<scheduling::ExecutionTimes> before =
          TimesOfOther(*model);
      if (before.has_value()) {
        described.times = *before;
      } else {
        REFRACT_RETURN_IF_ERROR(base::RunInIdleTime([&] {
          described.times = Measure(*model);
          return absl::OkStatus();
        }));
      }
      described.measuring = false;
    }
    return absl::OkStatus();
  });
  if (status.ok()) {
    {
      absl::MutexLock lock(&models_mu_);
      Version& loaded = *Find(number);  // only this thread removes versions
      loaded.model = std::move(model);
      loaded.merges = described.batching.enabled;
      loaded.load_at = absl::InfiniteFuture();
      ++changes_.loads;
    }
    LOG(INFO) << label << " was loaded in "
              << absl::FormatDuration(options_.clock->Now() - begin);
    // From here on CPU nodes may use the version.
    return scheduler_->SetModel(number, std::move(described));
  }
  device_->SetModel(Scheduler::PlaceOf(number), nullptr).status().IgnoreError();
  // A copy into the repository may arrive late.
  const bool again = absl::IsNotFound(status);
  ScheduledModel failed;
  failed.label = label;
  failed.unavailable = absl::Status(
      status.code(),
      absl::StrCat(label, " could not be loaded: ", status.message()));
  bool first = false;
  {
    absl::MutexLock lock(&models_mu_);
    Version& version_entry = *Find(number);
    // Only the first failure is logged and counted; retries of a version that
    // is not there yet are no news.
    first = version_entry.load_at == absl::InfinitePast();
    version_entry.load_at =
        again ? options_.clock->Now() + options_.retry_interval
              : absl::InfiniteFuture();
    changes_.failures += first;
  }
  if (first) LOG(ERROR) << failed.unavailable.message();
  scheduler_->SetModel(number, std::move(failed));
}

std::optional<scheduling::ExecutionTimes> GpuNode::TimesOfOther(
    const DeviceModel& model) const {
  for (const Served& other : served()) {
    if (other.model->name() != model.name() ||
        other.model->schema() != model.schema()) {
      continue;
    }
    scheduling::ExecutionTimes times = scheduler_->times(other.number);
    if (times.known(options_.clock->Now())) return times;
  }
  return std::nullopt;
}

void GpuNode::UnloadVersion(size_t number) {
  Version version;
  {
    absl::MutexLock lock(&models_mu_);
    // The version may have been offered again meanwhile.
    Version* const found = Find(number);
    if (found == nullptr || found->offers > 0) return;
    version = std::move(*found);
    versions_.erase(number);
    if (version.model != nullptr) ++changes_.unloads;
  }
  // The version is out of versions_, so requests that come now are refused.
  // RemoveModel() waits for the batches under way.
  const ModelStats stats = scheduler_->RemoveModel(number);
  // The device does not read the model any more.
  device_->SetModel(Scheduler::PlaceOf(number), nullptr).status().IgnoreError();
  if (version.model != nullptr) {
    LOG(INFO) << DeviceModel::LabelOf(version.name, version.version)
              << " was unloaded: " << Summary(stats);
  }
  absl::MutexLock lock(&models_mu_);
  unloaded_.succeeded += stats.succeeded;
  unloaded_.failed += stats.failed;
  unloaded_.expired += stats.expired;
  unloaded_.abandoned += stats.abandoned;
  unloaded_.refused += stats.refused;
  unloaded_.queue_full += stats.queue_full;
  unloaded_.too_large += stats.too_large;
  unloaded_.unavailable += stats.unavailable;
}

}  // namespace refract::gpu_node
