#ifndef REFRACT_RUNTIME_CUDA_KERNELS_ROW_DOTS_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_ROW_DOTS_H_

// Body of the product for shapes that tensor cores' tiles do not suit: few rows
// (batches of a handful, where weights are read once and nothing else counts)
// or few columns (a model's last layer). Right for every shape, so that it also
// stands in where cuBLASLt has no algorithm. See interaction.h for what a
// `Thread` is.

#include <cstdint>

#include "runtime/cuda/calls.h"
#include "runtime/cuda/element_ops.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/rows.h"
#include "runtime/cuda/kernels/vector.h"

namespace refract::runtime::cuda {

// A warp computes one column for up to kRows rows: its lanes share the sum over
// k, which is fp32 (of fp32 factors: TF32's rounding is not applied). kWidth
// elements, 16 bytes, per access where rows are aligned for it, else 1.
template <int kWidth>
struct RowDots {
  static constexpr int kMaxThreads = kThreads;
  static constexpr int kRows = 4;

  static bool Takes(const GemmCall& call) {
    const GemmShape& s = call.shape;
    return kWidth == 1 || (kWidth * SizeOf(s.dtype) == 16 &&
                           RowsAligned(call.in, s.ld_in, s.dtype) &&
                           RowsAligned(call.weight, s.ld_weight, s.dtype));
  }
  static LaunchShape Shape(const GemmCall& call) {
    return WarpPerRow(CeilDiv(call.shape.m, kRows) * call.shape.n);
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const GemmCall& call, Thread& t) {
    const GemmShape& s = call.shape;
    const int64_t whole = s.k / kWidth * kWidth;
    ForEachRow(CeilDiv(s.m, kRows) * s.n, t, [&](int64_t task) {
      // Neighbouring warps: neighbouring columns of the same rows.
      const int64_t group = task / s.n;
      const int64_t col = task - group * s.n;
      const int64_t weight = col * s.ld_weight;
      int64_t in[kRows];
      float sums[kRows] = {};
      for (int r = 0; r < kRows; ++r) {
        const int64_t row = group * kRows + r;
        // Rows that there are not repeat the last, and are not written.
        in[r] = (row < s.m ? row : s.m - 1) * s.ld_in;
      }
      for (int64_t k = t.lane() * kWidth; k < whole; k += kWarp * kWidth) {
        float w[kWidth], x[kRows][kWidth];
        LoadWide<kWidth>(call.weight, s.dtype, weight + k, w);
        for (int r = 0; r < kRows; ++r) {
          LoadWide<kWidth>(call.in, s.dtype, in[r] + k, x[r]);
        }
        for (int r = 0; r < kRows; ++r) {
          for (int i = 0; i < kWidth; ++i) sums[r] += x[r][i] * w[i];
        }
      }
      for (int64_t k = whole + t.lane(); k < s.k; k += kWarp) {
        const float w = Load(call.weight, s.dtype, weight + k);
        for (int r = 0; r < kRows; ++r) {
          sums[r] += Load(call.in, s.dtype, in[r] + k) * w;
        }
      }
      float mine = 0.0f;
      for (int r = 0; r < kRows; ++r) {
        const float sum = RowNorm::Sum(sums[r], t);
        if (t.lane() == r) mine = sum;
      }
      const int64_t row = group * kRows + t.lane();
      if (t.lane() >= kRows || row >= s.m) return;
      if (call.bias != nullptr) mine += Load(call.bias, s.dtype, col);
      if (s.epilogue == Epilogue::kRelu || s.epilogue == Epilogue::kReluBias) {
        mine = ApplyUnary(ElementOp::kRelu, mine);
      } else if (s.epilogue == Epilogue::kGeluTanhBias) {
        mine = ApplyUnary(ElementOp::kGeluTanh, mine);
      }
      Store(mine, call.out, s.dtype, row * s.ld_out + col);
    });
  }
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_ROW_DOTS_H_
