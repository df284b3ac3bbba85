#ifndef REFRACT_RUNTIME_WIRE_KERNELS_H_
#define REFRACT_RUNTIME_WIRE_KERNELS_H_

// Conversions between elements in memory and on the wire. Every instruction
// set gives the same bits: a CN and an HN of different age agree, and results
// do not change with the machine that a request happens to meet.

#include <cstddef>
#include <cstdint>

namespace refract::runtime::wire {

enum class Isa : uint8_t {
  kBaseline = 0,  // what the compiler targets anyway
  kAvx2 = 1,      // and F16C
  kAvx512 = 2,    // F, BW, DQ, VL
};
inline constexpr int kNumIsas = 3;

// None of them needs alignment; `from` and `to` do not overlap. `from` may be
// written by somebody else meanwhile: each element is read once, or gives some
// value of its type if it is not.
struct Kernels {
  // Round to nearest, ties to even. Finite numbers beyond the largest finite
  // one of the target (65504; 3.39e38 for bfloat16) become that one: a score
  // computed from it is off, one computed from an infinity is lost. Infinities
  // stay; a NaN becomes the quiet NaN of its sign. float16 keeps 2^-24 and its
  // multiples below 2^-14 (subnormal numbers), and the sign of zeros.
  void (*float16_from_float)(const float* from, size_t count, uint16_t* to);
  void (*bfloat16_from_float)(const float* from, size_t count, uint16_t* to);
  // Exact. A signalling NaN becomes a quiet one in float16.
  void (*float_from_float16)(const uint16_t* from, size_t count, float* to);
  void (*float_from_bfloat16)(const uint16_t* from, size_t count, float* to);

  // A row of `columns` ≥ 1 floats in columns + 8 bytes: codes, then scale and
  // offset as float32 (unaligned):
  //
  //   offset = min(row), scale = (max(row) - min(row)) / 255
  //   code = round((x - offset) · 255 / (max - min)), ties to even
  //   x' = offset + code · scale, each step rounded to float
  //
  // hence |x' - x| ≤ scale / 2 but for a few roundings. A row of equal elements
  // is exact (scale 0). In a row that has a NaN, an infinity, or a range that
  // floats cannot divide (above 3.4e38 or below 7.5e-37), scale is negative and
  // its magnitude counts, over 252 steps in double precision, clamped to finite
  // floats; codes 253, 254 and 255 are -inf, +inf and NaN. Min and max are then
  // over what is finite. Zeros of either sign in a row of other elements may
  // come back as the other zero.
  void (*int8_row_from_float)(const float* from, size_t columns, uint8_t* to);
  void (*float_from_int8_row)(const uint8_t* from, size_t columns, float* to);

  // False, with `to` in part written, when an element does not fit.
  bool (*int32_from_int64)(const int64_t* from, size_t count, int32_t* to);
  void (*int64_from_int32)(const int32_t* from, size_t count, int64_t* to);
};

// Null when this processor, or this build, lacks it.
const Kernels* KernelsFor(Isa isa);
// The best there is.
const Kernels& BestKernels();

}  // namespace refract::runtime::wire

#endif  // REFRACT_RUNTIME_WIRE_KERNELS_H_
