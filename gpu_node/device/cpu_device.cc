#include "gpu_node/device/cpu_device.h"

#include <utility>

#include "glog/logging.h"

namespace refract::gpu_node {

CpuDevice::CpuDevice(const DeviceModels& models, const Options& options)
    : options_(options),
      traits_{.name = "cpu",
              .instances = options.instances,
              .slots = 1,
              .steps = true,
              .weight_memory = options.weight_memory} {
  for (size_t i = 0; i < models.size(); ++i) models_.push_back(&models[i]);
  for (int i = 0; i < options.instances; ++i) {
    auto& worker =
        *workers_.emplace_back(std::make_unique<Worker<Execution>>());
    worker.thread = std::thread([this, &worker] { RunInstance(worker); });
  }
  // Weights are pages of mapped files: the loader drops the pages of evicted
  // models and reads the new model's pages, on a thread of its own, because
  // executions go on meanwhile.
  loader_.thread = std::thread([this] {
    loader_.Run([this](const Load& load) {
      for (const size_t i : load.evicted) At(i).DropWeights();
      At(load.model).ReadWeights();
      load.done(absl::OkStatus());
    });
  });
}

absl::StatusOr<std::optional<ModelOnDevice>> CpuDevice::SetModel(
    size_t place, const DeviceModel* model) {
  absl::MutexLock lock(&models_mu_);
  if (place >= models_.size()) models_.resize(place + 1);
  models_[place] = model;
  return std::nullopt;
}

const DeviceModel& CpuDevice::At(size_t place) const {
  absl::ReaderMutexLock lock(&models_mu_);
  return *models_[place];
}

CpuDevice::~CpuDevice() {
  for (const auto& worker : workers_) worker->Stop();
  loader_.Stop();
}

template <typename Task>
template <typename Work>
void CpuDevice::Worker<Task>::Run(const Work& work) {
  while (true) {
    Task task;
    {
      absl::MutexLock lock(&mu);
      mu.Await(absl::Condition(this, &Worker::Ready));
      if (!next.has_value()) return;
      task = *std::exchange(next, std::nullopt);
    }
    work(task);
  }
}

template <typename Task>
void CpuDevice::Worker<Task>::Post(Task task) {
  absl::MutexLock lock(&mu);
  CHECK(!next.has_value()) << "two executions on one instance";
  next = std::move(task);
}

template <typename Task>
void CpuDevice::Worker<Task>::Stop() {
  {
    absl::MutexLock lock(&mu);
    stop = true;
  }
  thread.join();
}

void CpuDevice::RunInstance(Worker<Execution>& worker) {
  runtime::RowBuffers buffers;  // of the thread
  worker.Run([&](const Execution& execution) {
    Batch& batch = *execution.batch;
    At(batch.model).ExecuteBatch(batch, buffers);
    execution.done(absl::OkStatus());
  });
}

void CpuDevice::Start(int, Done done) { done(absl::OkStatus()); }

void CpuDevice::Upload(int, int, Batch*, Done done) { done(absl::OkStatus()); }

void CpuDevice::Execute(int instance, int, Batch* batch, Done done) {
  workers_[instance]->Post({batch, std::move(done)});
}

void CpuDevice::Download(int, int, Batch*, Done done) {
  done(absl::OkStatus());
}

void CpuDevice::LoadWeights(size_t model, absl::Span<const size_t> evicted,
                            Done done) {
  loader_.Post({model, {evicted.begin(), evicted.end()}, std::move(done)});
}

}  // namespace refract::gpu_node
