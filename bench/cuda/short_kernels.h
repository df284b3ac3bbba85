#ifndef REFRACT_BENCH_CUDA_SHORT_KERNELS_H_
#define REFRACT_BENCH_CUDA_SHORT_KERNELS_H_

// Chains of short kernels: what early starts (runtime/cuda/calls/calls.h) are for,
// and what goes wrong first where they are not ordered.

#include <cstdint>

#include "bench/cuda/dense_models.h"

namespace refract::bench {

// Input "x" and output "y" [B, cols], fp32. Each of `steps` operators reads one
// or two of what the last few wrote; their memory is used again as soon as the
// last one has read it, so that a kernel which reads or writes before its time
// changes the result. Operators are means, hyperbolic tangents of means and
// layer norms, which hardly enlarge an error and keep rows apart; with
// `products` some are products, too, which a GPU may give to cuBLASLt.
DenseModel MakeShortKernels(int steps, int64_t cols, bool products,
                            int64_t max_batch, unsigned seed);

// |got - want| of it in fp32.
inline constexpr double kShortKernelsTolerance = 1e-4;

}  // namespace refract::bench

#endif  // REFRACT_BENCH_CUDA_SHORT_KERNELS_H_
