#ifndef REFRACT_RUNTIME_CUDA_KERNELS_ROWS_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_ROWS_H_

// Bodies of kernels with a warp per row: gather-expand, layer norm, softmax.
// See interaction.h for what a `Thread` is.

#include <cmath>
#include <cstdint>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/vector.h"

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

// Copies in units of `Unit`: 16 bytes where rows allow it, else one element.
template <typename Unit>
struct Gather {
  static constexpr int kMaxThreads = kThreads;

  static bool Takes(const GatherCall& call) {
    constexpr auto kUnit = static_cast<int64_t>(sizeof(Unit));
    const int64_t size = SizeOf(call.dtype);
    return kUnit <= size ||
           (call.cols * size % kUnit == 0 &&
            RowsAligned(call.unique, call.ld_unique, call.dtype) &&
            RowsAligned(call.out, call.ld_out, call.dtype));
  }
  static LaunchShape Shape(const GatherCall& call) {
    return WarpPerRow(call.rows);
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const GatherCall& call, Thread& t) {
    const int64_t size = SizeOf(call.dtype);
    constexpr auto kUnit = static_cast<int64_t>(sizeof(Unit));
    const int64_t units = call.cols * size / kUnit;
    const int64_t pad_units = call.pad * size / 2;
    // Both numbers come with the request: neither is believed beyond the
    // memory there is.
    const int64_t num_unique =
        *call.num_unique < call.capacity ? *call.num_unique : call.capacity;
    const int64_t used = static_cast<int64_t>(*call.batch) * call.rows_per_item;
    ForEachRow(call.rows, t, [&](int64_t row) {
      int64_t from = -1;
      if (row < used) {
        from = call.index[row];
        if (from < 0 || from >= num_unique) {
          from = -1;
          if (t.lane() == 0) t.AtomicAdd(call.faults, 1);
        }
      }
      const Unit* in = reinterpret_cast<const Unit*>(
          static_cast<const unsigned char*>(call.unique) +
          (from < 0 ? 0 : from) * call.ld_unique * size);
      unsigned char* out_row =
          static_cast<unsigned char*>(call.out) + row * call.ld_out * size;
      Unit* out = reinterpret_cast<Unit*>(out_row);
      for (int64_t u = t.lane(); u < units; u += kWarp) {
        out[u] = from < 0 ? Unit{} : in[u];
      }
      uint16_t* pad = reinterpret_cast<uint16_t*>(out_row + call.cols * size);
      for (int64_t u = t.lane(); u < pad_units; u += kWarp) pad[u] = 0;
    });
  }
};

struct RowNorm {
  static constexpr int kMaxThreads = kThreads;

  static LaunchShape Shape(const RowNormCall& call) {
    return WarpPerRow(call.rows);
  }

  template <typename Thread>
  REFRACT_DEVICE static float Sum(float value, Thread& t) {
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      value += t.ShuffleXor(value, mask);
    }
    return value;  // the same in every lane
  }

  template <typename Thread>
  REFRACT_DEVICE static float Max(float value, Thread& t) {
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const float other = t.ShuffleXor(value, mask);
      value = ApplyBinary(ElementOp::kMaximum, value, other);
    }
    return value;
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const RowNormCall& call, Thread& t) {
    ForEachRow(call.rows, t, [&](int64_t row) {
      const int64_t in = row * call.ld_in;
      const int64_t out = row * call.ld_out;
      const auto cols = static_cast<float>(call.cols);
      if (call.softmax) {
        float largest = -INFINITY;
        for (int64_t c = t.lane(); c < call.cols; c += kWarp) {
          largest = ApplyBinary(ElementOp::kMaximum, largest,
                                Load(call.in, call.dtype, in + c));
        }
        largest = Max(largest, t);
        float sum = 0.0f;
        for (int64_t c = t.lane(); c < call.cols; c += kWarp) {
          sum += expf(Load(call.in, call.dtype, in + c) - largest);
        }
        sum = Sum(sum, t);
        for (int64_t c = t.lane(); c < call.cols; c += kWarp) {
          Store(expf(Load(call.in, call.dtype, in + c) - largest) / sum,
                call.out, call.dtype, out + c);
        }
      } else {
        float sum = 0.0f;
        for (int64_t c = t.lane(); c < call.cols; c += kWarp) {
          sum += Load(call.in, call.dtype, in + c);
        }
        const float mean = Sum(sum, t) / cols;
        float squares = 0.0f;
        for (int64_t c = t.lane(); c < call.cols; c += kWarp) {
          const float d = Load(call.in, call.dtype, in + c) - mean;
          squares += d * d;
        }
        const float scale = 1.0f / sqrtf(Sum(squares, t) / cols + call.epsilon);
        for (int64_t c = t.lane(); c < call.cols; c += kWarp) {
          float value = (Load(call.in, call.dtype, in + c) - mean) * scale;
          if (call.gamma != nullptr) value *= Load(call.gamma, call.dtype, c);
          if (call.beta != nullptr) value += Load(call.beta, call.dtype, c);
          Store(value, call.out, call.dtype, out + c);
        }
      }
      for (int32_t p = t.lane(); p < call.pad; p += kWarp) {
        Store(0.0f, call.out, call.dtype, out + call.cols + p);
      }
    });
  }
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_ROWS_H_
