#ifndef REFRACT_GPU_NODE_DEVICE_CUDA_DEVICE_H_
#define REFRACT_GPU_NODE_DEVICE_CUDA_DEVICE_H_

// A GPU as a Device: each model is translated (runtime/cuda_plan) and loaded
// into every instance (runtime/cuda) with two slots, so that the inputs of the
// next batch are copied to the GPU while one computes. The rows of a batch are
// written side by side straight into pinned memory; a request with more rows
// than the largest bucket runs in several pieces. Requests that differ in other
// sizes than the batch have programs of their own (device_programs.h).
//
// One thread per device makes all calls of the GPU's runtime. It polls while
// any work is under way and sleeps otherwise.
//
// An error of the GPU ends the instance that met it, and fails its batches.
// Start() loads the instance again. After the loss of a GPU the first Start(),
// or LoadWeights() while no instance holds a batch, resets the GPU and loads
// all instances. Where LibTorch computes operators of some model, its own
// memory does not survive a reset: Start() then fails for good, and says that
// the process must be restarted.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gpu_node/device/device.h"
#include "gpu_node/model/device_model.h"
#include "runtime/cuda/instance/device_api.h"
#include "runtime/cuda_plan/translate.h"
#include "scheduling/execution_times.h"

namespace refract::gpu_node {

class CudaDevice final : public Device {
 public:
  struct Options {
    std::string name = "cuda:0";
    int instances = 1;  // ≥ 1
    // Rows of the largest bucket. ≥ 1.
    int64_t max_rows = 1024;
    // Device memory for all models together, over all instances; 0: all free
    // memory, and every model is loaded from the start. Bytes.
    size_t weight_memory = 0;
    // Scratch memory of matrix products per model and instance. Bytes.
    int64_t workspace_bytes = int64_t{32} << 20;
    // The largest value of sizes besides the batch, where a model declares
    // none; and what each instance of such a model reserves for it. ≥ 1; bytes.
    int64_t max_size = 1024;
    int64_t sized_memory = int64_t{256} << 20;
    // Operators without a kernel of ours; null: models with such are refused.
    std::shared_ptr<runtime::cuda_plan::ForeignOperators> foreign;
    // Time per model to measure it in Add(); zero: no measurement.
    absl::Duration warm_up = absl::Milliseconds(200);
    base::Clock* clock = &base::Clock::Real();
  };

  CudaDevice(std::unique_ptr<runtime::cuda::DeviceApi> api,
             const Options& options);
  // Call after the scheduler is destroyed.
  ~CudaDevice() override;

  // The result of Add().
  struct Loaded {
    runtime::cuda_plan::Precision precision{};
    // Over all instances: planned memory, and the drop of free memory while
    // graphs were captured (MemoryReport::captured_bytes).
    size_t device_bytes = 0;
    size_t captured_bytes = 0;
    size_t kernels = 0;  // per execution
    size_t foreign = 0;  // of these, LibTorch's, not in a graph
    // DevicePrograms::Describe().
    std::string sizes;
    scheduling::ExecutionTimes times;
    // Largest difference from the CPU's float32 results on generated inputs,
    // relative to the largest result; negative if no inputs could be generated.
    double error = -1;

    std::string Describe(const Options& options) const;  // for logs
  };
  // Translates `model`, loads it, compares it with the CPU and measures it.
  // Blocks; call before the scheduler starts. After an error nothing of the
  // model stays:
  //   Unimplemented       an operator, type or size that the GPU cannot do
  //   FailedPrecondition  its rows depend on each other, or results are wrong
  //   ResourceExhausted   names the model, the bytes needed and free
  absl::StatusOr<Loaded> Add(const DeviceModel& model);
  // Sets the models of the scheduler's places; all were added. Call once.
  void SetOrder(const DeviceModels& models);

  const DeviceTraits& traits() const override { return traits_; }
  // As Add(), on the device's thread: execution waits meanwhile.
  absl::StatusOr<std::optional<ModelOnDevice>> SetModel(
      size_t place, const DeviceModel* model) override;
  void Start(int instance, Done done) override;
  void Upload(int instance, int slot, Batch* batch, Done done) override;
  void Execute(int instance, int slot, Batch* batch, Done done) override;
  void Download(int instance, int slot, Batch* batch, Done done) override;
  void LoadWeights(size_t model, absl::Span<const size_t> evicted,
                   Done done) override;

 private:
  struct Entry;
  struct HeldBatch;
  struct Pending;

  // A command for the device's thread: a step of a batch, or `other`.
  struct Command {
    enum class Kind : uint8_t { kOther, kUpload, kExecute, kDownload };
    Kind kind = Kind::kOther;
    int instance = 0;
    int slot = 0;
    Batch* batch = nullptr;
    Done done;
    std::function<void()> other;
  };

  void Run();
  void Post(Command command);
  void Post(std::function<void()> other) {
    Post(Command{.other = std::move(other)});
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stop_ || !queue_.empty();
  }
  // Polls all pending steps; returns true if any step ended.
  bool Poll();

  // Runs on the device's thread.
  void Do(Command command);
  absl::StatusOr<Loaded> AddHere(const DeviceModel& model);
  absl::Status Measure(Entry& entry, Loaded& loaded);
  absl::Status StartHere(int instance);
  // Loads the resident models into an instance.
  absl::Status LoadResident(int instance);
  // Resets a lost GPU and loads the resident models into all instances.
  absl::Status ResetHere();
  absl::Status LoadHere(size_t model, const std::vector<size_t>& evicted);
  absl::Status UploadHere(int instance, HeldBatch& held, bool* waits);
  absl::Status ExecuteHere(int instance, HeldBatch& held, bool* waits);
  absl::Status FinishExecute(int instance, HeldBatch& held);
  void DownloadHere(int instance, HeldBatch& held);
  // Runs one member, whole or in pieces. Returns errors of the device alone.
  absl::Status RunAlone(int instance, HeldBatch& held, size_t member);
  // Calls `done`, then ends the instance and fails its batches.
  void Fail(int instance, const absl::Status& status, Done done);
  // Converts an error that ends the instance; notes a lost device.
  absl::Status Lost(const runtime::cuda::Status& status);
  absl::Status Lost(const absl::Status& status);
  HeldBatch& HeldAt(int instance, int slot);

  const Options options_;
  const DeviceTraits traits_;
  const std::unique_ptr<runtime::cuda::DeviceApi> api_;

  // Members of the device's thread.
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<Entry*> order_;
  std::vector<std::unique_ptr<HeldBatch>> held_;  // per instance and slot
  std::vector<Pending> pending_;
  // Scratch that is reused from one batch to the next.
  std::vector<int64_t> entries_taken_;
  std::vector<base::TensorView> results_;
  bool lost_ = false;
  bool uses_foreign_ = false;  // some model uses foreign operators

  absl::Mutex mu_;
  std::vector<Command> queue_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_DEVICE_CUDA_DEVICE_H_
