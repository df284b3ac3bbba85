#ifndef REFRACT_GPU_NODE_GPU_NODE_H_
#define REFRACT_GPU_NODE_GPU_NODE_H_

// Everything of a GPU node (HN) but flags and signals: answers the offers of
// CNs, and has a Scheduler execute their requests on a Device.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log/log_limiter.h"
#include "gpu_node/device/device.h"
#include "gpu_node/model/device_model.h"
#include "gpu_node/scheduler/scheduler.h"
#include "scheduling/execution_times.h"
#include "transport/links/channel.h"

namespace refract::gpu_node {

struct GpuNodeOptions {
  // Requests executed at once, each on an own thread. 1 to 1024.
  int instances = 1;
  // Requests that wait for an instance; more are refused. ≥ 1.
  size_t max_queue = 256;
  // Batching window of models whose config.pbtxt has no dynamic_batching.
  // nullopt: their requests are executed alone. Zero: a request is merged with
  // requests that wait already.
  std::optional<absl::Duration> batching_window;
  // Rows of one execution; a request with more is executed in several steps,
  // or refused where rows depend on each other. ≥ 1.
  int64_t max_batch = 16384;
  // Weights that may be in device memory at once; 0: all. Bytes.
  size_t weight_memory = 0;
  // Time per model to measure it at load; zero: do not.
  absl::Duration warm_up = absl::Milliseconds(200);
  // Models measured at once; 0: one per CPU.
  int warm_up_threads = 0;
  // True: Create() returns at once, and each model becomes ready when it has
  // been measured. False: Create() returns when all have been.
  bool warm_up_in_background = false;
  // First and longest time until a failed instance is started again.
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration last_backoff = absl::Seconds(10);
  // SchedulerOptions::isolation.
  bool isolation = true;
  absl::Duration slow_after = absl::InfiniteDuration();  // the same
  base::Clock* clock = &base::Clock::Real();
  // Of a model on a device that is not the CPU.
  using DeviceFacts = ModelOnDevice;
  // Null: the CPU, where models are measured.
  std::function<DeviceFacts(const DeviceModel&)> facts;

  // Model control (docs/how-to/model_control.md). Loads a version that a CN
  // offers and that this node does not have. Null: the node keeps the models
  // that it was given.
  std::function<absl::StatusOr<std::unique_ptr<DeviceModel>>(
      const std::string& name, int64_t version)>
      load;
  // Names and versions that the node loads by itself, and keeps although no CN
  // offers them; asked for every `poll_interval`. Null: none.
  std::function<absl::StatusOr<std::vector<std::pair<std::string, int64_t>>>()>
      wanted;
  absl::Duration poll_interval = absl::Seconds(15);
  // How long a version stays that no CN offers any more because their
  // connections ended; withdrawn versions go at once.
  absl::Duration keep_unoffered = absl::Minutes(1);
  // How soon a version is looked for again that a CN offers and that was not in
  // the repository.
  absl::Duration retry_interval = absl::Seconds(1);
};

// Thread-safe. A transport::Server that uses it as its handler must be
// destroyed before it.
class GpuNode : public transport::Handler {
 public:
  // Makes the device, given the models in the order of their indexes.
  using MakeDevice =
      std::function<std::unique_ptr<Device>(const DeviceModels& models)>;

  // Measures the models and starts the instances. Models that were measured
  // before on such a machine are not measured again (measured_times.h).
  // InvalidArgument for options out of range. Models whose weights do not fit
  // into the device's memory, or that need larger batches than max_batch, are
  // left out, as those that fail to load. Without `make_device`: the CPU.
  static absl::StatusOr<std::unique_ptr<GpuNode>> Create(
      DeviceModels models, const GpuNodeOptions& options,
      const MakeDevice& make_device = nullptr);
  ~GpuNode() override;

  absl::StatusOr<size_t> OnOffer(const transport::ModelOffer& offer) override;
  void OnOfferEnd(size_t model, bool withdrawn) override;
  absl::Status OnAnnounced(
      const transport::RequestDescriptor& request) override;
  void OnRequest(std::unique_ptr<transport::ServerCall> call) override;
  void OnAbandoned(size_t model) override;
  void OnWithdrawn(size_t model) override;

  // Waits until every request that arrived is answered, or for `timeout`;
  // whether it is so. Call the transport's StopAdmitting() before.
  bool Drain(absl::Duration timeout) { return scheduler_->AwaitIdle(timeout); }

  // What is served now, by number, ordered by name and version.
  struct Served {
    size_t number = 0;
    std::shared_ptr<const DeviceModel> model;
  };
  std::vector<Served> served() const;
  const DeviceTraits& device() const { return device_->traits(); }
  // OK, or why a model cannot be executed now.
  absl::Status ModelReady(size_t model) const {
    return scheduler_->ModelReady(model);
  }

  // True: no model is ready from now on, so that CPU nodes send no more;
  // requests that still arrive are served. False: as before.
  void SetDrained(bool drained);
  bool drained() const { return drained_.load(std::memory_order_relaxed); }

  // `listener` is told of each model now, and later of each whose readiness may
  // have changed; never by two threads at once, so that what it was told last
  // is how things are. Must not block. Null: after this returns nobody is told.
  using ReadinessListener =
      std::function<void(size_t model, const absl::Status& ready)>;
  void WatchReadiness(ReadinessListener listener);

  // Of all models. Their sum is the number of requests that were answered.
  struct Stats {
    uint64_t succeeded = 0;
    uint64_t failed = 0;     // executed, but with an error
    uint64_t expired = 0;    // dropped in the queue
    uint64_t abandoned = 0;  // not executed: nobody waited any more
    // Predicted to be too late, the queue was full, or too many rows.
    uint64_t refused = 0;
    uint64_t unavailable = 0;  // no instance, or lost with one, or stopping
  };
  Stats stats() const;
  ModelStats stats(size_t model) const { return scheduler_->stats(model); }
  // Null: it was unloaded.
  std::shared_ptr<const ModelHistograms> histograms(size_t model) const {
    return scheduler_->histograms(model);
  }
  // Versions that were loaded, failed to load and were unloaded since the
  // start.
  struct Changes {
    uint64_t loads = 0;
    uint64_t failures = 0;
    uint64_t unloads = 0;
  };
  Changes changes() const;
  // Requests that wait or are executed.
  size_t pending() const { return scheduler_->pending(); }

 private:
  GpuNode(DeviceModels models, const GpuNodeOptions& options);
  void TellReadiness();
  // Why the node cannot serve the model at all.
  absl::Status CheckFits(const DeviceModel& model, size_t device_bytes) const;
  // What the scheduler is to know of a model. `facts`: what its device
  // measured.
  ScheduledModel Describe(const DeviceModel& model,
                          const std::optional<ModelOnDevice>& facts) const;
  // Measures the models that have no times yet, on threads of their own.
  void StartWarmUps(std::vector<Served> models);
  void AwaitWarmUps();
  void WarmUpSome();
  // Measures the model and keeps what was measured.
  scheduling::ExecutionTimes Measure(const DeviceModel& model) const;

  // ---- gpu_node_models.cc: versions that come and go.

  // A version that is served, is being loaded, or could not be loaded.
  struct Version {
    std::string name;
    int64_t version = 0;
    // Null: not loaded. Shared with requests that have just arrived.
    std::shared_ptr<const DeviceModel> model;
    bool merges = false;
    // What it was loaded for; nullopt: loaded by the node itself.
    std::optional<transport::ModelOffer> offer;
    int offers = 0;          // of connections
    bool withdrawn = false;  // the last offer was
    bool ever_offered = false;
    absl::Time unoffered_since = absl::InfinitePast();
    // When to load it (again); InfiniteFuture: it is loaded, or for good.
    absl::Time load_at = absl::InfiniteFuture();
  };
  Version* Find(size_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_mu_);
  // What a request needs of its version. Null: it was unloaded.
  std::shared_ptr<const DeviceModel> ModelOf(size_t number, bool* merges) const;
  // The version that is to be loaded, of no number of the map before.
  absl::StatusOr<size_t> AddVersion(Version version);
  void KeepModels();
  // One step of it; when the next one is due.
  absl::Time KeepModelsOnce();
  void Poll();
  void LoadVersion(size_t number);
  void UnloadVersion(size_t number);
  // As they are now, of another version that is computed alike.
  std::optional<scheduling::ExecutionTimes> TimesOfOther(
      const DeviceModel& model) const;
  bool Wanted(const Version& version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_mu_);

  const GpuNodeOptions options_;
  DeviceModels models_;  // reasons alone once the device is there
  base::LogLimiter refusal_log_;
  // Held while an offer is answered: before models_mu_.
  absl::Mutex offers_mu_ ABSL_ACQUIRED_BEFORE(models_mu_);
  mutable absl::Mutex models_mu_;
  // By the scheduler's number.
  absl::flat_hash_map<size_t, Version> versions_ ABSL_GUARDED_BY(models_mu_);
  absl::flat_hash_set<std::pair<std::string, int64_t>> wanted_
      ABSL_GUARDED_BY(models_mu_);
  absl::Time next_poll_ ABSL_GUARDED_BY(models_mu_) = absl::InfiniteFuture();
  bool changed_ ABSL_GUARDED_BY(models_mu_) = false;
  bool stop_keeper_ ABSL_GUARDED_BY(models_mu_) = false;
  Changes changes_ ABSL_GUARDED_BY(models_mu_);
  ModelStats unloaded_ ABSL_GUARDED_BY(models_mu_);  // sums of unloaded ones
  std::thread keeper_;
  // Held while the listener is called: it is quick, and calls are in order.
  absl::Mutex readiness_mu_;
  ReadinessListener readiness_listener_ ABSL_GUARDED_BY(readiness_mu_);
  std::atomic<bool> drained_ = false;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Scheduler> scheduler_;
  std::thread timers_;

  const std::string machine_;
  // Constant while warm_ups_ run: the newest version of each model, then all
  // older ones.
  std::vector<Served> unmeasured_;
  size_t num_newest_ = 0;
  std::atomic<size_t> next_unmeasured_ = 0;
  std::atomic<size_t> newest_left_ = 0;  // that are not measured yet
  std::atomic<bool> stop_warm_ups_ = false;
  std::vector<std::thread> warm_ups_;
};

// One line of sums for logs.
std::string Summary(const ModelStats& stats);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_GPU_NODE_H_
