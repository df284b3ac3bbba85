#ifndef REFRACT_GPU_NODE_GPU_NODE_H_
#define REFRACT_GPU_NODE_GPU_NODE_H_

// A GPU node (HN) without flags and signals: answers the offers of CNs, and has
// a Scheduler execute their requests on a Device.

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
  // Requests executed at once, each on its own thread. 1 to 1024.
  int instances = 1;
  // Requests that may wait for an instance; further requests are refused. ≥ 1.
  size_t max_queue = 256;
  // Batching window of models whose config.pbtxt has no dynamic_batching.
  // nullopt: their requests are executed alone. Zero: a request is merged with
  // requests that wait already.
  std::optional<absl::Duration> batching_window;
  // Rows of one execution; a longer request is executed in several steps, or
  // refused where rows depend on each other. ≥ 1.
  int64_t max_batch = 16384;
  // Weights that may be in device memory at once; 0: all. Bytes.
  size_t weight_memory = 0;
  // Time per model to measure it at load; zero: no measurement.
  absl::Duration warm_up = absl::Milliseconds(200);
  // Models measured at once; 0: one per CPU.
  int warm_up_threads = 0;
  // True: Create() returns at once, and each model becomes ready when it has
  // been measured. False: Create() returns when all models have been measured.
  bool warm_up_in_background = false;
  // First and longest pause before a failed instance is started again.
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration last_backoff = absl::Seconds(10);
  // SchedulerOptions::isolation.
  bool isolation = true;
  absl::Duration slow_after = absl::InfiniteDuration();  // the same
  base::Clock* clock = &base::Clock::Real();
  // Measurements of a model by a device other than the CPU.
  using DeviceFacts = ModelOnDevice;
  // Null: the CPU, where models are measured.
  std::function<DeviceFacts(const DeviceModel&)> facts;

  // Model control (docs/how-to/model_control.md): loads a version that a CN
  // offers and that this node does not have. Null: the node serves only the
  // models it was given.
  std::function<absl::StatusOr<std::unique_ptr<DeviceModel>>(
      const std::string& name, int64_t version)>
      load;
  // Names and versions that the node loads by itself, and keeps although no CN
  // offers them; called every `poll_interval`. Null: no such versions.
  std::function<absl::StatusOr<std::vector<std::pair<std::string, int64_t>>>()>
      wanted;
  absl::Duration poll_interval = absl::Seconds(15);
  // Time that a version stays after the connections that offered it ended;
  // withdrawn versions go at once.
  absl::Duration keep_unoffered = absl::Minutes(1);
  // Interval of looking for an offered version that was not in the
  // repository.
  absl::Duration retry_interval = absl::Seconds(1);
};

// Thread-safe. The transport::Server that uses it as its handler must be
// destroyed first.
class GpuNode : public transport::Handler {
 public:
  // Makes the device, given the models in the order of their indexes.
  using MakeDevice =
      std::function<std::unique_ptr<Device>(const DeviceModels& models)>;

  // Measures the models and starts the instances. Models that were measured
  // before on such a machine are not measured again (measured_times.h).
  // InvalidArgument for options out of range. Models whose weights do not fit
  // into the device's memory, or that need larger batches than max_batch, are
  // left out like models that fail to load. Without `make_device`: the CPU.
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

  // Waits until all requests are answered, but at most `timeout`; returns
  // whether all were. Call the transport's StopAdmitting() before.
  bool Drain(absl::Duration timeout) { return scheduler_->AwaitIdle(timeout); }

  // The served models by number, ordered by name and version.
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

  // True: no model is ready from now on, so that CPU nodes stop sending;
  // requests that still arrive are served. False: ends that.
  void SetDrained(bool drained);
  bool drained() const { return drained_.load(std::memory_order_relaxed); }

  // Calls `listener` for each model now, and later for models whose readiness
  // may have changed; never on two threads at once, so that the last call has
  // the present state. Must not block. Null: no calls after this returns.
  using ReadinessListener =
      std::function<void(size_t model, const absl::Status& ready)>;
  void WatchReadiness(ReadinessListener listener);

  // Over all models. Their sum is the number of answered requests.
  struct Stats {
    uint64_t succeeded = 0;
    uint64_t failed = 0;     // executed, but with an error
    uint64_t expired = 0;    // dropped in the queue
    uint64_t abandoned = 0;  // not executed: the client had given up
    // Predicted to be too late, queue full, or too many rows.
    uint64_t refused = 0;
    uint64_t unavailable = 0;  // no instance, instance lost, or stopping
  };
  Stats stats() const;
  ModelStats stats(size_t model) const { return scheduler_->stats(model); }
  // Null: the model was unloaded.
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
  // Requests that wait or are being executed.
  size_t pending() const { return scheduler_->pending(); }

 private:
  GpuNode(DeviceModels models, const GpuNodeOptions& options);
  void TellReadiness();
  // Why the node cannot serve the model at all.
  absl::Status CheckFits(const DeviceModel& model, size_t device_bytes) const;
  // The scheduler's description of a model. `facts`: the device's
  // measurements.
  ScheduledModel Describe(const DeviceModel& model,
                          const std::optional<ModelOnDevice>& facts) const;
  // Measures the models that have no times yet, on threads of its own.
  void StartWarmUps(std::vector<Served> models);
  void AwaitWarmUps();
  void WarmUpSome();
  // Measures the model and stores the times.
  scheduling::ExecutionTimes Measure(const DeviceModel& model) const;

  // ---- gpu_node_models.cc: loading and unloading versions.

  // A version that is served, being loaded, or failed to load.
  struct Version {
    std::string name;
    int64_t version = 0;
    // Null: not loaded. Shared with requests that have just arrived.
    std::shared_ptr<const DeviceModel> model;
    bool merges = false;
    // The offer it was loaded for; nullopt: the node loaded it by itself.
    std::optional<transport::ModelOffer> offer;
    int offers = 0;          // number of connections that offer it
    bool withdrawn = false;  // the last offer was withdrawn
    bool ever_offered = false;
    absl::Time unoffered_since = absl::InfinitePast();
    // Time of the next load; InfiniteFuture: it is loaded, or failed for good.
    absl::Time load_at = absl::InfiniteFuture();
  };
  Version* Find(size_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_mu_);
  // The model of a version, and whether it merges requests. Null: unloaded.
  std::shared_ptr<const DeviceModel> ModelOf(size_t number, bool* merges) const;
  // Adds the version under a new number.
  absl::StatusOr<size_t> AddVersion(Version version);
  void KeepModels();
  // One round of loads and unloads; returns when the next round is due.
  absl::Time KeepModelsOnce();
  void Poll();
  void LoadVersion(size_t number);
  void UnloadVersion(size_t number);
  // Present times of another version of the model that computes the same way.
  std::optional<scheduling::ExecutionTimes> TimesOfOther(
      const DeviceModel& model) const;
  bool Wanted(const Version& version) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_mu_);

  const GpuNodeOptions options_;
  DeviceModels models_;  // only its reasons are used after the device exists
  base::LogLimiter refusal_log_;
  // Held while an offer is answered. Taken before models_mu_.
  absl::Mutex offers_mu_ ABSL_ACQUIRED_BEFORE(models_mu_);
  mutable absl::Mutex models_mu_;
  // Key: the scheduler's number.
  absl::flat_hash_map<size_t, Version> versions_ ABSL_GUARDED_BY(models_mu_);
  absl::flat_hash_set<std::pair<std::string, int64_t>> wanted_
      ABSL_GUARDED_BY(models_mu_);
  absl::Time next_poll_ ABSL_GUARDED_BY(models_mu_) = absl::InfiniteFuture();
  bool changed_ ABSL_GUARDED_BY(models_mu_) = false;
  bool stop_keeper_ ABSL_GUARDED_BY(models_mu_) = false;
  Changes changes_ ABSL_GUARDED_BY(models_mu_);
  ModelStats unloaded_ ABSL_GUARDED_BY(models_mu_);  // sums of unloaded ones
  absl::Status poll_error_;  // of the last poll; used by keeper_ only
  std::thread keeper_;
  // Held while the listener is called, so that its calls are in order.
  absl::Mutex readiness_mu_;
  ReadinessListener readiness_listener_ ABSL_GUARDED_BY(readiness_mu_);
  std::atomic<bool> drained_ = false;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Scheduler> scheduler_;
  std::thread timers_;

  const std::string machine_;
  // Constant while warm_ups_ run: the newest version of each model, then all
  // older versions.
  std::vector<Served> unmeasured_;
  size_t num_newest_ = 0;
  std::atomic<size_t> next_unmeasured_ = 0;
  std::atomic<size_t> newest_left_ = 0;  // newest versions not yet measured
  std::atomic<bool> stop_warm_ups_ = false;
  std::vector<std::thread> warm_ups_;
};

// The sums on one line, for logs.
std::string Summary(const ModelStats& stats);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_GPU_NODE_H_
