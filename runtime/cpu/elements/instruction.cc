// One loop per operator over a tile of floats. Truth values are 0 and 1.

#include "runtime/cpu/elements/instruction.h"

#include "runtime/cpu/clones.h"
#include "runtime/cpu/elements/functions.h"

namespace refract::runtime::cpu {
namespace {

template <typename F>
REFRACT_INLINE void Map(const float* __restrict a, int64_t count,
                        float* __restrict out, F f) {
  for (int64_t i = 0; i < count; ++i) out[i] = f(a[i]);
}

template <typename F>
REFRACT_INLINE void Map(const float* __restrict a, const float* __restrict b,
                        int64_t count, float* __restrict out, F f) {
  for (int64_t i = 0; i < count; ++i) out[i] = f(a[i], b[i]);
}

REFRACT_INLINE float Truth(bool x) { return x ? 1.0f : 0.0f; }

// The switch is outside the loops, and each case is a loop of its own, so that
// all of them vectorise.
REFRACT_CPU_CLONES void RunUnary(const ElementInstruction& instruction,
                                 const float* a, int64_t count, float* out) {
  const float x = instruction.x;
  const float y = instruction.y;
  switch (instruction.code) {
    case ElementCode::kNegate:
      return Map(a, count, out, [](float v) { return -v; });
    case ElementCode::kAbsolute:
      return Map(a, count, out, [](float v) { return Abs(v); });
    case ElementCode::kRelu:
      // NaN is not below 0 and stays.
      return Map(a, count, out, [](float v) { return v < 0 ? 0.0f : v; });
    case ElementCode::kSigmoid:
      return Map(a, count, out, [](float v) { return Sigmoid(v); });
    case ElementCode::kTanh:
      return Map(a, count, out, [](float v) { return Tanh(v); });
    case ElementCode::kExp:
      return Map(a, count, out, [](float v) { return Exp(v); });
    case ElementCode::kLog:
      return Map(a, count, out, [](float v) { return Log(v); });
    case ElementCode::kLog1p:
      return Map(a, count, out, [](float v) { return Log1p(v); });
    case ElementCode::kSqrt:
      return Map(a, count, out, [](float v) { return __builtin_sqrtf(v); });
    case ElementCode::kReciprocalSqrt:
      return Map(a, count, out,
                 [](float v) { return 1.0f / __builtin_sqrtf(v); });
    case ElementCode::kReciprocal:
      return Map(a, count, out, [](float v) { return 1.0f / v; });
    case ElementCode::kSquare:
      return Map(a, count, out, [](float v) { return v * v; });
    case ElementCode::kErf:
      return Map(a, count, out, [](float v) { return Erf(v); });
    case ElementCode::kGelu:
      return Map(a, count, out, [](float v) { return Gelu(v); });
    case ElementCode::kGeluTanh:
      return Map(a, count, out, [](float v) { return GeluTanh(v); });
    case ElementCode::kSilu:
      // v × sigmoid(v).
      return Map(a, count, out, [](float v) { return v / OnePlusExp(-v); });
    case ElementCode::kNot:
      return Map(a, count, out, [](float v) { return Truth(v == 0); });
    case ElementCode::kLeakyRelu:
      return Map(a, count, out, [x](float v) { return v > 0 ? v : v * x; });
    case ElementCode::kElu:
      return Map(a, count, out, [x](float v) {
        // Computes both branches, so that the loop has no jump and vectorises.
        // Exp(v) may be infinite for large v, where the other branch is taken.
        const float low = x * (Exp(v) - 1.0f);
        return v > 0 ? v : low;
      });
    case ElementCode::kClamp:
      return Map(a, count, out, [x, y](float v) {
        // Comparisons are false for NaN, which therefore stays.
        const float low = v < x ? x : v;
        return low > y ? y : low;
      });
    case ElementCode::kScale:
      return Map(a, count, out, [x](float v) { return v * x; });
    case ElementCode::kCopy:
      return Map(a, count, out, [](float v) { return v; });
    case ElementCode::kSign:
      return Map(a, count, out,
                 [](float v) { return Truth(v > 0) - Truth(v < 0); });
#define REFRACT_CASE(code, name) case ElementCode::code:
      REFRACT_BINARY_ELEMENT_CODES(REFRACT_CASE)
      REFRACT_TERNARY_ELEMENT_CODES(REFRACT_CASE)
      return;  // of more arguments: see RunInstruction()
  }
}

REFRACT_CPU_CLONES void RunBinary(ElementCode code, const float* a,
                                  const float* b, int64_t count, float* out) {
  switch (code) {
    case ElementCode::kAdd:
      return Map(a, b, count, out, [](float v, float w) { return v + w; });
    case ElementCode::kSubtract:
      return Map(a, b, count, out, [](float v, float w) { return v - w; });
    case ElementCode::kMultiply:
      return Map(a, b, count, out, [](float v, float w) { return v * w; });
    case ElementCode::kDivide:
      return Map(a, b, count, out, [](float v, float w) { return v / w; });
    case ElementCode::kMinimum:
      return Map(a, b, count, out, [](float v, float w) {
        // NaN in either argument gives NaN: v explicitly, w because the
        // comparison is false.
        const float least = v < w ? v : w;
        return v != v ? v : least;
      });
    case ElementCode::kMaximum:
      return Map(a, b, count, out, [](float v, float w) {
        const float most = v > w ? v : w;
        return v != v ? v : most;
      });
    case ElementCode::kEqual:
      return Map(a, b, count, out,
                 [](float v, float w) { return Truth(v == w); });
    case ElementCode::kNotEqual:
      return Map(a, b, count, out,
                 [](float v, float w) { return Truth(v != w); });
    case ElementCode::kLess:
      return Map(a, b, count, out,
                 [](float v, float w) { return Truth(v < w); });
    case ElementCode::kLessEqual:
      return Map(a, b, count, out,
                 [](float v, float w) { return Truth(v <= w); });
    case ElementCode::kGreater:
      return Map(a, b, count, out,
                 [](float v, float w) { return Truth(v > w); });
    case ElementCode::kGreaterEqual:
      return Map(a, b, count, out,
                 [](float v, float w) { return Truth(v >= w); });
    case ElementCode::kAnd:
      return Map(a, b, count, out, [](float v, float w) {
        // Arithmetic on 0 and 1 instead of branches.
        return Truth(v != 0) * Truth(w != 0);
      });
    case ElementCode::kOr:
      return Map(a, b, count, out, [](float v, float w) {
        const float both = Truth(v != 0) + Truth(w != 0);
        return both > 0 ? 1.0f : 0.0f;
      });
    case ElementCode::kPower:
      return Map(a, b, count, out,
                 [](float v, float w) { return __builtin_powf(v, w); });
      REFRACT_UNARY_ELEMENT_CODES(REFRACT_CASE)
      REFRACT_TERNARY_ELEMENT_CODES(REFRACT_CASE)
#undef REFRACT_CASE
      return;
  }
}

REFRACT_CPU_CLONES void Select(const float* __restrict a,
                               const float* __restrict b,
                               const float* __restrict c, int64_t count,
                               float* __restrict out) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] != 0 ? b[i] : c[i];
}

}  // namespace

void RunInstruction(const ElementInstruction& instruction, const float* a,
                    const float* b, const float* c, int64_t count, float* out) {
  // Codes are ordered by their number of arguments.
  if (instruction.code < models::kFirstBinaryCode) {
    RunUnary(instruction, a, count, out);
  } else if (instruction.code < ElementCode::kSelect) {
    RunBinary(instruction.code, a, b, count, out);
  } else {
    Select(a, b, c, count, out);
  }
}

}  // namespace refract::runtime::cpu
