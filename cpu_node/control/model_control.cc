#include "cpu_node/control/model_control.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/process/within_memory.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "glog/logging.h"
#include "models/repository/files/copy_file.h"

namespace refract::cpu_node {
namespace {

// Changes that may wait. A deploy script in a loop must not fill the memory.
constexpr size_t kMaxChanges = 64;

// Nice value of the loading thread, which gets a tenth of a CPU beside busy
// serving threads. It does not take idle time only: a change to a version that
// is in memory must take less than a second on a busy machine as well. Tables
// are read in idle time (PlaceTables()).
constexpr int kNice = 10;

std::string LabelOf(const std::string& name, int64_t version) {
  return absl::StrCat("model '", name, "' version ", version);
}

}  // namespace

ModelControl::ModelControl(models::Repository repository, Engine* engine,
                           const ModelControlOptions& options)
    : repository_(std::move(repository)), engine_(*engine), options_(options) {
  const std::shared_ptr<const Catalog> catalog = engine_.catalog();
  for (const Catalog::Entry& entry : catalog->entries()) {
    // Takes over what the node loaded at its start, so that the first change
    // compares with it.
    Model& model = models_[entry.name];
    if (entry.model != nullptr) {
      model.loaded[entry.version] = {entry.model,
                                     SettingsOf(entry.name, entry.version)};
      model.served.insert(entry.version);
      if (entry.share > 0) {
        model.traffic.push_back({entry.version, entry.share});
      }
    } else {
      model.failed[entry.version] = entry.status;
    }
    if (entry.wanted) model.aims.insert(entry.version);
  }
  folder_ = FolderNow();
  thread_ = std::thread([this] { Run(); });
}

void ModelControl::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
  std::deque<Change> left;
  {
    absl::MutexLock lock(&mu_);
    left.swap(changes_);
  }
  for (const Change& change : left) {
    change.done(absl::UnavailableError("the CPU node is stopping"));
  }
}

void ModelControl::Submit(Change change) {
  absl::Status refused;
  if (!options_.by_request) {
    refused = absl::UnavailableError(
        "models are loaded and unloaded by request only with "
        "--model-control-mode explicit");
  }
  if (refused.ok()) {
    absl::MutexLock lock(&mu_);
    if (!stop_ && changes_.size() < kMaxChanges) {
      changes_.push_back(std::move(change));
      return;
    }
    refused = stop_ ? absl::UnavailableError("the CPU node is stopping")
                    : absl::ResourceExhaustedError(absl::StrCat(
                          kMaxChanges,
                          " changes of models wait already; try again later"));
  }
  change.done(refused);
}

void ModelControl::Load(std::string name, std::string config, Done done) {
  Submit({std::move(name), std::move(config), true, std::move(done)});
}

void ModelControl::Unload(std::string name, Done done) {
  Submit({std::move(name), "", false, std::move(done)});
}

ModelControl::Counts ModelControl::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
}

void ModelControl::Run() {
  // On Linux this changes the calling thread alone, not the process.
  setpriority(PRIO_PROCESS, 0, kNice);
  absl::Time next_poll = options_.poll
                             ? options_.clock->Now() + options_.poll_interval
                             : absl::InfiniteFuture();
  while (true) {
    std::optional<Change> change;
    {
      absl::MutexLock lock(&mu_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stop_ || !changes_.empty();
      };
      options_.clock->AwaitWithDeadline(mu_, absl::Condition(&due), next_poll);
      if (stop_) return;
      if (!changes_.empty()) {
        change = std::move(changes_.front());
        changes_.pop_front();
      }
    }
    if (change.has_value()) {
      const absl::Status status =
          change->load ? LoadNow(change->name, change->config, false)
                       : UnloadNow(change->name);
      if (!status.ok()) {
        LOG(ERROR) << "model '" << base::Shorten(change->name) << "' was not "
                   << (change->load ? "loaded: " : "unloaded: ")
                   << status.message();
        absl::MutexLock lock(&mu_);
        ++counts_.failures;
      }
      change->done(status);
      continue;
    }
    Poll();
    next_poll = options_.clock->Now() + options_.poll_interval;
  }
}

void ModelControl::Poll() {
  const absl::StatusOr<std::vector<std::string>> names =
      repository_.ListModels();
  const absl::Status readable = names.ok() ? CheckFolder(*names)
                                           : names.status();
  if (!readable.ok()) {
    // Loaded models stay: the repository may become readable again.
    if (readable != poll_error_) {
      LOG(ERROR) << "the repository cannot be polled, models stay as they are: "
                 << readable.message();
    }
    poll_error_ = readable;
    return;
  }
  if (!poll_error_.ok()) LOG(INFO) << "the repository can be polled again";
  poll_error_ = absl::OkStatus();
  for (const std::string& name : *names) {
    Model& model = models_[name];
    // The configuration of the last Load() by request stays in force: a poll
    // must not undo it.
    const auto versions = Wanted(name, model.config);
    const auto traffic =
        versions.ok() ? Traffic(name, model.config, *versions)
                      : absl::StatusOr<std::vector<models::TrafficShare>>(
                            versions.status());
    // Polling leaves a model alone that was unloaded by request.
    if (!model.wanted ||
        (traffic.ok() && UpToDate(name, model, *versions, *traffic))) {
      continue;
    }
    // A failed version is tried again at each poll: its files may still be on
    // their way.
    const absl::Status status =
        versions.ok() ? LoadNow(name, model.config, true) : versions.status();
    if (!status.ok() && status != model.poll_error) {
      LOG(ERROR) << "model '" << name << "': " << status.message();
      absl::MutexLock lock(&mu_);
      ++counts_.failures;
    }
    model.poll_error = status;
  }
  std::vector<std::string> gone;
  for (const auto& [name, model] : models_) {
    if (std::find(names->begin(), names->end(), name) == names->end() &&
        !model.loaded.empty()) {
      gone.push_back(name);
    }
  }
  for (const std::string& name : gone) {
    LOG(INFO) << "model '" << name << "' has left the repository";
    UnloadNow(name).IgnoreError();  // cannot be NotFound
    models_[name].wanted = true;    // in case it returns
  }
}

std::pair<uint64_t, uint64_t> ModelControl::FolderNow() const {
  struct stat folder = {};
  stat(repository_.path().c_str(), &folder);
  return {folder.st_dev, folder.st_ino};
}

// An unmounted volume leaves an empty folder at its mount point. Without this
// check a poll would take that for the removal of all models.
absl::Status ModelControl::CheckFolder(
    const std::vector<std::string>& models) {
  const std::pair<uint64_t, uint64_t> folder = FolderNow();
  const bool serves =
      std::any_of(models_.begin(), models_.end(), [](const auto& entry) {
        return !entry.second.served.empty();
      });
  if (models.empty() && serves && folder != folder_) {
    return absl::UnavailableError(absl::StrCat(
        repository_.path(),
        " is empty, and is not the folder that the models came from; its "
        "volume may not be mounted"));
  }
  folder_ = folder;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> ModelControl::Wanted(
    const std::string& name, const std::string& config) const {
  REFRACT_ASSIGN_OR_RETURN(std::vector<int64_t> versions,
                           repository_.ListServedVersions(name, config));
  if (versions.empty()) {
    return absl::NotFoundError(
        absl::StrCat("model '", name, "' has no version to serve"));
  }
  return versions;
}

absl::StatusOr<std::vector<models::TrafficShare>> ModelControl::Traffic(
    const std::string& name, const std::string& config,
    const std::vector<int64_t>& wanted) const {
  std::vector<models::TrafficShare> traffic;
  if (!config.empty()) {
    REFRACT_ASSIGN_OR_RETURN(traffic, models::TrafficOfOverride(config, name));
  } else {
    REFRACT_ASSIGN_OR_RETURN(
        traffic, models::TrafficOfConfig(ConfigTextOf(name),
                                         absl::StrCat(repository_.path(), "/",
                                                      name, "/config.pbtxt")));
  }
  for (const models::TrafficShare& share : traffic) {
    if (std::find(wanted.begin(), wanted.end(), share.version) !=
        wanted.end()) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "traffic gives a share to version ", share.version,
        ", which is not among the versions that version_policy serves: ",
        absl::StrJoin(wanted, ", ")));
  }
  return traffic;
}

std::string ModelControl::ConfigTextOf(const std::string& name) const {
  std::ifstream config(std::filesystem::path(repository_.path()) / name /
                       "config.pbtxt");
  return std::string(std::istreambuf_iterator<char>(config), {});
}

std::string ModelControl::SettingsOf(const std::string& name,
                                     int64_t version) const {
  const std::filesystem::path folder =
      std::filesystem::path(repository_.path()) / name;
  // The settings that a loaded version depends on, and the time of its plan: a
  // version whose string differs from that of its load is loaded again.
  const std::string text = models::SettingsThatReload(ConfigTextOf(name));
  std::error_code none;
  const auto plan = std::filesystem::last_write_time(
      folder / std::to_string(version) / models::kSplitPlanFile, none);
  return absl::StrCat(text, "\n", none ? 0 : plan.time_since_epoch().count());
}

std::filesystem::path ModelControl::FolderOf(const std::string& name,
                                             int64_t version) const {
  return std::filesystem::path(repository_.path()) / name /
         std::to_string(version);
}

bool ModelControl::UpToDate(
    const std::string& name, const Model& model,
    const std::vector<int64_t>& wanted,
    const std::vector<models::TrafficShare>& traffic) const {
  if (model.traffic != traffic ||
      model.served != std::set<int64_t>(wanted.begin(), wanted.end())) {
    return false;
  }
  return std::all_of(wanted.begin(), wanted.end(), [&](int64_t version) {
    return model.loaded.at(version).settings == SettingsOf(name, version);
  });
}

absl::StatusOr<ModelControl::Version> ModelControl::LoadVersion(
    const std::string& name, int64_t version, const Model& model) {
  // A version without a plan would run as a whole here, and take the place of
  // versions that GPU nodes share. It waits for its plan instead.
  const bool planned = std::any_of(
      model.loaded.begin(), model.loaded.end(), [](const auto& entry) {
        return entry.second.model->model().plan.has_value();
      });
  const std::filesystem::path folder = FolderOf(name, version);
  const std::filesystem::path plan = folder / models::kSplitPlanFile;
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) {
    return absl::NotFoundError(
        absl::StrCat("the repository has no folder ", folder.string()));
  }
  if (planned && !std::filesystem::exists(plan, error)) {
    return absl::FailedPreconditionError(
        "the version has no split plan, and other versions of the model have "
        "one: run refract partition");
  }
  const absl::Time begin = options_.clock->Now();
  Version loaded{nullptr, SettingsOf(name, version)};
  ServedModelOptions options = options_.served;
  options.beside_requests = [this] { return !stopping(); };
  // Reading the files of a version to verify them may take minutes.
  const models::ScopedCopyProgress until_stop(
      [this](const auto&...) { return !stopping(); });
  const absl::Status adopted = base::WithinMemory([&]() -> absl::Status {
    REFRACT_ASSIGN_OR_RETURN(
        loaded.model, LoadServed(repository_, name, version, options));
    return engine_.Adopt(loaded.model);
  });
  if (!adopted.ok() && stopping()) {
    return absl::UnavailableError("the CPU node is stopping");
  }
  REFRACT_RETURN_IF_ERROR(adopted);
  // Requests must not reach a version before GPU nodes have accepted it: the
  // present version goes on answering meanwhile.
  const absl::Status ready = AwaitReady(*loaded.model);
  if (!ready.ok()) {
    engine_.Retire(std::move(loaded.model));
    return ready;
  }
  LOG(INFO) << LabelOf(name, version) << " was loaded in "
            << absl::FormatDuration(options_.clock->Now() - begin);
  absl::MutexLock lock(&mu_);
  ++counts_.loads;
  return loaded;
}

absl::Status ModelControl::AwaitReady(const ServedModel& model) const {
  constexpr absl::Duration kLook = absl::Milliseconds(5);
  const absl::Time give_up = options_.clock->Now() + options_.ready_timeout;
  while (true) {
    const absl::Status ready = engine_.ModelReady(model);
    if (ready.ok()) return ready;
    REFRACT_RETURN_IF_ERROR(engine_.FailedCheck(model));
    if (stopping()) return absl::UnavailableError("the CPU node is stopping");
    if (options_.clock->Now() >= give_up) {
      return absl::UnavailableError(absl::StrCat(
          "the version was not ready in ",
          absl::FormatDuration(options_.ready_timeout), ": ", ready.message()));
    }
    absl::SleepFor(kLook);
  }
}

absl::Status ModelControl::LoadNow(const std::string& name,
                                   const std::string& config, bool polled) {
  REFRACT_ASSIGN_OR_RETURN(const std::vector<int64_t> wanted,
                           Wanted(name, config));
  REFRACT_ASSIGN_OR_RETURN(const std::vector<models::TrafficShare> traffic,
                           Traffic(name, config, wanted));
  Model& model = models_[name];
  const std::set<int64_t> before = model.served;
  std::map<int64_t, Version> fresh;
  // `fresh`: versions loaded now, served only if the change takes place;
  // `next`: versions served afterwards.
  std::set<int64_t> next;
  absl::Status status;
  for (const int64_t version : wanted) {
    const auto loaded = model.loaded.find(version);
    absl::Status why;
    if (loaded != model.loaded.end() &&
        loaded->second.settings == SettingsOf(name, version)) {
      // Already in memory, but its GPU nodes may have left meanwhile.
      if (!before.contains(version)) why = AwaitReady(*loaded->second.model);
    } else {
      absl::StatusOr<Version> added = LoadVersion(name, version, model);
      why = added.status();
      if (added.ok()) fresh[version] = *std::move(added);
    }
    if (why.ok()) {
      // Only the deltas of served versions are followed.
      const bool added = fresh.contains(version);
      if (added || !before.contains(version)) {
        DeltaFeed* const deltas =
            (added ? fresh : model.loaded).at(version).model->deltas();
        if (deltas != nullptr) deltas->CatchUp();
      }
      next.insert(version);
      continue;
    }
    why = base::Annotate(why, LabelOf(name, version));
    if (!before.contains(version)) model.failed[version] = why;
    if (status.ok()) status = why;
  }
  // Versions that are gone have no state.
  std::erase_if(model.failed, [&](const auto& failed) {
    std::error_code error;
    return failed.first != 0 && !model.loaded.contains(failed.first) &&
           !std::filesystem::exists(FolderOf(name, failed.first), error);
  });
  // A poll repeats what the repository wants. A load by request that fails ends
  // with its answer: readiness and responses must not go by it.
  if (status.ok() || polled) model.aims = {wanted.begin(), wanted.end()};
  std::vector<std::shared_ptr<ServedModel>> replaced;
  if (status.ok() || (polled && !next.empty())) {
    // While a wanted version fails, the present versions stay, too.
    if (!status.ok()) next.insert(before.begin(), before.end());
    for (auto& [version, added] : fresh) {
      Version& place = model.loaded[version];
      if (place.model != nullptr) replaced.push_back(std::move(place.model));
      place = std::move(added);
    }
    // A poll tries a broken version again each time, and mostly changes nothing.
    const bool changed =
        !polled || !fresh.empty() || next != before || traffic != model.traffic;
    fresh.clear();
    model.failed.erase(0);
    for (const int64_t version : next) model.failed.erase(version);
    for (const int64_t version : before) {
      // Replaced versions stay in memory for a quick return, as many as
      // keep_versions; FreeOthers() frees the rest.
      if (!next.contains(version)) model.kept.push_back(version);
    }
    std::erase_if(model.kept,
                  [&](int64_t version) { return next.contains(version); });
    model.served = next;
    model.traffic = traffic;
    model.config = config;
    model.wanted = true;
    LOG_IF(INFO, changed)
        << "model '" << name << "': versions "
              << absl::StrJoin(next, ", ") << " are served"
              << (traffic.empty() ? "" : ", with shares ")
              << absl::StrJoin(
                     traffic, ", ",
                     [](std::string* out, const models::TrafficShare& share) {
                       absl::StrAppend(out, share.version, "=", share.share);
                     });
    absl::MutexLock lock(&mu_);
    if (changed) ++counts_.switches;
  }
  // One catalog swap: all new versions are ready.
  Publish();
  for (auto& [version, added] : fresh)
    // Versions of a change that failed are loaded, but not served.
    replaced.push_back(std::move(added.model));
  fresh.clear();
  // After Publish(), because Free() waits for the requests that still hold the
  // version.
  for (std::shared_ptr<ServedModel>& old : replaced) Free(std::move(old));
  FreeOthers(model);
  return status;
}

absl::Status ModelControl::UnloadNow(const std::string& name) {
  const auto found = models_.find(name);
  if (found == models_.end()) {
    return absl::NotFoundError(
        absl::StrCat("unknown model '", base::Shorten(name), "'"));
  }
  Model& model = found->second;
  // Every version gets an entry with a reason, for clients that ask for it.
  for (const auto& [version, served] : model.loaded) model.failed[version];
  for (auto& [version, why] : model.failed) {
    why = absl::UnavailableError("unloaded");
  }
  model.served.clear();
  model.aims.clear();
  model.traffic.clear();
  model.kept.clear();
  model.wanted = false;
  Publish();
  FreeOthers(model);
  LOG(INFO) << "model '" << name << "' is unloaded";
  return absl::OkStatus();
}

void ModelControl::Publish() {
  std::vector<Catalog::Entry> entries;
  for (const auto& [name, model] : models_) {
    const auto add = [&](int64_t version, std::shared_ptr<ServedModel> served,
                         const absl::Status& status) {
      const auto share = std::find_if(
          model.traffic.begin(), model.traffic.end(),
          [&](const models::TrafficShare& s) { return s.version == version; });
      entries.push_back({name, version, std::move(served), status,
                         share == model.traffic.end() ? 0 : share->share,
                         model.aims.contains(version)});
    };
    // Every version that this node knows has exactly one entry: served, kept in
    // memory, or failed with a reason.
    for (const auto& [version, served] : model.loaded) {
      if (model.served.contains(version)) {
        add(version, served.model, absl::OkStatus());
      } else if (!model.failed.contains(version)) {
        add(version, nullptr,
            absl::UnavailableError(
                "not served; kept in memory to go back to it"));
      }
    }
    for (const auto& [version, why] : model.failed) {
      if (!model.served.contains(version)) add(version, nullptr, why);
    }
  }
  engine_.Publish(std::move(entries));
}

void ModelControl::Free(std::shared_ptr<ServedModel> model) {
  const std::string label = LabelOf(model->name(), model->version());
  engine_.Retire(std::move(model));
  LOG(INFO) << label << " is freed";
  absl::MutexLock lock(&mu_);
  ++counts_.unloads;
}

void ModelControl::FreeOthers(Model& model) {
  while (model.kept.size() > options_.keep_versions) {
    model.kept.erase(model.kept.begin());
  }
  bool freed = false;
  for (auto it = model.loaded.begin(); it != model.loaded.end();) {
    const int64_t version = it->first;
    if (model.served.contains(version) ||
        std::find(model.kept.begin(), model.kept.end(), version) !=
            model.kept.end()) {
      ++it;
      continue;
    }
    Free(std::move(it->second.model));
    it = model.loaded.erase(it);
    freed = true;
  }
  // The published entries must not say any more that the versions are kept.
  if (freed) Publish();
}

}  // namespace refract::cpu_node
