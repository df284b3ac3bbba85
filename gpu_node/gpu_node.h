#ifndef REFRACT_GPU_NODE_GPU_NODE_H_
#define REFRACT_GPU_NODE_GPU_NODE_H_

// Everything of a GPU node (HN) but flags and signals: answers the offers of
// CNs, queues their requests and executes them.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log_limiter.h"
#include "gpu_node/device_model.h"
#include "gpu_node/ready_queue.h"
#include "transport/channel.h"

namespace refract::gpu_node {

struct GpuNodeOptions {
  // Requests executed at once, each on an own thread. ≥ 1.
  int instances = 1;
  // Requests that wait for an instance; more are refused. ≥ 1.
  size_t max_queue = 256;
  base::Clock* clock = &base::Clock::Real();
};

// Thread-safe. A transport::Server that uses it as its handler must be
// destroyed before it.
class GpuNode : public transport::Handler {
 public:
  // Starts the instances. InvalidArgument for options out of range.
  static absl::StatusOr<std::unique_ptr<GpuNode>> Create(
      DeviceModels models, const GpuNodeOptions& options);
  ~GpuNode() override;

  absl::StatusOr<size_t> OnOffer(const transport::ModelOffer& offer) override;
  void OnRequest(std::unique_ptr<transport::ServerCall> call) override;

  // Waits until every request that arrived is answered, or for `timeout`;
  // whether it is so. Call the transport's StopAdmitting() before.
  bool Drain(absl::Duration timeout) { return queue_.AwaitIdle(timeout); }

  const DeviceModels& models() const { return models_; }

  struct Stats {
    uint64_t succeeded = 0;
    uint64_t failed = 0;   // executed, but with an error
    uint64_t expired = 0;  // dropped in the queue
  };
  Stats stats() const;

 private:
  GpuNode(DeviceModels models, const GpuNodeOptions& options);
  void RunInstance();

  const DeviceModels models_;
  ReadyQueue queue_;
  base::LogLimiter failure_log_;
  base::LogLimiter refusal_log_;
  std::atomic<uint64_t> succeeded_ = 0;
  std::atomic<uint64_t> failed_ = 0;
  std::vector<std::thread> instances_;
};

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_GPU_NODE_H_
