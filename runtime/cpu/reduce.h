#ifndef REFRACT_RUNTIME_CPU_REDUCE_H_
#define REFRACT_RUNTIME_CPU_REDUCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// Reductions of float32, rank 1 or more, accumulated in float32:
//   aten.sum, aten.mean over adjacent dimensions, or over all
//   aten.softmax.int, aten._softmax over one dimension:
//     out[i] = exp(x[i] − max x) / sum_j exp(x[j] − max x)
//   aten.layer_norm over the last: (x − mean) / √(variance + eps) × w + b,
//     variance of all elements, after the mean
// Tolerance against LibTorch: 1e-6 of the sum of magnitudes (sum, mean); 2e-6
// (softmax); 1e-5 of the largest result (layer norm). NaN as in LibTorch. A
// row's result depends on that row alone.
//
// Null when `request` is something else.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateReduceKernel(
    const KernelRequest& request);

// out[o, i] = sum_c x[o, c, i]. With `rows` (SumDims; `inner` is then 1) in
// interleaved partial sums, else in ascending order of c.
void SumDense(const float* x, int64_t outer, int64_t count, int64_t inner,
              bool rows, float* out);
// Adds the next `count` terms to a sum in ascending order of c, which began
// with 0: out[i] += x[c, i].
void AddRows(const float* x, int64_t count, int64_t inner, float* out);

// The softmax above over `rows` rows of `count`; `out` may be `x`.
void SoftmaxRows(const float* x, int64_t rows, int64_t count, float* out);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_REDUCE_H_
