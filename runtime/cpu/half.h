#ifndef REFRACT_RUNTIME_CPU_HALF_H_
#define REFRACT_RUNTIME_CPU_HALF_H_

// IEEE binary16 and bfloat16 as bits, converted to and from float. Widening has
// no branches, so that loops over it vectorise on any x86-64.

#include <bit>
#include <cstdint>

namespace refract::runtime::cpu {

struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

inline float ToFloat(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fff) << 13;
  // Exponents are biased by 15 and 127. Multiplying by 2^(127-15) rebiases them
  // and makes subnormal numbers normal.
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  // An exponent of all ones (infinity, NaN) stays all ones.
  const uint32_t special = magnitude >= (0x7c00u << 13) ? 0x7f800000u : 0;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

inline float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline float ToFloat(float value) { return value; }
inline double ToFloat(double value) { return value; }

// Rounds to nearest, ties to even. Overflow gives infinity; a NaN stays a NaN.
inline void FromFloat(float value, Float16& to) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    to.bits = sign | 0x7e00;
  } else if (magnitude >= 0x47800000) {  // 65536 and more
    to.bits = sign | 0x7c00;
  } else if (magnitude < 0x38800000) {  // below 2^-14: subnormal or zero
    // Adding 0.5 aligns the 24 - 14 bits of a subnormal half with the end of
    // the sum's mantissa; the addition itself rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    to.bits = sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(sum) -
                                           std::bit_cast<uint32_t>(0.5f));
  } else {
    const uint32_t odd = (magnitude >> 13) & 1;
    // Rebias by 15 - 127 and round; a carry into the exponent gives the right
    // result.
    to.bits = sign | static_cast<uint16_t>(
                         (magnitude - (112u << 23) + 0xfff + odd) >> 13);
  }
}

inline void FromFloat(float value, BFloat16& to) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    to.bits = static_cast<uint16_t>((bits >> 16) | 0x40);
  } else {
    to.bits = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}

inline void FromFloat(float value, float& to) { to = value; }
inline void FromFloat(double value, double& to) { to = value; }

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_HALF_H_
