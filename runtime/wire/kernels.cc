#include "runtime/wire/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__x86_64__) && defined(__GNUC__)
#define REFRACT_WIRE_X86 1
#include <immintrin.h>
#endif

// Each loop is written once, inlined into one function per instruction set and
// vectorised there. Loops use only operations whose result does not depend on
// the vector width: integers, and single IEEE operations in a fixed order. This
// file is compiled without contraction to fused multiply-adds, which would
// round differently where the processor has them (runtime/CMakeLists.txt).
#define REFRACT_INLINE inline __attribute__((always_inline))

namespace refract::runtime::wire {
namespace {

constexpr float kMaxFloat = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kInfinityBits = 0x7f800000u;

// -------------------------------------------------------------------- float16

REFRACT_INLINE uint16_t Float16Of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits & kSignBit) >> 16;
  const uint32_t magnitude = bits & ~kSignBit;
  // Below 2^-14, adding 0.5 aligns the bits of a subnormal half with the end of
  // the sum's mantissa; the addition itself rounds.
  const float sum =
      std::bit_cast<float>(std::min(magnitude, 0x38800000u)) + 0.5f;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f);
  // Rebias by 15 - 127 and round; a carry into the exponent gives the right
  // result. Values that would round to 65536 stay at 65504.
  const uint32_t odd = (magnitude >> 13) & 1;
  const uint32_t normal = std::min(
      (std::min(magnitude, 0x477fffffu) - (112u << 23) + 0xfff + odd) >> 13,
      0x7bffu);
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= kInfinityBits ? 0x7c00u : half;
  half = magnitude > kInfinityBits ? 0x7e00u : half;
  return static_cast<uint16_t>(half | sign);
}

REFRACT_INLINE void Float16sOf(const float* from, size_t count, uint16_t* to) {
  for (size_t i = 0; i < count; ++i) to[i] = Float16Of(from[i]);
}

REFRACT_INLINE float FloatOfHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13;
  // Exponents are biased by 15 and 127. Multiplying by 2^(127-15) rebiases them
  // and makes subnormal numbers normal.
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const uint32_t normal = std::bit_cast<uint32_t>(scaled);
  const uint32_t special =
      kInfinityBits | magnitude |
      (magnitude > (0x7c00u << 13) ? 0x00400000u : 0u);  // quiet
  const uint32_t bits = magnitude >= (0x7c00u << 13) ? special : normal;
  return std::bit_cast<float>(bits | sign);
}

REFRACT_INLINE void FloatsOfHalves(const uint16_t* from, size_t count,
                                   float* to) {
  for (size_t i = 0; i < count; ++i) to[i] = FloatOfHalf(from[i]);
}

// ------------------------------------------------------------------- bfloat16

REFRACT_INLINE void BFloat16sOf(const float* from, size_t count, uint16_t* to) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(from[i]);
    const uint32_t sign = (bits & kSignBit) >> 16;
    const uint32_t magnitude = bits & ~kSignBit;
    const uint32_t odd = (magnitude >> 16) & 1;
    uint32_t half = std::min((magnitude + 0x7fff + odd) >> 16, 0x7f7fu);
    half = magnitude >= kInfinityBits ? 0x7f80u : half;
    half = magnitude > kInfinityBits ? 0x7fc0u : half;
    to[i] = static_cast<uint16_t>(half | sign);
  }
}

REFRACT_INLINE void FloatsOfBFloat16s(const uint16_t* from, size_t count,
                                      float* to) {
  for (size_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
  }
}

// ----------------------------------------------------------------- int8 by row

constexpr int kSteps = 255;
constexpr int kSpecialSteps = 252;
constexpr uint8_t kMinusInfinity = 253;
constexpr uint8_t kPlusInfinity = 254;
constexpr uint8_t kNotANumber = 255;

// Adding this to a float of magnitude below 2^22 rounds it to an integer, ties
// to even, which is then in the sum's last bits.
constexpr float kRoundingShift = 0x1.8p23f;

// Floats as integers with the same order: -NaN, -inf, …, -0, +0, …, inf, NaN. A
// minimum of integers is vectorised; a minimum of floats is not, because of
// NaNs.
REFRACT_INLINE int32_t KeyOf(float value) {
  const int32_t bits = std::bit_cast<int32_t>(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
REFRACT_INLINE float FloatOfKey(int32_t key) {
  return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff));
}

void PutScale(float scale, float offset, uint8_t* to) {
  std::memcpy(to, &scale, sizeof(scale));
  std::memcpy(to + sizeof(scale), &offset, sizeof(offset));
}

// Rows with special values, see kernels.h. Rare, so all instruction sets share
// the code.
__attribute__((noinline)) void SpecialInt8RowOf(const float* from,
                                                size_t columns, uint8_t* to) {
  float min = kInfinity;
  float max = -kInfinity;
  for (size_t i = 0; i < columns; ++i) {
    if (!std::isfinite(from[i])) continue;
    min = std::min(min, from[i]);
    max = std::max(max, from[i]);
  }
  if (min > max) min = max = 0;  // no finite element
  const double range = static_cast<double>(max) - min;
  auto scale = static_cast<float>(range / kSpecialSteps);
  // Rounds the scale up where the steps would not reach the maximum, which
  // happens with subnormal scales. The scale must not be zero, since its sign
  // marks the row.
  if (scale == 0 || scale * double{kSpecialSteps} < range) {
    scale = std::nextafter(scale, kInfinity);
  }
  for (size_t i = 0; i < columns; ++i) {
    const float value = from[i];
    if (std::isnan(value)) {
      to[i] = kNotANumber;
    } else if (std::isinf(value)) {
      to[i] = value < 0 ? kMinusInfinity : kPlusInfinity;
    } else {
      const double steps =
          std::nearbyint((static_cast<double>(value) - min) / scale);
      to[i] = static_cast<uint8_t>(
          std::clamp(steps, 0.0, static_cast<double>(kSpecialSteps)));
    }
  }
  PutScale(-scale, min, to + columns);
}

__attribute__((noinline)) void FloatsOfSpecialInt8Row(const uint8_t* from,
                                                      size_t columns,
                                                      float scale, float offset,
                                                      float* to) {
  for (size_t i = 0; i < columns; ++i) {
    switch (const uint8_t code = from[i]) {
      case kMinusInfinity:
        to[i] = -kInfinity;
        break;
      case kPlusInfinity:
        to[i] = kInfinity;
        break;
      case kNotANumber:
        to[i] = kNan;
        break;
      default: {
        const double value = offset + code * -static_cast<double>(scale);
        // A NaN can only come from a peer that violates the format; it stays a
        // NaN.
        to[i] = static_cast<float>(std::clamp(
            value, -static_cast<double>(kMaxFloat), double{kMaxFloat}));
      }
    }
  }
}

REFRACT_INLINE void Int8RowOf(const float* from, size_t columns, uint8_t* to) {
  int32_t min_key = std::numeric_limits<int32_t>::max();
  int32_t max_key = std::numeric_limits<int32_t>::min();
  for (size_t i = 0; i < columns; ++i) {
    const int32_t key = KeyOf(from[i]);
    min_key = std::min(min_key, key);
    max_key = std::max(max_key, key);
  }
  const float min = FloatOfKey(min_key);
  const float max = FloatOfKey(max_key);
  const float range = max - min;
  const float steps_per_one = kSteps / range;
  // NaNs sort outside the infinities, so two comparisons find them all.
  const bool finite = min_key > KeyOf(-kInfinity) && max_key < KeyOf(kInfinity);
  if (finite && range == 0) {
    std::memset(to, 0, columns);
    // max is +0 where the row has zeros of both signs.
    return PutScale(0, max, to + columns);
  }
  if (!finite || !(range <= kMaxFloat) || !(steps_per_one <= kMaxFloat)) {
    return SpecialInt8RowOf(from, columns, to);
  }
  for (size_t i = 0; i < columns; ++i) {
    const float shifted = (from[i] - min) * steps_per_one + kRoundingShift;
    to[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted));
  }
  PutScale(range / kSteps, min, to + columns);
}

REFRACT_INLINE void FloatsOfInt8Row(const uint8_t* from, size_t columns,
                                    float* to) {
  float scale;
  float offset;
  std::memcpy(&scale, from + columns, sizeof(scale));
  std::memcpy(&offset, from + columns + sizeof(scale), sizeof(offset));
  if (scale == 0) {  // keeps the sign of a zero
    for (size_t i = 0; i < columns; ++i) to[i] = offset;
    return;
  }
  if (std::signbit(scale)) {
    return FloatsOfSpecialInt8Row(from, columns, scale, offset, to);
  }
  for (size_t i = 0; i < columns; ++i) {
    to[i] = offset + static_cast<float>(static_cast<int32_t>(from[i])) * scale;
  }
}

// ---------------------------------------------------------------------- int32

REFRACT_INLINE bool Int32sOf(const int64_t* from, size_t count, int32_t* to) {
  uint64_t lost = 0;
  for (size_t i = 0; i < count; ++i) {
    const int64_t value = from[i];
    // value + 2^31 is in [0, 2^32) exactly when the value fits.
    lost |= (static_cast<uint64_t>(value) + 0x80000000u) >> 32;
    to[i] = static_cast<int32_t>(value);
  }
  return lost == 0;
}

REFRACT_INLINE void Int64sOf(const int32_t* from, size_t count, int64_t* to) {
  for (size_t i = 0; i < count; ++i) to[i] = from[i];
}

// ----------------------------------------------------------- instruction sets

#define REFRACT_WIRE_KERNELS(ATTRIBUTE, NAME)                              \
  struct NAME {                                                            \
    ATTRIBUTE static void ToFloat16(const float* from, size_t count,       \
                                    uint16_t* to) {                        \
      Float16sOf(from, count, to);                                         \
    }                                                                      \
    ATTRIBUTE static void ToBFloat16(const float* from, size_t count,      \
                                     uint16_t* to) {                       \
      BFloat16sOf(from, count, to);                                        \
    }                                                                      \
    ATTRIBUTE static void FromFloat16(const uint16_t* from, size_t count,  \
                                      float* to) {                         \
      FloatsOfHalves(from, count, to);                                     \
    }                                                                      \
    ATTRIBUTE static void FromBFloat16(const uint16_t* from, size_t count, \
                                       float* to) {                        \
      FloatsOfBFloat16s(from, count, to);                                  \
    }                                                                      \
    ATTRIBUTE static void ToInt8Row(const float* from, size_t columns,     \
                                    uint8_t* to) {                         \
      Int8RowOf(from, columns, to);                                        \
    }                                                                      \
    ATTRIBUTE static void FromInt8Row(const uint8_t* from, size_t columns, \
                                      float* to) {                         \
      FloatsOfInt8Row(from, columns, to);                                  \
    }                                                                      \
    ATTRIBUTE static bool ToInt32(const int64_t* from, size_t count,       \
                                  int32_t* to) {                           \
      return Int32sOf(from, count, to);                                    \
    }                                                                      \
    ATTRIBUTE static void FromInt32(const int32_t* from, size_t count,     \
                                    int64_t* to) {                         \
      Int64sOf(from, count, to);                                           \
    }                                                                      \
    static constexpr Kernels kKernels = {                                  \
        ToFloat16, ToBFloat16,  FromFloat16, FromBFloat16,                 \
        ToInt8Row, FromInt8Row, ToInt32,     FromInt32};                   \
  }

REFRACT_WIRE_KERNELS(, Baseline);

#ifdef REFRACT_WIRE_X86

REFRACT_WIRE_KERNELS(__attribute__((target("avx2,f16c"))), Avx2);
REFRACT_WIRE_KERNELS(
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,"
                          "prefer-vector-width=512"))),
    Avx512);

// F16C converts eight at a time; the code around it corrects the cases where it
// differs from the scalar conversion. (An AVX-512 version gains nothing: both
// move 32 bytes per conversion.)
__attribute__((target("avx2,f16c"))) void F16cFromFloat(const float* from,
                                                        size_t count,
                                                        uint16_t* to) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  const __m256 most = _mm256_set1_ps(65504.0f);
  const __m256 infinity = _mm256_set1_ps(kInfinity);
  const __m256 quiet = _mm256_set1_ps(kNan);
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 value = _mm256_loadu_ps(from + i);
    const __m256 signs = _mm256_and_ps(value, sign);
    const __m256 magnitude = _mm256_andnot_ps(sign, value);
    __m256 result = _mm256_min_ps(magnitude, most);
    result = _mm256_blendv_ps(result, infinity,
                              _mm256_cmp_ps(magnitude, infinity, _CMP_EQ_OQ));
    result = _mm256_blendv_ps(
        result, quiet, _mm256_cmp_ps(magnitude, magnitude, _CMP_UNORD_Q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_or_ps(result, signs),
                                     _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) to[i] = Float16Of(from[i]);
}

__attribute__((target("avx2,f16c"))) void F16cToFloat(const uint16_t* from,
                                                      size_t count, float* to) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(
                                 reinterpret_cast<const __m128i*>(from + i))));
  }
  for (; i < count; ++i) to[i] = FloatOfHalf(from[i]);
}

Kernels WithF16c(Kernels kernels) {
  kernels.float16_from_float = F16cFromFloat;
  kernels.float_from_float16 = F16cToFloat;
  return kernels;
}

#endif  // REFRACT_WIRE_X86

}  // namespace

const Kernels* KernelsFor(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return &Baseline::kKernels;
#ifdef REFRACT_WIRE_X86
    case Isa::kAvx2: {
      static const Kernels kernels = WithF16c(Avx2::kKernels);
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")
                 ? &kernels
                 : nullptr;
    }
    case Isa::kAvx512: {
      static const Kernels kernels = WithF16c(Avx512::kKernels);
      return KernelsFor(Isa::kAvx2) != nullptr &&
                     __builtin_cpu_supports("avx512f") &&
                     __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") &&
                     __builtin_cpu_supports("avx512vl")
                 ? &kernels
                 : nullptr;
    }
#else
    case Isa::kAvx2:
    case Isa::kAvx512:
      return nullptr;
#endif
  }
  return nullptr;
}

const Kernels& BestKernels() {
  static const Kernels* const best = [] {
    for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
      if (const Kernels* kernels = KernelsFor(isa)) return kernels;
    }
    return KernelsFor(Isa::kBaseline);
  }();
  return *best;
}

}  // namespace refract::runtime::wire
