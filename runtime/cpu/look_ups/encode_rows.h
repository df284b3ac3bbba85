#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_ENCODE_ROWS_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_ENCODE_ROWS_H_

// Floats → rows of a table (models/tables/row_format.h). Decoded by
// ReduceBags().

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "models/tables/row_format.h"

namespace refract::runtime::cpu {

// Writes the row at `out` (layout.stride bytes; padding becomes 0) from
// layout.dim floats. The bytes are those that PyTorch and FBGEMM write:
//
//   fp32 parameters:  scale = (max − min) / 255,  bias = min
//                     q = round((x − min) × 255 / (max − min + 1e-8))
//   fp16 parameters:  bias = fp16(min),  scale = fp16((max − bias) / levels),
//                     1 where that is 0;
//                     q = clamp(round((x − bias) / scale), 0, levels)
//
// round() is to nearest, ties to even. InvalidArgument names the column of a
// NaN or infinity, or a value, bias or scale that overflows fp16 or bf16.
absl::Status EncodeRow(absl::Span<const float> values,
                       const models::RowLayout& layout, std::byte* out);

// Upper bound of |decoded − x| for each x of the row, derived from the formulas
// above and the row's range alone. With u = 2^-11 (half a unit of fp16), range
// = max − min and s the scale before rounding:
//
//   fp32 parameters:  s / 2 + min(range, 1e-8)
//   fp16 parameters:  max((s + ds) / 2, levels × ds + m),
//                     m = |min| × u + 2^-25 (rounding of the bias),
//                     ds = s × u + 2^-25 (rounding of the scale)
//   fp16, bf16:       |x| × 2^-11 + 2^-25, |x| × 2^-8 + 2^-133
//
// plus 2^-21 × (range + |min| + |max|) for float32 arithmetic in the quantised
// formats.
float RowErrorBound(absl::Span<const float> values,
                    const models::RowFormat& format);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_ENCODE_ROWS_H_
