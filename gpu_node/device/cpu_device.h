#ifndef REFRACT_GPU_NODE_DEVICE_CPU_DEVICE_H_
#define REFRACT_GPU_NODE_DEVICE_CPU_DEVICE_H_

// The CPU as a Device: each instance is a thread that runs Programs. Inputs are
// read where the transport has put them, so there is nothing to upload and an
// instance has one slot. The thread itself gathers the rows of merged requests,
// as it is the only core of the instance. Only the transport's work overlaps
// with execution, on the transport's threads.

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gpu_node/device/device.h"
#include "gpu_node/model/device_model.h"

namespace refract::gpu_node {

class CpuDevice final : public Device {
 public:
  struct Options {
    int instances = 1;  // ≥ 1
    // Bytes of weights that may be resident at once; 0: no limit. Weights are
    // mapped files: loading reads them once, so that they are in memory.
    size_t weight_memory = 0;
  };
  // The models of places 0, 1, …; a model must exist while it has its place.
  CpuDevice(const DeviceModels& models, const Options& options);
  // Call after the scheduler is destroyed.
  ~CpuDevice() override;

  const DeviceTraits& traits() const override { return traits_; }
  absl::StatusOr<std::optional<ModelOnDevice>> SetModel(
      size_t place, const DeviceModel* model) override;
  void Start(int instance, Done done) override;
  void Upload(int instance, int slot, Batch* batch, Done done) override;
  void Execute(int instance, int slot, Batch* batch, Done done) override;
  void Download(int instance, int slot, Batch* batch, Done done) override;
  void LoadWeights(size_t model, absl::Span<const size_t> evicted,
                   Done done) override;

 private:
  struct Execution {
    Batch* batch = nullptr;
    Done done;
  };
  struct Load {
    size_t model = 0;
    std::vector<size_t> evicted;
    Done done;
  };
  // A thread with room for one waiting task.
  template <typename Task>
  struct Worker {
    absl::Mutex mu;
    std::optional<Task> next ABSL_GUARDED_BY(mu);
    bool stop ABSL_GUARDED_BY(mu) = false;
    std::thread thread;

    bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
      return stop || next.has_value();
    }
    // Runs on the thread: hands each task to `work` until Stop().
    template <typename Work>
    void Run(const Work& work);
    void Post(Task task);
    // Executes the posted task before it stops.
    void Stop();
  };
  void RunInstance(Worker<Execution>& worker);
  const DeviceModel& At(size_t place) const;

  mutable absl::Mutex models_mu_;
  std::vector<const DeviceModel*> models_ ABSL_GUARDED_BY(models_mu_);
  const Options options_;
  const DeviceTraits traits_;
  std::vector<std::unique_ptr<Worker<Execution>>> workers_;  // one per instance
  Worker<Load> loader_;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_DEVICE_CPU_DEVICE_H_
