#ifndef REFRACT_RUNTIME_CUDA_KERNELS_INTEGERS_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_INTEGERS_H_

// Body of the kernel of integer_calls.h. See interaction.h for what a `Thread`
// is.

#include <cstdint>

#include "runtime/cuda/calls/integer_calls.h"
#include "runtime/cuda/kernels/launch_shape.h"
#include "runtime/cuda/kernels/strided.h"

namespace refract::runtime::cuda {

// Element `at`, for a result of type `to`. A float that is no `to` becomes the
// least integer, as on the CPU (cpu/cast.cc).
REFRACT_DEVICE int64_t LoadInteger(const IntegerOperand& operand, DType to,
                                   int64_t at) {
  if (operand.data == nullptr) return operand.number;
  switch (operand.dtype) {
    case DType::kBool:
      return static_cast<const uint8_t*>(operand.data)[at] != 0 ? 1 : 0;
    case DType::kInt32:
      return static_cast<const int32_t*>(operand.data)[at];
    case DType::kInt64:
      return static_cast<const int64_t*>(operand.data)[at];
    default:
      break;
  }
  const float x = Load(operand.data, operand.dtype, at);
  const float end = to == DType::kInt32 ? 0x1p31f : 0x1p63f;
  if (x >= -end && x < end) return static_cast<int64_t>(x);
  return to == DType::kInt32 ? INT32_MIN : INT64_MIN;
}

REFRACT_DEVICE void StoreInteger(int64_t value, void* data, DType dtype,
                                 int64_t at) {
  switch (dtype) {
    case DType::kBool:
      static_cast<uint8_t*>(data)[at] = value != 0 ? 1 : 0;
      return;
    case DType::kInt32:
      static_cast<int32_t*>(data)[at] = static_cast<int32_t>(value);
      return;
    default:
      static_cast<int64_t*>(data)[at] = value;
  }
}

// Computed in unsigned numbers, whose overflow is defined.
REFRACT_DEVICE int64_t WrappedSum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) +
                              static_cast<uint64_t>(b));
}
REFRACT_DEVICE int64_t WrappedDifference(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) -
                              static_cast<uint64_t>(b));
}

// Quotient and remainder of a / b, rounded towards zero or (`floor`) downwards.
struct Division {
  int64_t quotient, rest;
};
REFRACT_DEVICE Division Divide(int64_t a, int64_t b, bool floor) {
  // No program divides by 0 (cuda_plan's CheckDivisor()); a value here keeps
  // the kernel defined.
  if (b == 0) return {0, 0};
  // The least number has no negative.
  if (b == -1) return {WrappedDifference(0, a), 0};
  Division result = {a / b, a % b};
  if (floor && result.rest != 0 && (result.rest < 0) != (b < 0)) {
    --result.quotient;
    result.rest += b;
  }
  return result;
}

REFRACT_DEVICE int64_t ComputeInteger(IntegerCode code, int64_t a, int64_t b,
                                      int64_t c) {
  switch (code) {
    case IntegerCode::kCopy:
      return a;
    case IntegerCode::kNegate:
      return WrappedDifference(0, a);
    case IntegerCode::kAbsolute:
      return a < 0 ? WrappedDifference(0, a) : a;
    case IntegerCode::kInvert:
      return ~a;
    case IntegerCode::kNot:
      return a == 0;
    case IntegerCode::kTruth:
      return a != 0;
    case IntegerCode::kAdd:
      return WrappedSum(a, b);
    case IntegerCode::kSubtract:
      return WrappedDifference(a, b);
    case IntegerCode::kMultiply:
      return static_cast<int64_t>(static_cast<uint64_t>(a) *
                                  static_cast<uint64_t>(b));
    case IntegerCode::kMinimum:
      return a < b ? a : b;
    case IntegerCode::kMaximum:
      return a > b ? a : b;
    case IntegerCode::kFloorDivide:
      return Divide(a, b, true).quotient;
    case IntegerCode::kTruncDivide:
      return Divide(a, b, false).quotient;
    case IntegerCode::kRemainder:
      return Divide(a, b, true).rest;
    case IntegerCode::kModulo:
      return Divide(a, b, false).rest;
    case IntegerCode::kBitAnd:
      return a & b;
    case IntegerCode::kBitOr:
      return a | b;
    case IntegerCode::kBitXor:
      return a ^ b;
    case IntegerCode::kAnd:
      return a != 0 && b != 0;
    case IntegerCode::kOr:
      return a != 0 || b != 0;
    case IntegerCode::kXor:
      return (a != 0) != (b != 0);
    case IntegerCode::kEqual:
      return a == b;
    case IntegerCode::kNotEqual:
      return a != b;
    case IntegerCode::kLess:
      return a < b;
    case IntegerCode::kLessEqual:
      return a <= b;
    case IntegerCode::kGreater:
      return a > b;
    case IntegerCode::kGreaterEqual:
      return a >= b;
    case IntegerCode::kFromEnd:
      return a < 0 ? WrappedSum(a, b) : a;
    case IntegerCode::kClamp: {
      const int64_t low = a > b ? a : b;
      return low < c ? low : c;
    }
    case IntegerCode::kSelect:
      return a != 0 ? b : c;
  }
  return 0;
}

// A thread per result.
struct Integers {
  static constexpr int kMaxThreads = kThreads;
  static LaunchShape Shape(const IntegerCall& call) {
    return FlatShape(call.count);
  }

  template <typename Thread>
  REFRACT_DEVICE static void Run(const IntegerCall& call, Thread& t) {
    const int operands = OperandsOf(call.code);
    ForEachElement(call.count, t, [&](int64_t flat) {
      uint32_t index[kMaxRank] = {};
      IndexOf(flat, call.dims, call.rank, index);
      // Offset of each operand's first element for this result; `inner` adds the
      // offset of a folded element.
      int64_t first[3] = {};
      REFRACT_UNROLL
      for (int n = 0; n < 3; ++n) {
        if (n < operands) {
          first[n] = OffsetOf(index, call.operands[n].strides, call.rank);
        }
      }
      int64_t result = 0;
      for (int64_t j = 0; j < call.inner_count; ++j) {
        uint32_t inner[kMaxRank] = {};
        IndexOf(j, call.dims + call.rank, call.inner_rank, inner);
        int64_t values[3] = {};
        REFRACT_UNROLL
        for (int n = 0; n < 3; ++n) {
          if (n >= operands) continue;
          const IntegerOperand& operand = call.operands[n];
          values[n] = LoadInteger(
              operand, call.out_dtype,
              first[n] + OffsetOf(inner, operand.strides + call.rank,
                                  call.inner_rank));
        }
        const int64_t value =
            ComputeInteger(call.code, values[0], values[1], values[2]);
        result = j == 0 ? value : Folded(call.fold, result, value);
      }
      StoreInteger(result, call.out, call.out_dtype,
                   OffsetOf(index, call.out_strides, call.rank));
    });
  }

 private:
  REFRACT_DEVICE static int64_t Folded(IntegerFold fold, int64_t a, int64_t b) {
    switch (fold) {
      case IntegerFold::kMinimum:
        return a < b ? a : b;
      case IntegerFold::kMaximum:
        return a > b ? a : b;
      default:
        return WrappedSum(a, b);
    }
  }
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_INTEGERS_H_
