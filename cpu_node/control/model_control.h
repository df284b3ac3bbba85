#ifndef REFRACT_CPU_NODE_CONTROL_MODEL_CONTROL_H_
#define REFRACT_CPU_NODE_CONTROL_MODEL_CONTROL_H_

// Changes which versions a CPU node serves, while it serves
// (docs/how-to/model_control.md): loads and unloads models by request or as the
// repository changes.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cpu_node/catalog.h"
#include "cpu_node/engine.h"
#include "models/repository/check_settings.h"
#include "models/repository/repository.h"

namespace refract::cpu_node {

struct ModelControlOptions {
  bool by_request = false;  // Load() and Unload() are allowed
  bool poll = false;
  absl::Duration poll_interval = absl::Seconds(15);
  // Versions of each model that stay in memory after others replace them, here
  // and at the GPU nodes, so that the model can return to them without a load.
  size_t keep_versions = 1;
  // Time for a new version to become ready at a GPU node. After it the load has
  // failed.
  absl::Duration ready_timeout = absl::Seconds(60);
  ServedModelOptions served;
  base::Clock* clock = &base::Clock::Real();
};

// Makes changes one after the other on its own thread, at a lower priority than
// serving threads. Thread-safe.
class ModelControl {
 public:
  // Called once, on the control's thread; must not block.
  using Done = std::function<void(const absl::Status&)>;

  // `engine` serves the models of `repository` and must outlive this object.
  ModelControl(models::Repository repository, Engine* engine,
               const ModelControlOptions& options);
  // Calls Stop().
  ~ModelControl() { Stop(); }

  // Answers waiting and later changes with Unavailable. Call after
  // Engine::Stop(). May be called again.
  void Stop();

  // Loads the versions of `name` that version_policy allows and that are not in
  // memory, waits until they are ready, and replaces the present versions by
  // them. `config`: empty, or a model configuration as JSON whose
  // version_policy and traffic hold until the next Load(); of other fields only
  // `name` is allowed. On any error the present versions and shares stay.
  // `done` gets
  //   Unavailable         the mode is not explicit; not ready in time
  //   ResourceExhausted   too many changes wait
  //   NotFound            no such model or version
  //   InvalidArgument     of `config`; the version cannot be served
  void Load(std::string name, std::string config, Done done);
  // Unloads `name`: waits for its requests under way, then frees its memory.
  void Unload(std::string name, Done done);

  bool by_request() const { return options_.by_request; }

  struct Counts {
    uint64_t loads = 0;     // versions that were loaded
    uint64_t failures = 0;  // changes of a model that failed
    uint64_t unloads = 0;   // versions that were freed
    uint64_t switches = 0;  // changes of the served versions
  };
  Counts counts() const;

 private:
  struct Change {
    std::string name;
    std::string config;
    bool load = true;
    Done done;
  };
  struct Version {
    std::shared_ptr<ServedModel> model;
    // config.pbtxt and plan at the load; both may change on disk.
    std::string settings;
  };
  // Versions of a model. Used by the control's thread only.
  struct Model {
    // Versions in memory: served or kept.
    std::map<int64_t, Version> loaded;
    std::set<int64_t> served;
    std::vector<int64_t> kept;  // the newest at the back
    std::map<int64_t, absl::Status> failed;
    std::string config;      // of the last Load()
    std::set<int64_t> aims;  // versions that the last change wanted
    std::vector<models::TrafficShare> traffic;  // by version; empty: no shares
    bool wanted = true;                         // false: polling skips it
    absl::Status poll_error;                    // last logged error
  };

  void Run();
  void Submit(Change change);
  void Poll();
  // Unavailable: no model is left in the repository, whose folder is another
  // folder than before. Otherwise takes note of the folder.
  absl::Status CheckFolder(const std::vector<std::string>& models);
  // Device and inode of the repository.
  std::pair<uint64_t, uint64_t> FolderNow() const;
  absl::Status LoadNow(const std::string& name, const std::string& config,
                       bool polled);
  absl::Status UnloadNow(const std::string& name);
  // The versions that `config`, or else the repository, wants served.
  absl::StatusOr<std::vector<int64_t>> Wanted(const std::string& name,
                                              const std::string& config) const;
  // The shares that `config`, or else the repository, gives to versions.
  // InvalidArgument: a version with a share is not among `wanted`.
  absl::StatusOr<std::vector<models::TrafficShare>> Traffic(
      const std::string& name, const std::string& config,
      const std::vector<int64_t>& wanted) const;
  std::string ConfigTextOf(const std::string& name) const;
  std::string SettingsOf(const std::string& name, int64_t version) const;
  std::filesystem::path FolderOf(const std::string& name,
                                 int64_t version) const;
  // Loads a version, has the engine adopt it, and waits until it is ready.
  absl::StatusOr<Version> LoadVersion(const std::string& name, int64_t version,
                                      const Model& model);
  absl::Status AwaitReady(const ServedModel& model) const;
  // Whether `wanted` is served with the settings that are on disk now.
  bool UpToDate(const std::string& name, const Model& model,
                const std::vector<int64_t>& wanted,
                const std::vector<models::TrafficShare>& traffic) const;
  void Publish();
  // Frees versions that are neither served nor kept.
  void FreeOthers(Model& model);
  void Free(std::shared_ptr<ServedModel> model);
  bool stopping() const {
    absl::MutexLock lock(&mu_);
    return stop_;
  }

  const models::Repository repository_;
  Engine& engine_;
  const ModelControlOptions options_;
  std::map<std::string, Model> models_;  // of the control's thread
  absl::Status poll_error_;              // of the control's thread
  std::pair<uint64_t, uint64_t> folder_;  // FolderNow() at the last poll

  mutable absl::Mutex mu_;
  std::deque<Change> changes_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Counts counts_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_CONTROL_MODEL_CONTROL_H_
