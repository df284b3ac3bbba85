#ifndef REFRACT_RUNTIME_WIRE_ELEMENTS_H_
#define REFRACT_RUNTIME_WIRE_ELEMENTS_H_

// Conversion of elements of any dtype to and from a wire form, in blocks.
// Internal to runtime/wire.

#include <cstddef>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"
#include "models/repository/wire_form.h"

namespace refract::runtime::wire {

// `bytes` up to the alignment of tensors in a message.
constexpr size_t RoundUp(size_t bytes) {
  return (bytes + base::kTensorAlignBytes - 1) / base::kTensorAlignBytes *
         base::kTensorAlignBytes;
}

// Dtype of the tensor that carries elements of `dtype` in wire form `type`.
base::DType CarrierOf(base::DType dtype, models::WireType type);

// Encodes `count` elements of `dtype` in rows of `columns` (`count` is a
// multiple of it; 1 if `type` has no rows). `to` has room for CarrierOf(), with
// WireTypeRecord::row_extra more bytes per row. `floats` is scratch memory that
// grows as needed.
void EncodeElements(base::DType dtype, models::WireType type,
                    const std::byte* from, size_t count, size_t columns,
                    std::byte* to, std::vector<float>& floats);
// Decodes. `from` may change meanwhile: see Kernels.
void DecodeElements(base::DType dtype, models::WireType type,
                    const std::byte* from, size_t count, size_t columns,
                    std::byte* to, std::vector<float>& floats);

// Whether `type` can hold all elements, which are of a dtype that it takes.
bool Fit(models::WireType type, const std::byte* from, size_t count);

}  // namespace refract::runtime::wire

#endif  // REFRACT_RUNTIME_WIRE_ELEMENTS_H_
