#ifndef REFRACT_CPU_NODE_CONTROL_MODEL_CONTROL_H_
#define REFRACT_CPU_NODE_CONTROL_MODEL_CONTROL_H_

// Which versions a CPU node serves while it serves
// (docs/how-to/model_control.md): loads and unloads models by request or as the
// repository changes.

#include <cstddef>
#include <cstdint>
#include <deque>
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
  // Versions of each model that stay in memory when others take their place,
  // here and at the GPU nodes, so that the model can go back to them at once.
  size_t keep_versions = 1;
  // How long a new version may take to become ready at a GPU node; then the
  // load has failed.
  absl::Duration ready_timeout = absl::Seconds(60);
  ServedModelOptions served;
  base::Clock* clock = &base::Clock::Real();
};

// Changes are made one after the other by a thread of its own, of lower
// priority than those that serve. Thread-safe.
class ModelControl {
 public:
  // Runs on the control's thread, once; must not block.
  using Done = std::function<void(const absl::Status&)>;

  // `engine` serves models of `repository`, and outlives this.
  ModelControl(models::Repository repository, Engine* engine,
               const ModelControlOptions& options);
  // Stops.
  ~ModelControl() { Stop(); }

  // What has not begun is answered with Unavailable, and whatever comes. After
  // Engine::Stop(). May be called again.
  void Stop();

  // Loads the versions of `name` that version_policy allows and that are not in
  // memory, waits until they are ready, and then has them take the place of
  // the present ones. `config`: empty, or a model configuration as JSON whose
  // version_policy and traffic are used instead, until the next Load(); it may
  // have the name besides. On any error the present versions and shares stay.
  // `done` is given
  //   Unavailable         the mode is not explicit; not ready in time
  //   ResourceExhausted   too many changes wait
  //   NotFound            no such model or version
  //   InvalidArgument     of `config`; the version cannot be served
  void Load(std::string name, std::string config, Done done);
  // Ends `name`: requests under way end, its memory is freed.
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
    // What it was loaded with and may change on disk: config.pbtxt and plan.
    std::string settings;
  };
  // Versions of a model. The control's thread alone has them.
  struct Model {
    // In memory: served or kept.
    std::map<int64_t, Version> loaded;
    std::set<int64_t> served;
    std::vector<int64_t> kept;  // the latest last
    std::map<int64_t, absl::Status> failed;
    std::string config;      // of the last Load()
    std::set<int64_t> aims;  // versions that were to be served last
    std::vector<models::TrafficShare> traffic;  // by version; empty: no shares
    bool wanted = true;                         // polling looks at it
    absl::Status poll_error;                    // that was logged
  };

  void Run();
  void Submit(Change change);
  void Poll();
  absl::Status LoadNow(const std::string& name, const std::string& config,
                       bool polled);
  absl::Status UnloadNow(const std::string& name);
  // The versions that `config`, or the repository, says are to be served.
  absl::StatusOr<std::vector<int64_t>> Wanted(const std::string& name,
                                              const std::string& config) const;
  // The shares that `config`, or the repository, gives to versions.
  // InvalidArgument where one of them is not among `wanted`.
  absl::StatusOr<std::vector<models::TrafficShare>> Traffic(
      const std::string& name, const std::string& config,
      const std::vector<int64_t>& wanted) const;
  std::string ConfigTextOf(const std::string& name) const;
  std::string SettingsOf(const std::string& name, int64_t version) const;
  // Adopted by the engine and ready.
  absl::StatusOr<Version> LoadVersion(const std::string& name, int64_t version,
                                      const Model& model);
  absl::Status AwaitReady(const ServedModel& model) const;
  // Whether `wanted` is served, as it is on disk.
  bool UpToDate(const std::string& name, const Model& model,
                const std::vector<int64_t>& wanted,
                const std::vector<models::TrafficShare>& traffic) const;
  void Publish();
  // Frees versions that are neither served nor to be kept.
  void FreeOthers(Model& model);
  void Free(std::shared_ptr<ServedModel> model);
  bool stopping() const {
    absl::MutexLock lock(&mu_);
    return stop_;
  }

  const models::Repository repository_;
  Engine& engine_;
  const ModelControlOptions options_;
  std::map<std::string, Model> models_;  // the thread's
  absl::Status poll_error_;              // the thread's

  mutable absl::Mutex mu_;
  std::deque<Change> changes_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Counts counts_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace refract::cpu_node

#endif  // REFRACT_CPU_NODE_CONTROL_MODEL_CONTROL_H_
