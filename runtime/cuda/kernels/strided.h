#ifndef REFRACT_RUNTIME_CUDA_KERNELS_STRIDED_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_STRIDED_H_

// Bodies of the kernels over strided tensors. See interaction.h for what a
// `Thread` is.

#include <cmath>
#include <cstdint>

#include "runtime/cuda/calls/strided_calls.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/register_file.h"
#include "runtime/cuda/kernels/rows.h"
#include "runtime/cuda/kernels/scalar_math.h"

namespace refract::runtime::cuda {

// Loads an element of any type as a float: truth values as 0 and 1.
// `operand.data` is null for a number that all elements share.
REFRACT_DEVICE float LoadAny(const StridedOperand& operand, int64_t at) {
  if (operand.data == nullptr) return operand.number;
  switch (operand.dtype) {
    case DType::kBool:
      return static_cast<const uint8_t*>(operand.data)[at] != 0 ? 1.0f : 0.0f;
    case DType::kInt32:
      return static_cast<float>(static_cast<const int32_t*>(operand.data)[at]);
    case DType::kInt64:
      return static_cast<float>(static_cast<const int64_t*>(operand.data)[at]);
    default:
      return Load(operand.data, operand.dtype, at);
  }
}
REFRACT_DEVICE void StoreAny(float value, void* data, DType dtype, int64_t at) {
  if (dtype == DType::kBool) {
    static_cast<uint8_t*>(data)[at] = value != 0.0f ? 1 : 0;
  } else {
    Store(value, data, dtype, at);
  }
}

// An instruction on kWidth elements, so that its code is decoded once for all
// of them. Reads as many of `b` and `c` as the code has arguments. `out` is a
// different array.
template <int kWidth>
REFRACT_DEVICE void Compute(const MapInstruction& instruction,
                            const float (&a)[kWidth], const float (&b)[kWidth],
                            const float (&c)[kWidth], float (&out)[kWidth]) {
  const auto each = [&](auto compute) {
    for (int i = 0; i < kWidth; ++i) out[i] = compute(a[i], b[i], c[i]);
  };
  const float x = instruction.x;
  const float y = instruction.y;
  switch (instruction.code) {
    case ElementCode::kNegate:
      return each([](float a, float, float) { return -a; });
    case ElementCode::kAbsolute:
      return each([](float a, float, float) { return fabsf(a); });
    case ElementCode::kRelu:
      return each([](float a, float, float) { return Relu(a); });
    case ElementCode::kSigmoid:
      return each([](float a, float, float) { return Sigmoid(a); });
    case ElementCode::kTanh:
      return each([](float a, float, float) { return tanhf(a); });
    case ElementCode::kExp:
      return each([](float a, float, float) { return expf(a); });
    case ElementCode::kLog:
      return each([](float a, float, float) { return logf(a); });
    case ElementCode::kLog1p:
      return each([](float a, float, float) { return log1pf(a); });
    case ElementCode::kSqrt:
      return each([](float a, float, float) { return sqrtf(a); });
    case ElementCode::kReciprocalSqrt:
      return each([](float a, float, float) { return 1.0f / sqrtf(a); });
    case ElementCode::kReciprocal:
      return each([](float a, float, float) { return 1.0f / a; });
    case ElementCode::kSquare:
      return each([](float a, float, float) { return a * a; });
    case ElementCode::kErf:
      return each([](float a, float, float) { return erff(a); });
    case ElementCode::kGelu:
      return each([](float a, float, float) { return Gelu(a); });
    case ElementCode::kGeluTanh:
      return each([](float a, float, float) { return GeluTanh(a); });
    case ElementCode::kSilu:
      return each([](float a, float, float) { return Silu(a); });
    case ElementCode::kNot:
      return each(
          [](float a, float, float) { return a == 0.0f ? 1.0f : 0.0f; });
    case ElementCode::kLeakyRelu:
      return each([x](float a, float, float) { return a < 0.0f ? a * x : a; });
    case ElementCode::kElu:
      return each([x](float a, float, float) {
        return a < 0.0f ? x * (expf(a) - 1.0f) : a;
      });
    case ElementCode::kClamp:
      return each([x, y](float a, float, float) {
        const float low = a < x ? x : a;
        return low > y ? y : low;
      });
    case ElementCode::kScale:
      return each([x](float a, float, float) { return a * x; });
    case ElementCode::kCopy:
      return each([](float a, float, float) { return a; });
    case ElementCode::kSign:
      return each([](float a, float, float) {
        return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : 0.0f;
      });
    case ElementCode::kAdd:
      return each([](float a, float b, float) { return a + b; });
    case ElementCode::kSubtract:
      return each([](float a, float b, float) { return a - b; });
    case ElementCode::kMultiply:
      return each([](float a, float b, float) { return a * b; });
    case ElementCode::kDivide:
      return each([](float a, float b, float) { return a / b; });
    case ElementCode::kMinimum:
      return each([](float a, float b, float) { return Minimum(a, b); });
    case ElementCode::kMaximum:
      return each([](float a, float b, float) { return Maximum(a, b); });
    case ElementCode::kPower:
      return each([](float a, float b, float) { return powf(a, b); });
    case ElementCode::kEqual:
      return each([](float a, float b, float) { return a == b ? 1.0f : 0.0f; });
    case ElementCode::kNotEqual:
      return each([](float a, float b, float) { return a != b ? 1.0f : 0.0f; });
    case ElementCode::kLess:
      return each([](float a, float b, float) { return a < b ? 1.0f : 0.0f; });
    case ElementCode::kLessEqual:
      return each([](float a, float b, float) { return a <= b ? 1.0f : 0.0f; });
    case ElementCode::kGreater:
      return each([](float a, float b, float) { return a > b ? 1.0f : 0.0f; });
    case ElementCode::kGreaterEqual:
      return each([](float a, float b, float) { return a >= b ? 1.0f : 0.0f; });
    case ElementCode::kAnd:
      return each([](float a, float b, float) {
        return a != 0.0f && b != 0.0f ? 1.0f : 0.0f;
      });
    case ElementCode::kOr:
      return each([](float a, float b, float) {
        return a != 0.0f || b != 0.0f ? 1.0f : 0.0f;
      });
    case ElementCode::kSelect:
      return each([](float a, float b, float c) { return a != 0.0f ? b : c; });
  }
}

// The index of each dimension of element `flat`. Counts fit in 31 bits
// (DeviceProgram checks that), which makes the divisions short.
REFRACT_DEVICE void IndexOf(int64_t flat, const int64_t* dims, int rank,
                            uint32_t* index) {
  auto rest = static_cast<uint32_t>(flat);
  // Unrolled: indexes unknown at compile time put `index` in local memory.
  REFRACT_UNROLL
  for (int d = kMaxRank - 1; d > 0; --d) {
    if (d >= rank) continue;
    const auto size = static_cast<uint32_t>(dims[d]);
    const uint32_t next = rest / size;
    index[d] = rest - next * size;
    rest = next;
  }
  if (rank > 0) index[0] = rest;
}
REFRACT_DEVICE int64_t OffsetOf(const uint32_t* index, const int64_t* strides,
                                int rank) {
  int64_t offset = 0;
  REFRACT_UNROLL
  for (int d = 0; d < kMaxRank; ++d) {
    if (d < rank) offset += index[d] * strides[d];
  }
  return offset;
}

// Calls `body(flat)` for the elements of this thread.
template <typename Thread, typename Body>
REFRACT_DEVICE void ForEachElement(int64_t count, Thread& t, Body body) {
  for (int64_t i = t.block() * t.threads() + t.thread(); i < count;
       i += t.blocks() * t.threads()) {
    body(i);
  }
}

// Registers that a program fills; the last result needs none.
inline int RegistersOf(const MapCall& call) {
  return call.num_inputs + call.num_instructions - 1;
}

// Executes all instructions on inputs in registers. `result`: result of the
// last instruction.
template <int kWidth>
REFRACT_DEVICE void Interpret(const MapCall& call,
                              RegisterFile<kWidth>& registers,
                              float (&result)[kWidth]) {
  for (int n = 0; n < call.num_instructions; ++n) {
    const MapInstruction& instruction = call.code[n];
    float a[kWidth], b[kWidth] = {}, c[kWidth] = {};
    registers.Read(instruction.a, a);
    const int arguments = ArgumentsOf(instruction.code);
    if (arguments > 1) registers.Read(instruction.b, b);
    if (arguments > 2) registers.Read(instruction.c, c);
    Compute(instruction, a, b, c, result);
    if (n + 1 < call.num_instructions) {
      registers.Write(call.num_inputs + n, result);
    }
  }
}

struct Map {
  static constexpr int kMaxThreads = kThreads;
  static LaunchShape Shape(const MapCall& call) {
    return RegisterFile<1>::Shape(call.count, RegistersOf(call));
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const MapCall& call, Thread& t) {
    RegisterFile<1> registers(t);
    ForEachElement(call.count, t, [&](int64_t flat) {
      uint32_t index[kMaxRank] = {};
      IndexOf(flat, call.dims, call.rank, index);
      for (int n = 0; n < call.num_inputs; ++n) {
        const float input[1] = {
            LoadAny(call.inputs[n],
                    OffsetOf(index, call.inputs[n].strides, call.rank))};
        registers.Write(n, input);
      }
      float result[1] = {};
      Interpret(call, registers, result);
      StoreAny(result[0], call.out, call.out_dtype,
               OffsetOf(index, call.out_strides, call.rank));
    });
  }
};

// A thread per result: for the small products between values of a request
// (attention, pairs of vectors). cuBLASLt computes products with weights.
struct MatMul {
  static constexpr int kMaxThreads = kThreads;
  static LaunchShape Shape(const MatMulCall& call) {
    return FlatShape(call.count);
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const MatMulCall& call, Thread& t) {
    ForEachElement(call.count, t, [&](int64_t flat) {
      // flat = (matrix × m + row) × n + col, where `matrix` counts the batched
      // products.
      const auto n = static_cast<uint32_t>(call.n);
      const auto m = static_cast<uint32_t>(call.m);
      const uint32_t line = static_cast<uint32_t>(flat) / n;
      const uint32_t col = static_cast<uint32_t>(flat) - line * n;
      const uint32_t matrix = line / m;
      const uint32_t row = line - matrix * m;
      uint32_t index[kMaxRank] = {};
      IndexOf(matrix, call.dims, call.rank, index);
      // Behind the strides of the batch each operand has two of its matrix: of
      // rows and of columns.
      const int64_t* const a_strides = call.a.strides + call.rank;
      const int64_t* const b_strides = call.b.strides + call.rank;
      int64_t a =
          OffsetOf(index, call.a.strides, call.rank) + row * a_strides[0];
      int64_t b =
          OffsetOf(index, call.b.strides, call.rank) + col * b_strides[1];
      float sum = 0.0f;
      for (int64_t k = 0; k < call.k; ++k) {
        sum += LoadAny(call.a, a) * LoadAny(call.b, b);
        a += a_strides[1];
        b += b_strides[0];
      }
      if (call.bias.data != nullptr) {
        sum += LoadAny(call.bias, col * call.bias.strides[0]);
      }
      if (call.relu) sum = Relu(sum);
      StoreAny(sum, call.out, call.out_dtype,
               OffsetOf(index, call.out_strides, call.rank) +
                   row * call.out_strides[call.rank] +
                   col * call.out_strides[call.rank + 1]);
    });
  }
};

// A warp per row i.
struct Reduce {
  static constexpr int kMaxThreads = kThreads;
  static LaunchShape Shape(const ReduceCall& call) {
    return WarpPerRow(call.rows);
  }

  // Offset of element j of a row from the row's first element.
  REFRACT_DEVICE static int64_t At(const ReduceCall& call,
                                   const int64_t* strides, int64_t j) {
    if (call.inner_rank == 1) return j * strides[0];
    uint32_t index[kMaxRank] = {};
    IndexOf(j, call.dims + call.rank, call.inner_rank, index);
    return OffsetOf(index, strides, call.inner_rank);
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const ReduceCall& call, Thread& t) {
    const int64_t* const inner = call.in.strides + call.rank;
    const int64_t* const out_inner = call.out_strides + call.rank;
    ForEachRow(call.rows, t, [&](int64_t row) {
      uint32_t index[kMaxRank] = {};
      IndexOf(row, call.dims, call.rank, index);
      const int64_t in = OffsetOf(index, call.in.strides, call.rank);
      const int64_t out = OffsetOf(index, call.out_strides, call.rank);
      // A row is read anew in each pass over it: a warp's registers hold no row
      // of any length, and the second pass finds the row in the cache.
      const auto element = [&](int64_t j) {
        return LoadAny(call.in, in + At(call, inner, j));
      };
      const auto store = [&](int64_t j, float value) {
        StoreAny(value, call.out, call.out_dtype, out + At(call, out_inner, j));
      };
      const auto cols = static_cast<float>(call.cols);
      switch (call.kind) {
        case ReduceKind::kSum:
        case ReduceKind::kMean: {
          float sum = 0.0f;
          for (int64_t j = t.lane(); j < call.cols; j += kWarp) {
            sum += element(j);
          }
          sum = WarpSum(sum, t);
          if (call.kind == ReduceKind::kMean) sum /= cols;
          if (t.lane() == 0) StoreAny(sum, call.out, call.out_dtype, out);
          break;
        }
        case ReduceKind::kMaximum:
        case ReduceKind::kMinimum: {
          const bool least = call.kind == ReduceKind::kMinimum;
          float most = Largest(call, least, element, t);
          if (least) most = -most;
          if (t.lane() == 0) StoreAny(most, call.out, call.out_dtype, out);
          break;
        }
        case ReduceKind::kSoftmax:
        case ReduceKind::kMaskedSoftmax:
        case ReduceKind::kLogSoftmax: {
          // exp(x − largest) cannot overflow.
          float largest = Largest(call, false, element, t);
          const bool zeros =
              call.kind == ReduceKind::kMaskedSoftmax && largest == -INFINITY;
          if (zeros) largest = 0.0f;
          float sum = 0.0f;
          for (int64_t j = t.lane(); j < call.cols; j += kWarp) {
            sum += expf(element(j) - largest);
          }
          sum = WarpSum(sum, t);
          if (zeros) sum = 1.0f;  // every weight is 0
          const float log_sum = logf(sum);
          for (int64_t j = t.lane(); j < call.cols; j += kWarp) {
            const float x = element(j) - largest;
            store(j, call.kind == ReduceKind::kLogSoftmax ? x - log_sum
                                                          : expf(x) / sum);
          }
          break;
        }
        case ReduceKind::kLayerNorm: {
          float sum = 0.0f;
          for (int64_t j = t.lane(); j < call.cols; j += kWarp) {
            sum += element(j);
          }
          const float mean = WarpSum(sum, t) / cols;
          // A second pass: E[x²] − E[x]² would cancel.
          float squares = 0.0f;
          for (int64_t j = t.lane(); j < call.cols; j += kWarp) {
            const float d = element(j) - mean;
            squares += d * d;
          }
          const float scale =
              1.0f / sqrtf(WarpSum(squares, t) / cols + call.epsilon);
          for (int64_t j = t.lane(); j < call.cols; j += kWarp) {
            float value = (element(j) - mean) * scale;
            if (call.gamma.data != nullptr) {
              value *= LoadAny(call.gamma, At(call, call.gamma.strides, j));
            }
            if (call.beta.data != nullptr) {
              value += LoadAny(call.beta, At(call, call.beta.strides, j));
            }
            store(j, value);
          }
          break;
        }
      }
    });
  }

 private:
  // Largest of the row's elements, or of their negatives; NaN if any element is
  // NaN.
  template <typename Element, typename Thread>
  REFRACT_DEVICE static float Largest(const ReduceCall& call, bool negative,
                                      const Element& element, Thread& t) {
    float most = -INFINITY;
    for (int64_t j = t.lane(); j < call.cols; j += kWarp) {
      const float x = element(j);
      most = Maximum(most, negative ? -x : x);
    }
    return WarpMaximum(most, t);
  }
};

struct LookUp {
  static constexpr int kMaxThreads = kThreads;
  static LaunchShape Shape(const LookUpCall& call) {
    return FlatShape(call.count);
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const LookUpCall& call, Thread& t) {
    // The batch comes with the request; ids of rows beyond it are not read, so
    // that they cause no fault.
    const int64_t used =
        call.batch_dim < 0
            ? 0
            : static_cast<int64_t>(*call.batch) * call.rows_per_item +
                  call.fixed_rows;
    ForEachElement(call.count, t, [&](int64_t flat) {
      uint32_t index[kMaxRank] = {};
      IndexOf(flat, call.dims, call.rank, index);
      float value = 0.0f;
      if (call.batch_dim < 0 || index[call.batch_dim] < used) {
        const int64_t at = OffsetOf(index, call.index.strides, call.rank);
        int64_t row = call.index.dtype == DType::kInt64
                          ? static_cast<const int64_t*>(call.index.data)[at]
                          : static_cast<const int32_t*>(call.index.data)[at];
        bool found = row >= 0 && row < call.table_rows;
        if (!found && call.outside == Outside::kFirstRow &&
            call.table_rows > 0) {
          row = 0;
          found = true;
        }
        if (found) {
          value = LoadAny(call.table,
                          row * call.row_stride +
                              OffsetOf(index, call.table.strides, call.rank));
        } else if (call.outside == Outside::kFault) {
          // Counts a fault once per index: at its first element.
          bool first = true;
          for (int d = 0; d < call.rank; ++d) {
            first = first && (call.index.strides[d] != 0 || index[d] == 0);
          }
          if (first) t.AtomicAdd(call.faults, 1);
        }
      }
      StoreAny(value, call.out, call.out_dtype,
               OffsetOf(index, call.out_strides, call.rank));
    });
  }
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_STRIDED_H_
