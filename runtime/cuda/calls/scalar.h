#ifndef REFRACT_RUNTIME_CUDA_CALLS_SCALAR_H_
#define REFRACT_RUNTIME_CUDA_CALLS_SCALAR_H_

// Element types of device tensors, and their conversions to and from float, the
// type in which every kernel computes.
//
// Conversions to 16 bits round to nearest, ties to even, as the hardware's do;
// NaN stays NaN, overflow becomes infinity.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/cuda/calls/annotations.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace refract::runtime::cuda {

enum class DType : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt32,
  kInt64,
  kBool,  // a byte: 0 or not
};

REFRACT_HOST_DEVICE bool IsFloating(DType dtype) {
  return static_cast<int>(dtype) <= static_cast<int>(DType::kBFloat16);
}

REFRACT_HOST_DEVICE int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt64:
      return 8;
    case DType::kBool:
      return 1;
    default:
      return 4;
  }
}
const char* Name(DType dtype);  // "float32"

// Bits of an IEEE binary16 and of a bfloat16.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
// A float whose products are computed with TensorFloat-32's 10 bits of
// mantissa.
struct Tf32 {
  float value;
};

// Storage of an element of T.
template <typename T>
inline constexpr DType kDTypeOf = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<Half> = DType::kFloat16;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBFloat16;

namespace scalar_internal {

REFRACT_HOST_DEVICE uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
REFRACT_HOST_DEVICE float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace scalar_internal

REFRACT_HOST_DEVICE float ToFloat(float value) { return value; }
REFRACT_HOST_DEVICE float ToFloat(Tf32 value) { return value.value; }
REFRACT_HOST_DEVICE float ToFloat(BFloat16 value) {
  return scalar_internal::FloatOf(static_cast<uint32_t>(value.bits) << 16);
}
REFRACT_HOST_DEVICE float ToFloat(Half value) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(value.bits));
#else
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const uint32_t mantissa = value.bits & 0x3FFu;
  if (exponent == 0) {  // zero or subnormal: mantissa · 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) {
    return scalar_internal::FloatOf(sign | 0x7F800000u | (mantissa << 13));
  }
  return scalar_internal::FloatOf(sign | ((exponent + 112) << 23) |
                                  (mantissa << 13));
#endif
}

REFRACT_HOST_DEVICE void FromFloat(float value, float& out) { out = value; }
REFRACT_HOST_DEVICE void FromFloat(float value, Tf32& out) {
  out.value = value;
}
REFRACT_HOST_DEVICE void FromFloat(float value, BFloat16& out) {
  const uint32_t bits = scalar_internal::BitsOf(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {  // keep NaN quiet, not infinity
    out.bits = static_cast<uint16_t>((bits >> 16) | 0x40u);
    return;
  }
  out.bits =
      static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
REFRACT_HOST_DEVICE void FromFloat(float value, Half& out) {
#ifdef __CUDA_ARCH__
  out.bits = __half_as_ushort(__float2half_rn(value));
#else
  const uint32_t bits = scalar_internal::BitsOf(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t half;
  if (magnitude > 0x7F800000u) {
    half = 0x7E00u;
  } else if (magnitude >= 0x47800000u) {  // 2^16 and up
    half = 0x7C00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: subnormal
    // Adding 0.5 leaves the value in units of 2^-24, rounded to even by the
    // addition itself.
    const float shifted = scalar_internal::FloatOf(magnitude) + 0.5f;
    half = scalar_internal::BitsOf(shifted) - 0x3F000000u;
  } else {
    // A carry out of the mantissa raises the exponent, up to infinity.
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    half = (rounded - 0x38000000u) >> 13;
  }
  out.bits = static_cast<uint16_t>(sign | half);
#endif
}

// Element `index` of memory that holds `dtype`, a floating-point type.
REFRACT_HOST_DEVICE float Load(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kFloat16:
      return ToFloat(static_cast<const Half*>(data)[index]);
    case DType::kBFloat16:
      return ToFloat(static_cast<const BFloat16*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}
REFRACT_HOST_DEVICE void Store(float value, void* data, DType dtype,
                               int64_t index) {
  switch (dtype) {
    case DType::kFloat16:
      FromFloat(value, static_cast<Half*>(data)[index]);
      return;
    case DType::kBFloat16:
      FromFloat(value, static_cast<BFloat16*>(data)[index]);
      return;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_SCALAR_H_
