#include "runtime/cuda/gemm_trial.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/cuda/cuda_status.h"

namespace refract::runtime::cuda {
namespace {

constexpr int kRounds = 3;
// What runs between two events should take, so that what an event costs does
// not count.
constexpr float kRoundMs = 0.2f;
// Launches in a graph: so many that the start of a replay does not count. Fewer
// of products that take long.
constexpr int kMostNodes = 24;
constexpr int kMostReplays = 4;
// Without graphs.
constexpr int kMostLaunches = 10;
// By how much a candidate has to beat the heuristics' first choice.
constexpr float kMargin = 0.97f;
// How much slower than the fastest a first run may be for a second look.
constexpr float kHopeless = 4.0f;
// Bytes of operands: 0.0115 in float32 and bfloat16, 1.06 in float16. Zeros
// would run at higher clocks than numbers do.
constexpr int kFill = 0x3C;

struct DestroyGraph {
  void operator()(cudaGraphExec_t graph) const {
    (void)cudaGraphExecDestroy(graph);
  }
};
using ReadyGraph =
    std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph>;

// Memory, stream and events of a trial.
class Bench {
 public:
  ~Bench() {
    if (stream_ != nullptr) (void)cudaStreamSynchronize(stream_);
    for (cudaEvent_t event : {begin_, end_}) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
    if (memory_ != nullptr) (void)cudaFree(memory_);
  }

  // False: there is no memory.
  Result<bool> Open(const GemmShape& shape, int64_t workspace_bytes) {
    const int64_t size = SizeOf(shape.dtype);
    const auto align = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    const int64_t in = align(shape.m * shape.ld_in * size);
    const int64_t weight = align(shape.n * shape.ld_weight * size);
    const int64_t bias = align(shape.n * size);
    const int64_t out = align(shape.m * shape.ld_out * size);
    const int64_t bytes = in + weight + bias + out + align(workspace_bytes);
    const cudaError_t error = cudaMalloc(&memory_, static_cast<size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
      memory_ = nullptr;
      (void)cudaGetLastError();
      return false;
    }
    REFRACT_CUDA_RETURN_IF_ERROR(FromCuda("cudaMalloc", error));
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaStreamCreateWithFlags",
                 cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)));
    for (cudaEvent_t* event : {&begin_, &end_}) {
      REFRACT_CUDA_RETURN_IF_ERROR(
          FromCuda("cudaEventCreateWithFlags",
                   cudaEventCreateWithFlags(event, cudaEventDefault)));
    }
    REFRACT_CUDA_RETURN_IF_ERROR(FromCuda(
        "cudaMemsetAsync",
        cudaMemsetAsync(memory_, kFill, static_cast<size_t>(bytes), stream_)));
    auto* const base = static_cast<std::byte*>(memory_);
    call_.shape = shape;
    call_.in = base;
    call_.weight = base + in;
    const bool has_bias =
        shape.epilogue != Epilogue::kNone && shape.epilogue != Epilogue::kRelu;
    call_.bias = has_bias ? base + in + weight : nullptr;
    call_.out = base + in + weight + bias;
    call_.workspace = base + in + weight + bias + out;
    call_.workspace_bytes = workspace_bytes;
    return true;
  }

  // Milliseconds of one launch, of `launches` in a row.
  Result<float> Time(int candidate, int launches, const TrialLaunch& launch) {
    return Between(launches, [&]() -> Status {
      for (int i = 0; i < launches; ++i) {
        REFRACT_CUDA_RETURN_IF_ERROR(launch(candidate, call_, stream_));
      }
      return {};
    });
  }

  // `nodes` launches as a graph.
  Result<ReadyGraph> Record(int candidate, int nodes,
                            const TrialLaunch& launch) {
    // Thread-local: other threads may allocate meanwhile.
    REFRACT_CUDA_RETURN_IF_ERROR(FromCuda(
        "cudaStreamBeginCapture",
        cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal)));
    Status status;
    for (int i = 0; status.ok() && i < nodes; ++i) {
      status = launch(candidate, call_, stream_);
    }
    cudaGraph_t graph = nullptr;  // the capture has to end in any case
    const Status ended =
        FromCuda("cudaStreamEndCapture", cudaStreamEndCapture(stream_, &graph));
    if (status.ok()) status = ended;
    cudaGraphExec_t ready = nullptr;
    if (status.ok()) {
      status = FromCuda("cudaGraphInstantiate",
                        cudaGraphInstantiate(&ready, graph, 0));
    }
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    if (!status.ok()) return status;
    ReadyGraph owner(ready);
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaGraphUpload", cudaGraphUpload(ready, stream_)));
    return Result<ReadyGraph>(std::move(owner));
  }

  // Milliseconds of one launch, of `replays` of a graph of `nodes`.
  Result<float> Time(const ReadyGraph& graph, int nodes, int replays) {
    return Between(nodes * replays, [&]() -> Status {
      for (int i = 0; i < replays; ++i) {
        REFRACT_CUDA_RETURN_IF_ERROR(
            FromCuda("cudaGraphLaunch", cudaGraphLaunch(graph.get(), stream_)));
      }
      return {};
    });
  }

  // Of the device, in all that was timed; on it the host's time to load code
  // looks the same.
  float spent_ms() const { return spent_ms_; }

 private:
  template <typename Work>
  Result<float> Between(int launches, Work work) {
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaEventRecord", cudaEventRecord(begin_, stream_)));
    REFRACT_CUDA_RETURN_IF_ERROR(work());
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaEventRecord", cudaEventRecord(end_, stream_)));
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaEventSynchronize", cudaEventSynchronize(end_)));
    float took = 0.0f;
    REFRACT_CUDA_RETURN_IF_ERROR(FromCuda(
        "cudaEventElapsedTime", cudaEventElapsedTime(&took, begin_, end_)));
    spent_ms_ += took;
    return took / static_cast<float>(launches);
  }

  void* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  GemmCall call_;
  float spent_ms_ = 0.0f;
};

// How often something that takes `once` fits into kRoundMs, from 1 to `most`.
int Times(float once, int most) {
  const auto limit = static_cast<float>(most);
  const float wanted = once > 0 ? std::min(kRoundMs / once, limit) : limit;
  return std::max(1, static_cast<int>(wanted));
}

}  // namespace

Result<std::optional<int>> FastestCandidate(const GemmShape& shape,
                                            int64_t workspace_bytes, int count,
                                            const TrialLaunch& launch) {
  const std::optional<int> first = 0;
  if (count < 2 || shape.m == 0) return first;
  Bench bench;
  const Result<bool> open = bench.Open(shape, workspace_bytes);
  if (!open.ok()) return open.status();
  if (!*open) return first;
  constexpr float kNever = std::numeric_limits<float>::infinity();
  struct Runner {
    float fastest = kNever;  // milliseconds; kNever: out of the race
    ReadyGraph graph;
  };
  std::vector<Runner> runners(static_cast<size_t>(count));
  // An error that is not passed over, or OK.
  const auto lost = [](const Status& status) {
    if (status.code() == Code::kUnavailable) return status;
    // What cuBLASLt may leave behind, a launch of ours would take for its own.
    (void)cudaGetLastError();
    return Status();
  };
  for (int i = 0; i < count; ++i) {
    // The first run loads code.
    Result<float> once = bench.Time(i, 1, launch);
    if (once.ok()) once = bench.Time(i, 1, launch);
    if (once.ok()) {
      runners[static_cast<size_t>(i)].fastest = *once;
    } else {  // the heuristics were wrong about it
      REFRACT_CUDA_RETURN_IF_ERROR(lost(once.status()));
    }
  }
  float best = kNever;
  for (const Runner& runner : runners) best = std::min(best, runner.fastest);
  if (best == kNever) return std::optional<int>();

  std::optional<int> chosen;
  int left = 0;
  for (int i = 0; i < count; ++i) {
    Runner& runner = runners[static_cast<size_t>(i)];
    if (runner.fastest > kHopeless * best) runner.fastest = kNever;
    if (runner.fastest == kNever) continue;
    ++left;
    chosen = i;
  }
  if (left == 1) return chosen;

  const int nodes = Times(best, kMostNodes);
  bool graphs = false;
  for (int i = 0; i < count; ++i) {
    Runner& runner = runners[static_cast<size_t>(i)];
    if (runner.fastest == kNever) continue;
    Result<ReadyGraph> graph = bench.Record(i, nodes, launch);
    if (graph.ok()) {
      runner.graph = *std::move(graph);
      graphs = true;
    } else {
      REFRACT_CUDA_RETURN_IF_ERROR(lost(graph.status()));
    }
  }
  const int launches = Times(best, kMostLaunches);
  const int replays = Times(best * static_cast<float>(nodes), kMostReplays);
  // Without the first runs: code that they loaded took longer than all rounds.
  const float before_ms = bench.spent_ms();
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < count; ++i) {
      Runner& runner = runners[static_cast<size_t>(i)];
      if (graphs && runner.graph == nullptr) runner.fastest = kNever;
      if (runner.fastest == kNever) continue;
      const Result<float> took = graphs
                                     ? bench.Time(runner.graph, nodes, replays)
                                     : bench.Time(i, launches, launch);
      if (!took.ok()) {
        REFRACT_CUDA_RETURN_IF_ERROR(lost(took.status()));
        runner.fastest = kNever;
        continue;
      }
      // Single runs count an event's cost: the first round takes their place.
      runner.fastest = round == 0 ? *took : std::min(runner.fastest, *took);
    }
    if (bench.spent_ms() - before_ms > kTrialMs) break;
  }
  chosen.reset();
  for (int i = 0; i < count; ++i) {
    const float mine = runners[static_cast<size_t>(i)].fastest;
    if (mine == kNever) continue;
    if (!chosen.has_value() ||
        mine < kMargin * runners[static_cast<size_t>(*chosen)].fastest) {
      chosen = i;
    }
  }
  return chosen;
}

}  // namespace refract::runtime::cuda
