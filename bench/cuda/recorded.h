#ifndef REFRACT_BENCH_CUDA_RECORDED_H_
#define REFRACT_BENCH_CUDA_RECORDED_H_

// Launches that are measured again and again.

#include <functional>
#include <utility>

#include "bench/cuda/measure.h"
#include "runtime/cuda/device/cuda_device.h"

namespace refract::bench {

// What `launches` gives to `stream`: as a graph, or, where those are switched
// off, as it is each time.
class Recorded {
 public:
  Recorded(runtime::cuda::CudaDevice& device, runtime::cuda::Stream stream,
           std::function<void()> launches)
      : device_(device), stream_(stream), launches_(std::move(launches)) {
    if (!device_.can_capture()) return;
    Must(device_.BeginCapture(stream_));
    launches_();
    graph_ = Must(device_.EndCapture(stream_));
  }
  ~Recorded() {
    if (device_.can_capture()) (void)device_.DestroyGraph(graph_);
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  void Launch() const {
    if (!device_.can_capture()) return launches_();
    Must(device_.Launch(graph_, stream_));
  }

 private:
  runtime::cuda::CudaDevice& device_;
  const runtime::cuda::Stream stream_;
  const std::function<void()> launches_;
  runtime::cuda::Graph graph_;
};

}  // namespace refract::bench

#endif  // REFRACT_BENCH_CUDA_RECORDED_H_
