#ifndef REFRACT_MODELS_OPERATORS_ELEMENT_CODE_H_
#define REFRACT_MODELS_OPERATORS_ELEMENT_CODE_H_

// Codes of functions that are computed element by element. The operator table,
// the fusion passes, the CPU kernels and the CUDA kernels all use these two
// enums; every back end has a switch over each enum that the compiler proves
// complete.
//
// The header lies beside the operator table, which names a code in each record.
// The header is C++17 and includes no other header of Refract, so the CUDA leaf
// (runtime/cuda) may include it although that folder otherwise stands alone
// (scripts/check_includes.py, SHARED_WITH_LEAVES).

#include <cstdint>

namespace refract::models {

// Functions of float32 values a, b, c and of two numbers x, y that belong to
// the instruction. Truth values are 0 and 1. F(code, name in reports).
// First the functions of a:
//   gelu         a/2 · (1 + erf(a/√2)); gelu_tanh is its approximation by tanh
//   leaky_relu   a > 0 ? a : a · x
//   elu          a > 0 ? a : x · (exp(a) − 1)
//   clamp        to [x, y]; NaN stays
//   scale        a · x
// clang-format off
#define REFRACT_UNARY_ELEMENT_CODES(F)                                      \
  F(kNegate, "neg") F(kAbsolute, "abs") F(kRelu, "relu")                    \
  F(kSigmoid, "sigmoid") F(kTanh, "tanh") F(kExp, "exp") F(kLog, "log")     \
  F(kLog1p, "log1p") F(kSqrt, "sqrt") F(kReciprocalSqrt, "rsqrt")           \
  F(kReciprocal, "reciprocal") F(kSquare, "square") F(kErf, "erf")          \
  F(kGelu, "gelu") F(kGeluTanh, "gelu_tanh") F(kSilu, "silu")               \
  F(kNot, "logical_not") F(kLeakyRelu, "leaky_relu") F(kElu, "elu")         \
  F(kClamp, "clamp") F(kScale, "scale") F(kCopy, "copy")         \
  F(kSign, "sign")
// Functions of a and b; minimum and maximum are NaN where either operand is.
#define REFRACT_BINARY_ELEMENT_CODES(F)                                     \
  F(kAdd, "add") F(kSubtract, "sub") F(kMultiply, "mul") F(kDivide, "div")  \
  F(kMinimum, "minimum") F(kMaximum, "maximum") F(kPower, "pow")            \
  F(kEqual, "eq") F(kNotEqual, "ne") F(kLess, "lt") F(kLessEqual, "le")     \
  F(kGreater, "gt") F(kGreaterEqual, "ge")                                  \
  F(kAnd, "logical_and") F(kOr, "logical_or")
// Functions of a, b and c: a != 0 ? b : c.
#define REFRACT_TERNARY_ELEMENT_CODES(F) F(kSelect, "where")
// clang-format on
#define REFRACT_ELEMENT_CODES(F)  \
  REFRACT_UNARY_ELEMENT_CODES(F)  \
  REFRACT_BINARY_ELEMENT_CODES(F) \
  REFRACT_TERNARY_ELEMENT_CODES(F)

#define REFRACT_ENUMERATOR(code, name) code,
enum class ElementCode : uint8_t { REFRACT_ELEMENT_CODES(REFRACT_ENUMERATOR) };
#undef REFRACT_ENUMERATOR
inline constexpr int kNumElementCodes =
    static_cast<int>(ElementCode::kSelect) + 1;
// The codes of one argument come before kFirstBinaryCode, kSelect is the last.
inline constexpr ElementCode kFirstBinaryCode = ElementCode::kAdd;

#define REFRACT_NAME(code, name) name,
inline constexpr const char* kElementNames[] = {
    REFRACT_ELEMENT_CODES(REFRACT_NAME)};
#undef REFRACT_NAME

// Functions of 64-bit integers and truth values, for ids, lengths, positions
// and masks: exact, where the codes above go through float. Overflow wraps.
enum class IntegerCode : uint8_t {
  // Functions of a. Floating-point operands lose their fraction; a value that
  // the result type cannot hold, and NaN, become its least value, as on x86. No
  // other code takes floating-point operands.
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
  // A division by 0 gives 0: the caller must have excluded it.
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

}  // namespace refract::models

#endif  // REFRACT_MODELS_OPERATORS_ELEMENT_CODE_H_
