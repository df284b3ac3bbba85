#ifndef REFRACT_RUNTIME_CUDA_KERNELS_ROW_DOTS_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_ROW_DOTS_H_

// Body of the product for shapes that tensor cores' tiles do not suit: few rows
// (batches of a handful, where weights are read once and nothing else counts)
// or few columns (a model's last layer). Right for every shape, so that it also
// stands in where cuBLASLt has no algorithm. See interaction.h for what a
// `Thread` is.

#include <cstdint>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/calls/element_ops.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/rows.h"
#include "runtime/cuda/kernels/vector.h"

namespace refract::runtime::cuda {

// A warp computes one column for up to kRows rows: its lanes share the sum over
// k, which is fp32 (of fp32 factors: TF32's rounding is not applied). kWidth
// elements, 16 bytes, per access where rows are aligned for it, else 1.
template <int kWidth, int kRows>
struct RowDots {
  static constexpr int kMaxThreads = kThreads;
  // Accesses of 16 bytes to each row that a lane begins before it uses the
  // first: a few warps per SM have to keep the memory busy.
  static constexpr int kInFlight = kRows == 1 ? 4 : 2;

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
      if constexpr (kWidth > 1) AddWide(call, whole, weight, in, sums, t);
      for (int64_t k = (kWidth > 1 ? whole : 0) + t.lane(); k < s.k;
           k += kWarp) {
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

 private:
  // The lane's part of the first `whole` products. `weight`, `in`: where rows
  // begin, in elements.
  template <typename Thread>
  REFRACT_DEVICE static void AddWide(const GemmCall& call, int64_t whole,
                                     int64_t weight, const int64_t (&in)[kRows],
                                     float (&sums)[kRows], Thread& t) {
    const auto* const weights = static_cast<const Vector16*>(call.weight);
    const auto* const inputs = static_cast<const Vector16*>(call.in);
    for (int64_t k = t.lane() * kWidth; k < whole;
         k += kInFlight * kWarp * kWidth) {
      Vector16 w[kInFlight], x[kInFlight][kRows];
      for (int n = 0; n < kInFlight; ++n) {
        const int64_t at = k + n * kWarp * kWidth;
        w[n] = {{0, 0, 0, 0}};
        for (int r = 0; r < kRows; ++r) x[n][r] = {{0, 0, 0, 0}};
        if (at < whole) {
          w[n] = weights[(weight + at) / kWidth];
          for (int r = 0; r < kRows; ++r) {
            x[n][r] = inputs[(in[r] + at) / kWidth];
          }
        }
      }
      for (int n = 0; n < kInFlight; ++n) {
        float factors[kWidth];
        Unpack(w[n], call.shape.dtype, factors);
        for (int r = 0; r < kRows; ++r) {
          float values[kWidth];
          Unpack(x[n][r], call.shape.dtype, values);
          for (int i = 0; i < kWidth; ++i) sums[r] += values[i] * factors[i];
        }
      }
    }
  }

  REFRACT_DEVICE static void Unpack(const Vector16& vector, DType dtype,
                                    float (&out)[kWidth]) {
    for (int i = 0; i < kWidth; ++i) {
      if constexpr (kWidth == 4) {
        out[i] = scalar_internal::FloatOf(vector.words[i]);
      } else {
        const auto bits =
            static_cast<uint16_t>(vector.words[i / 2] >> (i % 2 * 16));
        out[i] = dtype == DType::kFloat16 ? ToFloat(Half{bits})
                                          : ToFloat(BFloat16{bits});
      }
    }
  }
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_ROW_DOTS_H_
