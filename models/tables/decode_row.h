#ifndef REFRACT_MODELS_TABLES_DECODE_ROW_H_
#define REFRACT_MODELS_TABLES_DECODE_ROW_H_

// One table row → floats, element by element. For probes at import; requests
// are served by runtime/cpu/look_ups/row_reader.h.

#include <cstddef>

#include "absl/types/span.h"
#include "models/tables/row_format.h"

namespace refract::models {

// `row`: layout.stride bytes. `values`: layout.dim floats, scale × q + bias
// with one rounding per operation.
void DecodeRow(const RowLayout& layout, const std::byte* row,
               absl::Span<float> values);

}  // namespace refract::models

#endif  // REFRACT_MODELS_TABLES_DECODE_ROW_H_
