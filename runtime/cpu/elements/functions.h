#ifndef REFRACT_RUNTIME_CPU_ELEMENTS_FUNCTIONS_H_
#define REFRACT_RUNTIME_CPU_ELEMENTS_FUNCTIONS_H_

// Functions of one float, written so that loops over them vectorise: no
// branches, no calls, no conversions that are undefined for NaN. Every
// operation is a separate IEEE operation (files that include this are compiled
// without contraction), so an element's bits depend neither on its position in
// a vector nor on the processor.
//
// Errors in units in the last place over all floats, measured by
// tests/runtime/cpu/element_chain_test.cc against double precision: Exp 2, Log
// 2, Tanh 3, Erf 2, Sigmoid 3. Infinities, NaN and signed zeros as in the C
// library.

#include <bit>
#include <cstdint>
#include <limits>

#include "runtime/cpu/clones.h"

namespace refract::runtime::cpu {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

REFRACT_INLINE float Fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
REFRACT_INLINE float Abs(float x) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffffu);
}
REFRACT_INLINE float CopySign(float x, float sign) {
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) & 0x7fffffffu) |
                              (std::bit_cast<uint32_t>(sign) & 0x80000000u));
}
// 2^n for n in [-126, 127].
REFRACT_INLINE float PowerOfTwo(int32_t n) {
  return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

// e^x = p × 2^n for x in [-104, 89].
struct ExpParts {
  float p;
  int32_t n;
};
REFRACT_INLINE ExpParts SplitExp(float x) {
  // n = round(x / ln 2): adding 1.5 × 2^23 leaves no bits for a fraction.
  constexpr float kRound = 12582912.0f;  // 1.5 × 2^23
  const float shifted = Fma(x, 1.44269504f, kRound);
  const int32_t n =
      std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const float whole = shifted - kRound;
  // r = x − n ln 2, with ln 2 in two parts to keep precision (Cody and Waite).
  float r = Fma(whole, -0.693359375f, x);
  r = Fma(whole, 2.12194440e-4f, r);
  // exp(r) on [−ln 2 / 2, ln 2 / 2]: Cephes' expf.
  float p = 1.9875691500e-4f;
  p = Fma(p, r, 1.3981999507e-3f);
  p = Fma(p, r, 8.3334519073e-3f);
  p = Fma(p, r, 4.1665795894e-2f);
  p = Fma(p, r, 1.6666665459e-1f);
  p = Fma(p, r, 5.0000001201e-1f);
  p = Fma(p, r * r, r) + 1.0f;
  return {p, n};
}

REFRACT_INLINE float Exp(float x) {
  // Beyond these bounds the result is 0 or infinite. NaN passes.
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const auto [p, n] = SplitExp(x);
  // Two factors, since 2^n itself may be out of range. The masks keep n in
  // bounds when x is NaN.
  const int32_t half = (n >> 1) & 0xff;
  const int32_t low = (half ^ 0x80) - 0x80;
  const int32_t rest = (((n - low) & 0xff) ^ 0x80) - 0x80;
  return p * PowerOfTwo(low) * PowerOfTwo(rest);
}

// 1 + e^x, bit for bit 1.0f + Exp(x). Bits of e^x that are lost beside 1 need
// not be right, so one factor is enough: 2^(n − 1), whose exponent is at least
// −127 and then gives 0.
REFRACT_INLINE float OnePlusExp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const auto [p, n] = SplitExp(x);
  const float power =
      std::bit_cast<float>((static_cast<uint32_t>(n + 126) & 0xffu) << 23);
  return 1.0f + p * power * 2.0f;
}

REFRACT_INLINE float Log(float x) {
  // Scales subnormal numbers to normal ones.
  const bool small = x < 1.17549435e-38f;
  const float scaled = small ? x * 8388608.0f : x;
  const uint32_t bits = std::bit_cast<uint32_t>(scaled);
  // Mantissa in [1/√2, √2).
  const uint32_t offset = bits - 0x3f3504f3u;
  const auto exponent = static_cast<int32_t>(offset) >> 23;
  const float m = std::bit_cast<float>((offset & 0x7fffffu) + 0x3f3504f3u);
  const float e = static_cast<float>(exponent) - (small ? 23.0f : 0.0f);
  // Cephes' logf.
  const float f = m - 1.0f;
  const float z = f * f;
  float p = 7.0376836292e-2f;
  p = Fma(p, f, -1.1514610310e-1f);
  p = Fma(p, f, 1.1676998740e-1f);
  p = Fma(p, f, -1.2420140846e-1f);
  p = Fma(p, f, 1.4249322787e-1f);
  p = Fma(p, f, -1.6668057665e-1f);
  p = Fma(p, f, 2.0000714765e-1f);
  p = Fma(p, f, -2.4999993993e-1f);
  p = Fma(p, f, 3.3333331174e-1f);
  float y = p * f * z;
  y = Fma(e, -2.12194440e-4f, y);
  y = Fma(z, -0.5f, y);
  float result = f + y;
  result = Fma(e, 0.693359375f, result);
  result = x == kInfinity ? kInfinity : result;
  result = x == 0.0f ? -kInfinity : result;
  return x < 0.0f || x != x ? std::numeric_limits<float>::quiet_NaN() : result;
}

REFRACT_INLINE float Log1p(float x) {
  // log(u), corrected by the rounding error of u = 1 + x.
  const float u = 1.0f + x;
  const float corrected = Log(u) * (x / (u - 1.0f));
  const float result = u == 1.0f ? x : corrected;
  return u == kInfinity || u == 0.0f ? Log(u) : result;
}

REFRACT_INLINE float Sigmoid(float x) { return 1.0f / OnePlusExp(-x); }

REFRACT_INLINE float Tanh(float x) {
  const float t = Abs(x);
  const float far = 1.0f - 2.0f / OnePlusExp(t + t);
  // Cephes' tanhf.
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = Fma(p, z, 2.06390887954e-2f);
  p = Fma(p, z, -5.37397155531e-2f);
  p = Fma(p, z, 1.33314422036e-1f);
  p = Fma(p, z, -3.33332819422e-1f);
  const float near = Fma(p * z, x, x);
  return t < 0.625f ? near : CopySign(far, x);
}

// Two polynomials, for small and large arguments, joined where their errors are
// equal.
REFRACT_INLINE float Erf(float x) {
  const float t = Abs(x);
  const float s = x * x;
  float far = Fma(-1.72853470e-5f, t, 3.83197126e-4f);
  const float u = Fma(-3.88396438e-3f, t, 2.42546219e-2f);
  far = Fma(far, s, u);
  far = Fma(far, t, -1.06777877e-1f);
  far = Fma(far, t, -6.34846687e-1f);
  far = Fma(far, t, -1.28717512e-1f);
  far = Fma(far, t, -t);
  // Far outside its range the polynomial turns around; the result there is 1.
  far = t > 4.0f ? -104.0f : far;
  far = CopySign(1.0f - Exp(far), x);
  float near = -5.96761703e-4f;
  near = Fma(near, s, 4.99119423e-3f);
  near = Fma(near, s, -2.67681349e-2f);
  near = Fma(near, s, 1.12819925e-1f);
  near = Fma(near, s, -3.76125336e-1f);
  near = Fma(near, s, 1.28379166e-1f);
  near = Fma(near, x, x);
  const float result = t > 0.927734375f ? far : near;
  return x != x ? x : result;
}

REFRACT_INLINE float Gelu(float x) {
  return 0.5f * x * (1.0f + Erf(x * 0.707106781f));
}
REFRACT_INLINE float GeluTanh(float x) {
  const float inner = 0.797884561f * Fma(0.044715f * x * x, x, x);
  return 0.5f * x * (1.0f + Tanh(inner));
}

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_ELEMENTS_FUNCTIONS_H_
