#ifndef REFRACT_RUNTIME_CUDA_CALLS_INTEGER_CALLS_H_
#define REFRACT_RUNTIME_CUDA_CALLS_INTEGER_CALLS_H_

// The launch for integer arithmetic on ids, lengths, positions and masks:
// exact, whereas the maps of strided_calls.h go through float.
//
// One operator of up to three operands per result, in 64 bits, truncated to the
// result's type: overflow wraps in either width, as in PyTorch.

#include <cstdint>

#include "models/operators/element_code.h"
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

using models::IntegerCode;
using models::kNumIntegerCodes;

// Number of operands: a, b and c.
REFRACT_HOST_DEVICE int OperandsOf(IntegerCode code) {
  if (static_cast<int>(code) >= static_cast<int>(IntegerCode::kClamp)) return 3;
  return static_cast<int>(code) >= static_cast<int>(IntegerCode::kAdd) ? 2 : 1;
}

// How several values are combined into a result.
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
