#include "cpu_node/catalog.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "transport/session/session_socket.h"

namespace refract::cpu_node {

Catalog::Catalog(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) {
              return std::tie(a.name, a.version) < std::tie(b.name, b.version);
            });
  for (size_t i = 0; i < entries_.size(); ++i) {
    std::unique_ptr<Versions>& versions = models_[entries_[i].name];
    if (versions == nullptr) {
      versions = std::make_unique<Versions>();
      versions->begin = i;
    }
    // Sorted by name and version: a model's entries lie side by side.
    versions->end = i + 1;
  }
  LimitOffers();
  for (const auto& [name, versions] : models_) ReadWishes(*versions);
  ChooseDefaults([](const ServedModel&) { return false; });
}

void Catalog::ReadWishes(Versions& versions) const {
  const auto first = entries_.begin() + static_cast<ptrdiff_t>(versions.begin);
  const auto last = entries_.begin() + static_cast<ptrdiff_t>(versions.end);
  versions.num_shares = static_cast<size_t>(std::count_if(
      first, last, [](const Entry& entry) { return entry.share > 0; }));
  versions.shares = std::make_unique<Versions::Share[]>(versions.num_shares);
  size_t next = 0;
  for (auto entry = first; entry != last; ++entry) {
    if (entry->share > 0) versions.shares[next++].entry = &*entry;
  }
  const auto has_plan = [](const Entry& entry) {
    return entry.model != nullptr && entry.model->model().plan.has_value();
  };
  const bool planned = std::any_of(first, last, has_plan);
  for (auto entry = first; entry != last; ++entry) {
    // A version without a plan does not count yet, nor as the default. A
    // version that failed to load counts: it should have answered.
    if (!entry->wanted ||
        (planned && entry->model != nullptr && !has_plan(*entry))) {
      continue;
    }
    if (versions.num_shares > 0 && entry->share == 0) continue;
    versions.newest = std::max(versions.newest, entry->version);
  }
}

// Draws a version by the shares of the versions that are ready. Turns advance
// by the golden ratio, modulo 1: any stretch of requests has nearly exact
// shares, without random clusters and without a lock.
const Catalog::Entry* Catalog::Draw(Versions& versions) {
  double total = 0;
  for (size_t i = 0; i < versions.num_shares; ++i) {
    const Versions::Share& share = versions.shares[i];
    if (share.ready.load(std::memory_order_acquire)) {
      total += share.entry->share;
    }
  }
  if (total == 0) return nullptr;
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // of 2^64
  const uint64_t turn =
      versions.turn.fetch_add(kGoldenRatio, std::memory_order_relaxed);
  double at = static_cast<double>(turn) * 0x1p-64 * total;
  const Entry* drawn = nullptr;
  for (size_t i = 0; i < versions.num_shares; ++i) {
    const Versions::Share& share = versions.shares[i];
    if (!share.ready.load(std::memory_order_acquire)) continue;
    drawn = share.entry;
    // The last ready share is the answer if rounding leaves `at` at 0 or above.
    at -= share.entry->share;
    if (at < 0) break;
  }
  return drawn;
}

void Catalog::LimitOffers() {
  // Pairs (age within its model, entry). Age 0 is the newest split version.
  std::vector<std::pair<size_t, size_t>> split;
  size_t age = 0;
  // Backwards: within a model, later entries are newer.
  for (size_t i = entries_.size(); i-- > 0;) {
    if (i + 1 < entries_.size() && entries_[i].name != entries_[i + 1].name) {
      age = 0;
    }
    const ServedModel* const model = entries_[i].model.get();
    if (model != nullptr && model->split()) split.emplace_back(age++, i);
  }
  if (split.size() <= transport::kMaxModelOffers) return;
  std::sort(split.begin(), split.end());
  // By age: the oldest versions of all models are left out first.
  for (size_t i = transport::kMaxModelOffers; i < split.size(); ++i) {
    Entry& entry = entries_[split[i].second];
    entry.model = nullptr;
    entry.status = absl::UnavailableError(absl::StrCat(
        "there are ", split.size(), " split versions and at most ",
        transport::kMaxModelOffers,
        " can be offered to GPU nodes; version_policy in config.pbtxt chooses "
        "versions"));
    LOG(ERROR) << "model '" << entry.name << "' version " << entry.version
               << " is left out: " << entry.status.message();
  }
}

void Catalog::ChooseDefaults(
    absl::FunctionRef<bool(const ServedModel&)> ready) const {
  absl::MutexLock lock(choice_mu_.get());
  for (const auto& [name, versions] : models_) {
    const auto first =
        entries_.begin() + static_cast<ptrdiff_t>(versions->begin);
    const auto last = entries_.begin() + static_cast<ptrdiff_t>(versions->end);
    const auto has_plan = [](const Entry& entry) {
      return entry.model != nullptr && entry.model->model().plan.has_value();
    };
    // A version without a plan waits for `refract partition`, unless no version
    // of the model has a plan.
    const bool planned = std::any_of(first, last, has_plan);
    const Entry* newest = nullptr;
    const Entry* chosen = nullptr;
    for (auto entry = last; entry != first && chosen == nullptr;) {
      --entry;
      if (entry->model == nullptr || (planned && !has_plan(*entry))) continue;
      if (versions->num_shares > 0 && entry->share == 0) continue;
      if (newest == nullptr) newest = &*entry;
      if (ready(*entry->model)) chosen = &*entry;
    }
    if (chosen == nullptr) chosen = newest;
    // No version is ready: the newest version gives the reason in its error.
    for (size_t i = 0; i < versions->num_shares; ++i) {
      Versions::Share& share = versions->shares[i];
      share.ready.store(
          share.entry->model != nullptr && ready(*share.entry->model),
          std::memory_order_release);
    }
    const Entry* const before =
        versions->chosen.exchange(chosen, std::memory_order_acq_rel);
    if (before != nullptr && before != chosen) {
      LOG(INFO) << "model '" << name << "': requests without a version go to "
                << "version " << chosen->version << " instead of "
                << before->version;
    }
  }
}

void Catalog::KeepDefaults(const Catalog& before) const {
  absl::MutexLock lock(choice_mu_.get());
  for (const auto& [name, versions] : models_) {
    // Carries over the version that requests went to, so that ChooseDefaults()
    // compares with it and logs changes alone.
    const auto old = before.models_.find(name);
    if (old == before.models_.end()) continue;
    const Entry* const chosen =
        old->second->chosen.load(std::memory_order_acquire);
    for (size_t i = versions->begin; i < versions->end; ++i) {
      if (chosen == nullptr || entries_[i].model == nullptr ||
          entries_[i].model != chosen->model) {
        continue;
      }
      versions->chosen.store(&entries_[i], std::memory_order_release);
    }
  }
}

std::vector<std::string> Catalog::LoadedModels() const {
  std::vector<std::string> names;
  for (const Entry& entry : entries_) {
    if (entry.model == nullptr) continue;
    if (names.empty() || names.back() != entry.name)
      names.push_back(entry.name);
  }
  return names;
}

namespace {

// Sets the shares of one model's versions from its config.pbtxt.
void SetShares(absl::Span<Catalog::Entry> entries) {
  for (const Catalog::Entry& loaded : entries) {
    if (loaded.model == nullptr) continue;
    for (const models::TrafficShare& share :
         loaded.model->check_settings().traffic) {
      const auto entry = std::find_if(
          entries.begin(), entries.end(),
          [&](const Catalog::Entry& e) { return e.version == share.version; });
      if (entry != entries.end()) {
        entry->share = share.share;
        continue;
      }
      LOG(WARNING)
          << "model '" << loaded.name << "': traffic in config.pbtxt "
          << "gives a share to version " << share.version
          << ", which is not served; its share goes to the other versions";
    }
    return;  // return on purpose: one config.pbtxt for all versions
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<ServedModel>> LoadServed(
    const models::Repository& repository, const std::string& name,
    int64_t version, const ServedModelOptions& options) {
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<const models::LoadedModel> loaded,
                           repository.Load(name, version,
                                           {.shard_packages = true}));
  if (loaded->verified_bytes > 0) {
    LOG(INFO) << "model '" << name << "' version " << version << ": "
              << loaded->verified_bytes
              << " bytes of weights read to verify them";
  }
  for (const std::string& warning : loaded->warnings) LOG(WARNING) << warning;
  REFRACT_ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> served,
                           ServedModel::Create(std::move(loaded), options));
  // A restarted node then answers as it did before it stopped.
  if (served->deltas() != nullptr) served->deltas()->CatchUp();
  return served;
}

absl::StatusOr<Catalog> Catalog::Load(
    const models::Repository& repository, const ServedModelOptions& options,
    const std::function<bool(absl::string_view name)>& wanted) {
  REFRACT_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           repository.ListModels());
  std::vector<Entry> entries;
  for (const std::string& name : names) {
    const size_t begin = entries.size();
    const absl::StatusOr<std::vector<int64_t>> versions =
        repository.ListServedVersions(name);
    if (!versions.ok()) {
      LOG(ERROR) << "model '" << name << "' is left out: " << versions.status();
      entries.push_back({name, 0, nullptr, versions.status()});
      continue;
    }
    for (const int64_t version : *versions) {
      Entry entry{name, version, nullptr, absl::OkStatus()};
      if (wanted != nullptr && !wanted(name)) {
        entry.wanted = false;
        entry.status = absl::UnavailableError("not loaded");
        entries.push_back(std::move(entry));
        continue;
      }
      absl::StatusOr<std::shared_ptr<ServedModel>> model =
          LoadServed(repository, name, version, options);
      entry.status = model.status();
      if (model.ok()) entry.model = *std::move(model);
      if (!entry.status.ok()) {
        LOG(ERROR) << "model '" << name << "' version " << version
                   << " is left out: " << entry.status;
      }
      entries.push_back(std::move(entry));
    }
    SetShares(absl::MakeSpan(entries).subspan(begin));
  }
  return Catalog(std::move(entries));
}

absl::StatusOr<std::shared_ptr<const ServedModel>> Catalog::Find(
    absl::string_view name, absl::string_view version, int64_t* newest) const {
  const auto model = models_.find(name);
  if (model == models_.end()) {
    return absl::NotFoundError(absl::StrCat("unknown model '", name, "'"));
  }
  Versions& versions = *model->second;
  const Entry* found = nullptr;
  if (version.empty()) {
    const Entry* chosen = versions.num_shares > 0 ? Draw(versions) : nullptr;
    const bool drawn = chosen != nullptr;
    if (!drawn) chosen = versions.chosen.load(std::memory_order_acquire);
    if (chosen != nullptr) {
      // Where shares decide, an older version answers by intent unless the
      // newest version with a share is not ready.
      const bool missing =
          drawn ? !versions.shares[versions.num_shares - 1].ready.load(
                      std::memory_order_acquire)
                : true;
      if (newest != nullptr && missing && versions.newest > chosen->version) {
        *newest = versions.newest;
      }
      return chosen->model;
    }
    found = &entries_[versions.end - 1];  // its status gives the reason
  }
  int64_t number = 0;
  if (found == nullptr && absl::SimpleAtoi(version, &number) && number > 0) {
    for (size_t i = versions.begin; i < versions.end; ++i) {
      if (entries_[i].version == number) found = &entries_[i];
    }
  }
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("model '", name, "' has no version '", version, "'"));
  }
  if (found->model == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("model '", name, "' version ", found->version,
                     " is not served: ", found->status.message()));
  }
  return found->model;
}

}  // namespace refract::cpu_node
