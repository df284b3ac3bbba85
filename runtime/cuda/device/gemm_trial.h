#ifndef REFRACT_RUNTIME_CUDA_DEVICE_GEMM_TRIAL_H_
#define REFRACT_RUNTIME_CUDA_DEVICE_GEMM_TRIAL_H_

// Which candidate for products of one shape is fastest here: cuBLASLt's
// heuristics rank its own by a model, which is often but not always right, and
// say nothing of ours. And whether all of them compute the same.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

// Launches candidate `i` once on made-up operands in `call`, whose shape it is
// for.
using TrialLaunch =
    std::function<Status(int i, const GemmCall& call, cudaStream_t stream)>;

// The candidate below `count` whose fastest run is the fastest, all tried in
// turns; a later one must be faster by more than a few per cent, which is what
// times differ by anyhow. A run replays a graph of launches, as programs do:
// launches one by one would take what the CPU takes for them, at least.
// Candidates that cannot be captured are passed over, or all are launched one
// by one where none can be, or not `use_graphs`.
//
// Before it is timed, what a candidate computes from random numbers is compared
// with the result of the first one that launches and writes numbers: of up to
// 131,072 results all, of more some rows and the last ones. One that differs by
// more than rounding does is `wrong` and out of the race. All that a trial can
// say is that the two disagree; the first is cuBLASLt's, where that has any.
//
// The first where there is one alone, or no memory for the operands; candidates
// that do not launch are passed over; nothing when none does. Allocates,
// synchronises: not in a capture. Errors are those of a lost device.
//
// Takes about a millisecond per candidate, some tens for the largest products:
// the rounds end once they took kTrialMs of the device's time. A DLRM with 8
// products in 13 buckets of up to a dozen candidates: by estimate, not
// measurement, a second or two.
inline constexpr float kTrialMs = 20.0f;
struct Trial {
  struct Wrong {
    int candidate = 0;
    std::string what;  // "row 3, column 0: 1.5, not 0.25"
  };
  std::optional<int> fastest;
  std::vector<Wrong> wrong;
};
Result<Trial> FastestCandidate(const GemmShape& shape, int64_t workspace_bytes,
                               int count, const TrialLaunch& launch,
                               bool use_graphs);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_DEVICE_GEMM_TRIAL_H_
