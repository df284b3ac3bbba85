#ifndef REFRACT_RUNTIME_WIRE_KERNELS_H_
#define REFRACT_RUNTIME_WIRE_KERNELS_H_

// Conversions between elements in memory and in wire forms. Every instruction
// set gives the same bits, so a CN and an HN with different processors agree,
// and results do not depend on the machine.

#include <cstddef>
#include <cstdint>

namespace refract::runtime::wire {

enum class Isa : uint8_t {
  kBaseline = 0,  // the compiler's default target
  kAvx2 = 1,      // and F16C
  kAvx512 = 2,    // F, BW, DQ, VL
};

// No function needs alignment; `from` and `to` do not overlap. A peer may write
// `from` meanwhile: each element then decodes to some value of its type.
struct Kernels {
  // Round to nearest, ties to even. Finite numbers beyond the largest finite
  // number of the target (65504; 3.39e38 for bfloat16) become that number: a
  // score computed from it is inexact, a score computed from an infinity would
  // be lost. Infinities stay; a NaN becomes the quiet NaN of its sign. float16
  // keeps multiples of 2^-24 below 2^-14 (subnormal numbers) and the sign of
  // zeros.
  void (*float16_from_float)(const float* from, size_t count, uint16_t* to);
  void (*bfloat16_from_float)(const float* from, size_t count, uint16_t* to);
  // Exact. A signalling NaN becomes quiet in float16.
  void (*float_from_float16)(const uint16_t* from, size_t count, float* to);
  void (*float_from_bfloat16)(const uint16_t* from, size_t count, float* to);

  // Encodes a row of `columns` ≥ 1 floats in columns + 8 bytes: codes, then
  // scale and offset as float32 (unaligned):
  //
  //   offset = min(row), scale = (max(row) - min(row)) / 255
  //   code = round((x - offset) · 255 / (max - min)), ties to even
  //   x' = offset + code · scale, each step rounded to float
  //
  // Hence |x' - x| ≤ scale / 2 apart from a few roundings. A row of equal
  // elements is exact (scale 0). A row with a NaN, an infinity, or a range that
  // floats cannot divide (above 3.4e38 or below 7.5e-37) has a negative scale:
  // its magnitude counts, over 252 steps in double precision, clamped to finite
  // floats; codes 253, 254 and 255 are -inf, +inf and NaN. Min and max are then
  // taken over the finite elements. A zero in a row with other elements may
  // change its sign.
  void (*int8_row_from_float)(const float* from, size_t columns, uint8_t* to);
  void (*float_from_int8_row)(const uint8_t* from, size_t columns, float* to);

  // False when an element does not fit; `to` is then partly written.
  bool (*int32_from_int64)(const int64_t* from, size_t count, int32_t* to);
  void (*int64_from_int32)(const int32_t* from, size_t count, int64_t* to);
};

// Null when this processor or this build lacks the instruction set.
const Kernels* KernelsFor(Isa isa);
// The fastest set of this processor.
const Kernels& BestKernels();

}  // namespace refract::runtime::wire

#endif  // REFRACT_RUNTIME_WIRE_KERNELS_H_
