#ifndef REFRACT_RUNTIME_CUDA_CALLS_ELEMENT_OPS_H_
#define REFRACT_RUNTIME_CUDA_CALLS_ELEMENT_OPS_H_

// Element-wise chains: a short program that one kernel interprets per element.
//
// The machine has an accumulator and two temporaries, no register file: indexed
// registers would live in a GPU's local memory. An instruction is
//   acc = source                    kLoad
//   temporary[source] = acc         kSave
//   acc = acc op source             binary operators
//   acc = source op acc             kSubFrom, kDivInto
//   acc = op(acc)                   unary operators
// and a source is an operand (read from memory once per use), a number of the
// instruction, or a temporary. The result is the last accumulator.
//
// All arithmetic is float. NaN operands give NaN, as in PyTorch, for every
// operator, kRelu, kMaximum and kMinimum included.

#include <cmath>
#include <cstdint>

#include "runtime/cuda/calls/annotations.h"
#include "runtime/cuda/calls/scalar.h"

namespace refract::runtime::cuda {

enum class ElementOp : uint8_t {
  kLoad,
  kSave,
  // Binary.
  kAdd,
  kSub,
  kSubFrom,
  kMul,
  kDiv,
  kDivInto,
  kMaximum,
  kMinimum,
  // Unary; the source is ignored.
  kNeg,
  kAbs,
  kSquare,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kExp,
  kLog,
  kRelu,
  kSigmoid,
  kTanh,
  kSilu,
  kGelu,      // exact: x/2 · (1 + erf(x/√2))
  kGeluTanh,  // PyTorch's approximate="tanh"
};
inline constexpr int kNumElementOps =
    static_cast<int>(ElementOp::kGeluTanh) + 1;

REFRACT_HOST_DEVICE constexpr bool IsUnary(ElementOp op) {
  return static_cast<int>(op) >= static_cast<int>(ElementOp::kNeg);
}

enum class Source : uint8_t { kOperand, kNumber, kTemporary };

struct Instruction {
  ElementOp op = ElementOp::kLoad;
  Source source = Source::kOperand;
  uint8_t index = 0;    // of the operand or temporary
  float number = 0.0f;  // where source is kNumber
};

inline constexpr int kMaxInstructions = 24;
inline constexpr int kMaxOperands = 6;
inline constexpr int kNumTemporaries = 2;

REFRACT_HOST_DEVICE float ApplyUnary(ElementOp op, float x) {
  switch (op) {
    case ElementOp::kNeg:
      return -x;
    case ElementOp::kAbs:
      return fabsf(x);
    case ElementOp::kSquare:
      return x * x;
    case ElementOp::kSqrt:
      return sqrtf(x);
    case ElementOp::kRsqrt:
      return 1.0f / sqrtf(x);
    case ElementOp::kReciprocal:
      return 1.0f / x;
    case ElementOp::kExp:
      return expf(x);
    case ElementOp::kLog:
      return logf(x);
    case ElementOp::kRelu:
      return x < 0.0f ? 0.0f : x;  // NaN stays
    case ElementOp::kSigmoid:
      return 1.0f / (1.0f + expf(-x));
    case ElementOp::kTanh:
      return tanhf(x);
    case ElementOp::kSilu:
      return x / (1.0f + expf(-x));
    case ElementOp::kGelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case ElementOp::kGeluTanh:
      return 0.5f * x *
             (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    default:
      return x;
  }
}

REFRACT_HOST_DEVICE float ApplyBinary(ElementOp op, float acc, float source) {
  switch (op) {
    case ElementOp::kLoad:
      return source;
    case ElementOp::kAdd:
      return acc + source;
    case ElementOp::kSub:
      return acc - source;
    case ElementOp::kSubFrom:
      return source - acc;
    case ElementOp::kMul:
      return acc * source;
    case ElementOp::kDiv:
      return acc / source;
    case ElementOp::kDivInto:
      return source / acc;
    case ElementOp::kMaximum:
      return acc != acc || acc > source ? acc : source;
    case ElementOp::kMinimum:
      return acc != acc || acc < source ? acc : source;
    default:
      return acc;
  }
}

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_ELEMENT_OPS_H_
