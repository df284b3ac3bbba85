#ifndef REFRACT_RUNTIME_CPU_DENSE_ATTENTION_H_
#define REFRACT_RUNTIME_CPU_DENSE_ATTENTION_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// aten.scaled_dot_product_attention of float32, without dropout and grouped
// heads, as one step. Per leading index:
//   score[l, s] = (sum_e query[l, e] × key[s, e]) × scale + mask[l, s]
//   out[l]      = sum_s softmax(score[l])[s] × value[s]
// scale is 1/√E by default. A bool mask, or causality (s ≤ l), adds −∞ to
// scores; NaN and +∞ in masked scores remain visible, as in LibTorch's math
// implementation. A row of −∞ alone gives 0, as in LibTorch. Sums as in matmul
// and softmax (gemm.h, reduce.h). Tolerance against LibTorch: 1e-5 of the
// largest |value|. Holds the scores of 64 queries at a time.
//
// Null when `request` is something else.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateAttentionKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_DENSE_ATTENTION_H_
