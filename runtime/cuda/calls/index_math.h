#ifndef REFRACT_RUNTIME_CUDA_CALLS_INDEX_MATH_H_
#define REFRACT_RUNTIME_CUDA_CALLS_INDEX_MATH_H_

// Index arithmetic that kernels, memory planning and tests share.

#include <cmath>
#include <cstdint>

#include "runtime/cuda/calls/annotations.h"
#include "runtime/cuda/calls/scalar.h"

namespace refract::runtime::cuda {

REFRACT_HOST_DEVICE int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
REFRACT_HOST_DEVICE int64_t RoundUp(int64_t value, int64_t multiple) {
  return CeilDiv(value, multiple) * multiple;
}

// Rows start at multiples of this many bytes: what 16-byte accesses and the
// tensor cores of cuBLASLt need (479 columns of fp16 become 480, 13 become 16).
inline constexpr int64_t kRowAlignBytes = 16;

// Elements from row to row.
REFRACT_HOST_DEVICE int64_t PaddedLd(int64_t cols, DType dtype) {
  return RoundUp(cols, kRowAlignBytes / SizeOf(dtype));
}

// Pairs (i, j), j < i < features, or j <= i with the diagonal: row by row of
// the lower triangle, the order of torch.tril_indices and of DLRM's
// li/lj lists.
REFRACT_HOST_DEVICE int64_t NumPairs(int64_t features, bool diagonal) {
  return features * (features + (diagonal ? 1 : -1)) / 2;
}
// The pair at `index` of that order, in O(1). The square root is only a first
// guess, so its rounding does not matter; exact for indices below 2^22.
REFRACT_HOST_DEVICE void PairOf(int index, bool diagonal, int* i, int* j) {
  // With the diagonal row i starts at i (i + 1) / 2, without at i (i - 1) / 2.
  int row = static_cast<int>(
      (sqrtf(8.0f * static_cast<float>(index) + 1.0f) - 1.0f) * 0.5f);
  while (row * (row + 1) / 2 > index) --row;
  while ((row + 1) * (row + 2) / 2 <= index) ++row;
  *j = index - row * (row + 1) / 2;
  *i = diagonal ? row : row + 1;
}

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_INDEX_MATH_H_
