#include "runtime/cuda/gemm_trial.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "runtime/cuda/cuda_status.h"

namespace refract::runtime::cuda {
namespace {

constexpr int kRounds = 3;
// Launches between two events: enough to take this long, so that what an event
// costs does not count.
constexpr float kRoundMs = 0.2f;
constexpr int kMostLaunches = 10;
// By how much a candidate has to beat the heuristics' first choice.
constexpr float kMargin = 0.97f;
// How much slower than the fastest a first run may be for a second look.
constexpr float kHopeless = 4.0f;
// Bytes of operands: 0.0115 in float32 and bfloat16, 1.06 in float16. Zeros
// would run at higher clocks than numbers do.
constexpr int kFill = 0x3C;

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
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaEventRecord", cudaEventRecord(begin_, stream_)));
    for (int i = 0; i < launches; ++i) {
      REFRACT_CUDA_RETURN_IF_ERROR(launch(candidate, call_, stream_));
    }
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaEventRecord", cudaEventRecord(end_, stream_)));
    REFRACT_CUDA_RETURN_IF_ERROR(
        FromCuda("cudaEventSynchronize", cudaEventSynchronize(end_)));
    float took = 0.0f;
    REFRACT_CUDA_RETURN_IF_ERROR(FromCuda(
        "cudaEventElapsedTime", cudaEventElapsedTime(&took, begin_, end_)));
    return took / static_cast<float>(launches);
  }

 private:
  void* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  GemmCall call_;
};

}  // namespace

Result<int> FastestCandidate(const GemmShape& shape, int64_t workspace_bytes,
                             int count, int fallback,
                             const TrialLaunch& launch) {
  if (count < 2 || shape.m == 0) return 0;
  Bench bench;
  const Result<bool> open = bench.Open(shape, workspace_bytes);
  if (!open.ok()) return open.status();
  if (!*open) return 0;
  constexpr float kNever = std::numeric_limits<float>::infinity();
  std::vector<float> fastest(static_cast<size_t>(count), kNever);
  int launches = 1;
  for (int i = 0; i < count; ++i) {
    // The first run loads code.
    Result<float> once = bench.Time(i, 1, launch);
    if (once.ok()) once = bench.Time(i, 1, launch);
    if (!once.ok()) {
      if (once.status().code() == Code::kUnavailable) return once.status();
      continue;  // the heuristics were wrong about it
    }
    fastest[static_cast<size_t>(i)] = *once;
    const float wanted = *once > 0 ? kRoundMs / *once : kMostLaunches;
    launches = std::max(
        launches, static_cast<int>(std::min<float>(wanted, kMostLaunches)));
  }
  const float best = *std::min_element(fastest.begin(), fastest.end());
  for (float& once : fastest) {
    if (once > kHopeless * best) once = kNever;
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < count; ++i) {
      float& mine = fastest[static_cast<size_t>(i)];
      if (mine == kNever) continue;
      const Result<float> took = bench.Time(i, launches, launch);
      if (!took.ok()) return took.status();
      // Single runs count an event's cost: the first round takes their place.
      mine = round == 0 ? *took : std::min(mine, *took);
    }
  }
  int chosen = 0;
  while (chosen < count && fastest[static_cast<size_t>(chosen)] == kNever) {
    ++chosen;
  }
  if (chosen == count) return fallback;
  for (int i = chosen + 1; i < count; ++i) {
    if (fastest[static_cast<size_t>(i)] <
        kMargin * fastest[static_cast<size_t>(chosen)]) {
      chosen = i;
    }
  }
  return chosen;
}

}  // namespace refract::runtime::cuda
