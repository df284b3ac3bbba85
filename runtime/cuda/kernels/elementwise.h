#ifndef REFRACT_RUNTIME_CUDA_KERNELS_ELEMENTWISE_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_ELEMENTWISE_H_

// Bodies of the element-wise chain and of the cross layer. See interaction.h
// for what a `Thread` is.

#include <cstdint>
#include <type_traits>
#include <utility>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/vector.h"

namespace refract::runtime::cuda {

// Calls `body(row, col)` for every kWidth columns that this thread computes,
// and writes the padding. Rows × columns fit in 31 bits (Program checks that),
// which makes the division short.
template <int kWidth, typename Thread, typename Body>
REFRACT_DEVICE void ForEachGroup(int64_t rows, int64_t cols, int32_t pad,
                                 void* out, int64_t ld_out, DType dtype,
                                 Thread& t, Body body) {
  const auto groups = static_cast<uint32_t>(cols / kWidth);
  const auto total = static_cast<uint32_t>(rows) * groups;
  const auto step = static_cast<uint32_t>(t.blocks() * t.threads());
  for (auto g = static_cast<uint32_t>(t.block() * t.threads() + t.thread());
       g < total; g += step) {
    const uint32_t row = g / groups;
    const uint32_t group = g - row * groups;
    body(static_cast<int64_t>(row), static_cast<int64_t>(group) * kWidth);
    if (group == groups - 1) {
      for (int32_t p = 0; p < pad; ++p) {
        Store(0.0f, out, dtype, row * ld_out + cols + p);
      }
    }
  }
}

// One look at the operator for kWidth elements: by a body for each from kFirst
// on, in which it is known. `source` counts for binary ones.
template <int kFirst, int kWidth, int... kOffsets>
REFRACT_DEVICE void Apply(ElementOp op, float (&acc)[kWidth],
                          const float (&source)[kWidth],
                          std::integer_sequence<int, kOffsets...>) {
  const auto apply = [&](auto offset) {
    constexpr auto kOp = static_cast<ElementOp>(kFirst + offset.value);
    if (op != kOp) return;
    for (int i = 0; i < kWidth; ++i) {
      acc[i] = IsUnary(kOp) ? ApplyUnary(kOp, acc[i])
                            : ApplyBinary(kOp, acc[i], source[i]);
    }
  };
  (apply(std::integral_constant<int, kOffsets>()), ...);
}
// The binary ones come first.
inline constexpr int kFirstUnary = static_cast<int>(ElementOp::kNeg);
template <int kWidth>
REFRACT_DEVICE void ApplyUnary(ElementOp op, float (&acc)[kWidth]) {
  Apply<kFirstUnary>(
      op, acc, acc,
      std::make_integer_sequence<int, kNumElementOps - kFirstUnary>());
}
template <int kWidth>
REFRACT_DEVICE void ApplyBinary(ElementOp op, float (&acc)[kWidth],
                                const float (&source)[kWidth]) {
  Apply<0>(op, acc, source, std::make_integer_sequence<int, kFirstUnary>());
}

// kWidth is 4 where everything is aligned for it, else 1.
template <int kWidth>
struct Chain {
  static constexpr int kMaxThreads = kThreads;

  static bool Takes(const ChainCall& call) {
    if (kWidth == 1) return true;
    if (call.cols % kWidth != 0 ||
        !RowsAligned(call.out, call.ld_out, call.dtype)) {
      return false;
    }
    for (int i = 0; i < call.num_operands; ++i) {
      const ChainOperand& operand = call.operands[i];
      if (!operand.one_column &&
          !RowsAligned(operand.data, operand.ld, operand.dtype)) {
        return false;
      }
    }
    return true;
  }
  static LaunchShape Shape(const ChainCall& call) {
    return FlatShape(call.rows * (call.cols / kWidth));
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const ChainCall& call, Thread& t) {
    ForEachGroup<kWidth>(
        call.rows, call.cols, call.pad, call.out, call.ld_out, call.dtype, t,
        [&](int64_t row, int64_t col) {
          float acc[kWidth] = {}, saved0[kWidth] = {}, saved1[kWidth] = {};
          for (int n = 0; n < call.num_instructions; ++n) {
            const Instruction& instruction = call.instructions[n];
            if (IsUnary(instruction.op)) {
              ApplyUnary(instruction.op, acc);
              continue;
            }
            if (instruction.op == ElementOp::kSave) {
              // By selection: an address would put both in local memory.
              const bool first = instruction.index == 0;
              for (int i = 0; i < kWidth; ++i) {
                saved0[i] = first ? acc[i] : saved0[i];
                saved1[i] = first ? saved1[i] : acc[i];
              }
              continue;
            }
            float source[kWidth];
            if (instruction.source == Source::kOperand) {
              const ChainOperand& operand = call.operands[instruction.index];
              if (operand.one_column) {
                const float one =
                    Load(operand.data, operand.dtype, row * operand.ld);
                for (int i = 0; i < kWidth; ++i) source[i] = one;
              } else {
                LoadWide<kWidth>(operand.data, operand.dtype,
                                 row * operand.ld + col, source);
              }
            } else if (instruction.source == Source::kNumber) {
              for (int i = 0; i < kWidth; ++i) source[i] = instruction.number;
            } else {
              for (int i = 0; i < kWidth; ++i) {
                source[i] = instruction.index == 0 ? saved0[i] : saved1[i];
              }
            }
            ApplyBinary(instruction.op, acc, source);
          }
          StoreWide<kWidth>(acc, call.out, call.dtype, row * call.ld_out + col);
        });
  }
};

template <int kWidth>
struct Cross {
  static constexpr int kMaxThreads = kThreads;

  static bool Takes(const CrossCall& call) {
    return kWidth == 1 || (call.cols % kWidth == 0 &&
                           RowsAligned(call.x0, call.ld_x0, call.dtype) &&
                           RowsAligned(call.y, call.ld_y, call.dtype) &&
                           RowsAligned(call.x, call.ld_x, call.dtype) &&
                           RowsAligned(call.bias, 0, call.dtype) &&
                           RowsAligned(call.out, call.ld_out, call.dtype));
  }
  static LaunchShape Shape(const CrossCall& call) {
    return FlatShape(call.rows * (call.cols / kWidth));
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const CrossCall& call, Thread& t) {
    ForEachGroup<kWidth>(
        call.rows, call.cols, call.pad, call.out, call.ld_out, call.dtype, t,
        [&](int64_t row, int64_t col) {
          float x0[kWidth], y[kWidth], bias[kWidth] = {}, x[kWidth];
          LoadWide<kWidth>(call.x0, call.dtype, row * call.ld_x0 + col, x0);
          LoadWide<kWidth>(call.y, call.dtype, row * call.ld_y + col, y);
          LoadWide<kWidth>(call.x, call.dtype, row * call.ld_x + col, x);
          if (call.bias != nullptr) {
            LoadWide<kWidth>(call.bias, call.dtype, col, bias);
          }
          for (int i = 0; i < kWidth; ++i) {
            x[i] = x0[i] * (y[i] + bias[i]) + x[i];
          }
          StoreWide<kWidth>(x, call.out, call.dtype, row * call.ld_out + col);
        });
  }
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_ELEMENTWISE_H_
