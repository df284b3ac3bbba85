#ifndef REFRACT_RUNTIME_CUDA_CALLS_INTEGER_CALLS_H_
#define REFRACT_RUNTIME_CUDA_CALLS_INTEGER_CALLS_H_

// The launch that computes with ids, lengths, positions and masks: exact, where
// the maps of strided_calls.h go through float.
//
// One operator of up to three operands per result, on 64 bits, cut to what the
// result has room for: overflow wraps in either width, as PyTorch's does.

#include <cstdint>

#include "runtime/cuda/calls/annotations.h"
#include "runtime/cuda/calls/scalar.h"
#include "runtime/cuda/calls/strided_calls.h"

namespace refract::runtime::cuda {

struct IntegerOperand {
  const void* data = nullptr;  // null: every element is `number`
  int64_t strides[kMaxRank] = {};
  int64_t number = 0;
  DType dtype = DType::kInt64;
};

// Truth values are 0 and 1.
enum class IntegerCode : uint8_t {
  // Of a. Floating-point numbers lose their fraction; what an integer of the
  // result's width cannot be, NaN too, becomes the least one, as on x86. The
  // other codes take none.
  kCopy,
  kNegate,
  kAbsolute,
  kInvert,  // all bits
  kNot,     // a == 0
  kTruth,   // a != 0
  // Of a and b.
  kAdd,
  kSubtract,
  kMultiply,
  kMinimum,
  kMaximum,
  // A division by 0 gives 0; the translation refuses divisors that may be 0.
  kFloorDivide,
  kTruncDivide,
  kRemainder,  // of the floor: with b's sign
  kModulo,     // C's: with a's sign
  kBitAnd,
  kBitOr,
  kBitXor,
  kAnd,  // a != 0 && b != 0
  kOr,
  kXor,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kFromEnd,  // a < 0 ? a + b : a
  // Of a, b and c.
  kClamp,   // min(max(a, b), c)
  kSelect,  // a != 0 ? b : c
};
inline constexpr int kNumIntegerCodes =
    static_cast<int>(IntegerCode::kSelect) + 1;

// How many of a, b and c it reads.
REFRACT_HOST_DEVICE int OperandsOf(IntegerCode code) {
  if (static_cast<int>(code) >= static_cast<int>(IntegerCode::kClamp)) return 3;
  return static_cast<int>(code) >= static_cast<int>(IntegerCode::kAdd) ? 2 : 1;
}

// How several results are combined.
enum class IntegerFold : uint8_t { kSum, kMinimum, kMaximum };

// out[i] = fold of code(operands[…][i, j]) over all j < inner_dims; without
// inner dimensions the one result.
struct IntegerCall {
  IntegerOperand operands[3];
  void* out = nullptr;  // kInt32, kInt64 or kBool
  int64_t out_strides[kMaxRank] = {};
  int64_t dims[kMaxRank] = {};         // of i…, then of j…
  int64_t count = 0, inner_count = 1;  // products of both
  int32_t rank = 0, inner_rank = 0;
  IntegerCode code = IntegerCode::kCopy;
  IntegerFold fold = IntegerFold::kSum;
  DType out_dtype = DType::kInt64;
};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_INTEGER_CALLS_H_
