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
#include <vector>

#include "absl/base/thread_annotations.h"
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
  // Of a model on a device that is not the CPU: its execution times and the
  // device memory that it takes, bytes.
  struct DeviceFacts {
    scheduling::ExecutionTimes times;
    size_t device_bytes = 0;
  };
  // Null: the CPU, where models are measured.
  std::function<DeviceFacts(const DeviceModel&)> facts;
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
  absl::Status OnAnnounced(
      const transport::RequestDescriptor& request) override;
  void OnRequest(std::unique_ptr<transport::ServerCall> call) override;
  void OnAbandoned(size_t model) override;
  void OnWithdrawn(size_t model) override;

  // Waits until every request that arrived is answered, or for `timeout`;
  // whether it is so. Call the transport's StopAdmitting() before.
  bool Drain(absl::Duration timeout) { return scheduler_->AwaitIdle(timeout); }

  const DeviceModels& models() const { return models_; }
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
  const ModelHistograms& histograms(size_t model) const {
    return scheduler_->histograms(model);
  }
  // Requests that wait or are executed.
  size_t pending() const { return scheduler_->pending(); }

 private:
  GpuNode(DeviceModels models, const GpuNodeOptions& options);
  void TellReadiness();
  // Why the node cannot serve the model at all.
  absl::Status CheckFits(const DeviceModel& model) const;
  // What the scheduler is to know of a model.
  ScheduledModel Describe(const DeviceModel& model) const;
  // Measures the models that have no times yet, on threads of their own.
  void StartWarmUps(std::vector<size_t> models);
  void AwaitWarmUps();
  void WarmUpSome();
  void WarmUpOne(size_t model);

  const GpuNodeOptions options_;
  DeviceModels models_;  // constant once the device is there
  base::LogLimiter refusal_log_;
  std::vector<bool> merges_;  // per model
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
  std::vector<size_t> unmeasured_;
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
