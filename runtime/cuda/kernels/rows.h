#ifndef REFRACT_RUNTIME_CUDA_KERNELS_ROWS_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_ROWS_H_

// Kernels in which a warp computes a row. See interaction.h for what a `Thread`
// is.

#include <cstdint>

#include "runtime/cuda/calls/annotations.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/scalar_math.h"

namespace refract::runtime::cuda {

inline LaunchShape WarpPerRow(int64_t rows) { return FlatShape(rows * kWarp); }

// Calls `body(row)` for the rows of this warp.
template <typename Thread, typename Body>
REFRACT_DEVICE void ForEachRow(int64_t rows, Thread& t, Body body) {
  const int64_t warps = t.threads() / kWarp;
  for (int64_t row = t.block() * warps + t.warp(); row < rows;
       row += t.blocks() * warps) {
    body(row);
  }
}

// Sum and maximum over the lanes of a warp: the same result in every lane.
template <typename Thread>
REFRACT_DEVICE float WarpSum(float value, Thread& t) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    value += t.ShuffleXor(value, mask);
  }
  return value;
}
template <typename Thread>
REFRACT_DEVICE float WarpMaximum(float value, Thread& t) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    value = Maximum(value, t.ShuffleXor(value, mask));
  }
  return value;
}

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_ROWS_H_
