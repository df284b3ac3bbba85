#include "runtime/cuda/device/gemm_trial.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/cuda/device/cuda_status.h"

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
// Operands are this many random numbers again and again: a prime, so that rows
// differ. (Zeros would also run at higher clocks than numbers do.)
constexpr int64_t kPattern = 65521;
// Results that are compared, about: a millisecond of the CPU per candidate.
constexpr int64_t kCompared = int64_t{1} << 17;
// Of a comparison that leaves rows out, these are compared at the end.
constexpr int64_t kLastRows = 64;

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
    shape_ = shape;
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
    auto* const base = static_cast<std::byte*>(memory_);
    REFRACT_CUDA_RETURN_IF_ERROR(FillOperands(base, in + weight + bias));
    out_bytes_ = out;
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

  // The result is NaN, until the next launch.
  Status ClearResult() {
    return FromCuda("cudaMemsetAsync",
                    cudaMemsetAsync(call_.out, 0xFF,
                                    static_cast<size_t>(out_bytes_), stream_));
  }
  // What is wrong with the result of the last launch, or "". The first one that
  // consists of numbers is what others are compared with.
  Result<std::string> Compare() {
    std::vector<float> rows;
    // Odd: not the same row of every tile.
    const int64_t stride =
        std::max<int64_t>(1,
                          (shape_.m * shape_.n + kCompared - 1) / kCompared) |
        1;
    const int64_t spread = (shape_.m + stride - 1) / stride;
    const int64_t last = std::min(shape_.m, stride > 1 ? kLastRows : 0);
    REFRACT_CUDA_RETURN_IF_ERROR(Read(0, stride, spread, rows));
    REFRACT_CUDA_RETURN_IF_ERROR(Read(shape_.m - last, 1, last, rows));
    const bool first = reference_.empty();
    // Not a number is not near anything, and no reference.
    const auto is_fine = [&](size_t i) {
      return first
                 ? !std::isnan(rows[i])
                 : std::abs(rows[i] - reference_[i]) <= Allowed(reference_[i]);
    };
    for (size_t i = 0; i < rows.size(); ++i) {
      if (is_fine(i)) continue;
      const auto line = static_cast<int64_t>(i) / shape_.n;
      const int64_t row =
          line < spread ? line * stride : shape_.m - last + line - spread;
      return "row " + std::to_string(row) + ", column " +
             std::to_string(static_cast<int64_t>(i) % shape_.n) + ": " +
             std::to_string(rows[i]) +
             (first ? "" : ", not " + std::to_string(reference_[i]));
    }
    if (first) reference_ = std::move(rows);
    return std::string();
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
  // `bytes` of numbers from -1 to 1.
  Status FillOperands(std::byte* operands, int64_t bytes) {
    const int64_t size = SizeOf(shape_.dtype);
    std::vector<std::byte> pattern(static_cast<size_t>(kPattern * size));
    std::mt19937 random(1);
    for (int64_t i = 0; i < kPattern; ++i) {
      const auto number = static_cast<float>(random() % 4097) / 2048.0f - 1.0f;
      Store(number, pattern.data(), shape_.dtype, i);
    }
    int64_t filled = std::min(kPattern * size, bytes);
    REFRACT_CUDA_RETURN_IF_ERROR(FromCuda(
        "cudaMemcpyAsync",
        cudaMemcpyAsync(operands, pattern.data(), static_cast<size_t>(filled),
                        cudaMemcpyHostToDevice, stream_)));
    while (filled < bytes) {
      const int64_t more = std::min(filled, bytes - filled);
      REFRACT_CUDA_RETURN_IF_ERROR(
          FromCuda("cudaMemcpyAsync",
                   cudaMemcpyAsync(operands + filled, operands,
                                   static_cast<size_t>(more),
                                   cudaMemcpyDeviceToDevice, stream_)));
      filled += more;
    }
    return {};
  }

  // Appends `count` rows of the result, from `first` on, `stride` apart.
  Status Read(int64_t first, int64_t stride, int64_t count,
              std::vector<float>& rows) {
    if (count == 0) return {};
    const int64_t size = SizeOf(shape_.dtype);
    std::vector<std::byte> raw(static_cast<size_t>(count * shape_.n * size));
    const auto width = static_cast<size_t>(shape_.n * size);
    REFRACT_CUDA_RETURN_IF_ERROR(FromCuda(
        "cudaMemcpy2DAsync",
        cudaMemcpy2DAsync(raw.data(), width,
                          static_cast<const std::byte*>(call_.out) +
                              first * shape_.ld_out * size,
                          static_cast<size_t>(stride * shape_.ld_out * size),
                          width, static_cast<size_t>(count),
                          cudaMemcpyDeviceToHost, stream_)));
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaStreamSynchronize", cudaStreamSynchronize(stream_)));
    for (int64_t i = 0; i < count * shape_.n; ++i) {
      rows.push_back(Load(raw.data(), shape_.dtype, i));
    }
    return {};
  }

  // Wide enough for any order of the sum, parts of it that were rounded to the
  // type, factors that are cut instead of rounded, and an approximate GELU;
  // narrow enough for a term that is missing or taken twice, which is a third
  // on average, in short sums, and for other errors in all. The sum of k
  // products of these operands is about √k / 3.
  float Allowed(float want) const {
    float relative = 1e-4f, absolute = 1e-4f;  // of √k
    if (shape_.dtype == DType::kFloat16) {
      relative = 1.0f / 256, absolute = 4e-3f;
    } else if (shape_.dtype == DType::kBFloat16) {
      relative = 1.0f / 32, absolute = 2e-2f;
    } else if (shape_.tf32) {
      relative = 1.0f / 128, absolute = 1e-2f;
    }
    if (shape_.epilogue == Epilogue::kGeluTanhBias) absolute += 1e-2f;
    return relative * std::abs(want) +
           absolute * std::sqrt(static_cast<float>(shape_.k) + 1);
  }

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

  GemmShape shape_;
  int64_t out_bytes_ = 0;
  std::vector<float> reference_;  // the rows that are compared
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

Result<Trial> FastestCandidate(const GemmShape& shape, int64_t workspace_bytes,
                               int count, const TrialLaunch& launch,
                               bool use_graphs) {
  const Trial first = {.fastest = 0};
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
  Trial trial;
  for (int i = 0; i < count; ++i) {
    // The first run loads code.
    Status status = bench.ClearResult();
    Result<float> once = 0.0f;
    if (status.ok()) {
      once = bench.Time(i, 1, launch);
      status = once.status();
    }
    if (status.ok()) {
      const Result<std::string> wrong = bench.Compare();
      status = wrong.status();
      if (status.ok() && !wrong->empty()) {
        trial.wrong.push_back({i, *wrong});
        continue;
      }
    }
    if (status.ok()) {
      once = bench.Time(i, 1, launch);
      status = once.status();
    }
    if (status.ok()) {
      runners[static_cast<size_t>(i)].fastest = *once;
    } else {  // the heuristics were wrong about it
      REFRACT_CUDA_RETURN_IF_ERROR(lost(status));
    }
  }
  float best = kNever;
  for (const Runner& runner : runners) best = std::min(best, runner.fastest);
  if (best == kNever) return trial;

  std::optional<int>& chosen = trial.fastest;
  int left = 0;
  for (int i = 0; i < count; ++i) {
    Runner& runner = runners[static_cast<size_t>(i)];
    if (runner.fastest > kHopeless * best) runner.fastest = kNever;
    if (runner.fastest == kNever) continue;
    ++left;
    chosen = i;
  }
  if (left == 1) return trial;

  const int nodes = Times(best, kMostNodes);
  bool graphs = false;
  for (int i = 0; i < count; ++i) {
    Runner& runner = runners[static_cast<size_t>(i)];
    if (runner.fastest == kNever || !use_graphs) continue;
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
  return trial;
}

}  // namespace refract::runtime::cuda
