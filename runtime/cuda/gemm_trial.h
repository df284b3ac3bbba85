#ifndef REFRACT_RUNTIME_CUDA_GEMM_TRIAL_H_
#define REFRACT_RUNTIME_CUDA_GEMM_TRIAL_H_

// Which of cuBLASLt's candidates for one shape is fastest here: its heuristics
// rank them by a model, which is often but not always right.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

#include "runtime/cuda/calls.h"
#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

// Launches candidate `i` once on made-up operands in `call`, whose shape it is
// for.
using TrialLaunch =
    std::function<Status(int i, const GemmCall& call, cudaStream_t stream)>;

// The candidate below `count` whose fastest run is the fastest, all tried in
// turns; a later one must be faster by more than a few per cent, which is what
// times differ by anyhow. The first where there is one alone, or no memory for
// the operands; candidates that do not launch are passed over, `fallback` is
// the answer when none does. Allocates, synchronises: not in a capture. Errors
// are those of a lost device.
Result<int> FastestCandidate(const GemmShape& shape, int64_t workspace_bytes,
                             int count, int fallback,
                             const TrialLaunch& launch);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_GEMM_TRIAL_H_
