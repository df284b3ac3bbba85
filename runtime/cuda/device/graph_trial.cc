#include "runtime/cuda/device/graph_trial.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "runtime/cuda/device/cuda_status.h"

namespace refract::runtime::cuda {
namespace {

constexpr size_t kRounds = 15;
// By how much `these` have to beat `those`. What an event costs is in both.
constexpr float kMargin = 0.99f;

class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream) {}
  ~Timer() {
    for (cudaEvent_t event : {begin_, end_}) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  Status Open() {
    for (cudaEvent_t* event : {&begin_, &end_}) {
      REFRACT_CUDA_RETURN_IF_ERROR(
          FromCuda("cudaEventCreateWithFlags",
                   cudaEventCreateWithFlags(event, cudaEventDefault)));
    }
    return {};
  }

  // Milliseconds of all graphs, once: several in a row would tell how fast the
  // host launches short ones.
  Result<float> Time(const std::vector<cudaGraphExec_t>& graphs) {
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaEventRecord", cudaEventRecord(begin_, stream_)));
    for (cudaGraphExec_t graph : graphs) {
      REFRACT_CUDA_RETURN_IF_ERROR(
          FromCuda("cudaGraphLaunch", cudaGraphLaunch(graph, stream_)));
    }
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaEventRecord", cudaEventRecord(end_, stream_)));
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaEventSynchronize", cudaEventSynchronize(end_)));
    float took = 0.0f;
    REFRACT_CUDA_RETURN_IF_ERROR(FromCuda(
        "cudaEventElapsedTime", cudaEventElapsedTime(&took, begin_, end_)));
    return took;
  }

 private:
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

Result<bool> FasterGraphs(const std::vector<cudaGraphExec_t>& these,
                          const std::vector<cudaGraphExec_t>& those,
                          cudaStream_t stream) {
  const std::array<const std::vector<cudaGraphExec_t>*, 2> ways = {&these,
                                                                   &those};
  Timer timer(stream);
  REFRACT_CUDA_RETURN_IF_ERROR(timer.Open());
  for (const auto* graphs : ways) {
    // The first launch of a graph may be slower than all others.
    const Result<float> once = timer.Time(*graphs);
    if (!once.ok()) return once.status();
  }
  std::array<std::array<float, kRounds>, 2> took;
  for (size_t round = 0; round < kRounds; ++round) {
    for (size_t turn = 0; turn < 2; ++turn) {
      // Each is first in every other round.
      const size_t way = (round + turn) % 2;
      const Result<float> ms = timer.Time(*ways[way]);
      if (!ms.ok()) return ms.status();
      took[way][round] = *ms;
    }
  }
  for (auto& rounds : took) std::sort(rounds.begin(), rounds.end());
  return took[0][kRounds / 2] < kMargin * took[1][kRounds / 2];
}

}  // namespace refract::runtime::cuda
