#include "gpu_node/cpu_device.h"

#include <utility>

#include "glog/logging.h"

namespace refract::gpu_node {

CpuDevice::CpuDevice(const DeviceModels* models, const Options& options)
    : models_(models),
      options_(options),
      traits_{.name = "cpu",
              .instances = options.instances,
              .slots = 1,
              .steps = true,
              .weight_memory = options.weight_memory} {
  for (int i = 0; i < options.instances; ++i) {
    Worker& worker = *workers_.emplace_back(std::make_unique<Worker>());
    worker.thread = std::thread([&worker] { worker.Run(); });
  }
  loader_.thread = std::thread([this] { loader_.Run(); });
}

CpuDevice::~CpuDevice() {
  const auto stop = [](Worker& worker) {
    {
      absl::MutexLock lock(&worker.mu);
      worker.stop = true;
    }
    worker.thread.join();
  };
  for (const auto& worker : workers_) stop(*worker);
  stop(loader_);
}

void CpuDevice::Worker::Run() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mu);
      mu.Await(absl::Condition(this, &Worker::Ready));
      if (next == nullptr) return;
      work = std::exchange(next, nullptr);
    }
    work();
  }
}

void CpuDevice::Worker::Post(std::function<void()> work) {
  absl::MutexLock lock(&mu);
  CHECK(next == nullptr) << "two executions on one instance";
  next = std::move(work);
}

void CpuDevice::Start(int, Done done) { done(absl::OkStatus()); }

void CpuDevice::Upload(int, int, Batch*, Done done) { done(absl::OkStatus()); }

void CpuDevice::Execute(int instance, int, Batch* batch, Done done) {
  Worker& worker = *workers_[instance];
  worker.Post([this, &worker, batch, done = std::move(done)] {
    (*models_)[batch->model].ExecuteBatch(*batch, options_.max_rows,
                                          worker.buffers);
    done(absl::OkStatus());
  });
}

void CpuDevice::Download(int, int, Batch*, Done done) {
  done(absl::OkStatus());
}

void CpuDevice::LoadWeights(size_t model, absl::Span<const size_t> evicted,
                            Done done) {
  std::vector<size_t> out(evicted.begin(), evicted.end());
  loader_.Post([this, model, out = std::move(out), done = std::move(done)] {
    for (const size_t i : out) (*models_)[i].DropWeights();
    (*models_)[model].ReadWeights();
    done(absl::OkStatus());
  });
}

}  // namespace refract::gpu_node
