#ifndef REFRACT_RUNTIME_WIRE_ELEMENTS_H_
#define REFRACT_RUNTIME_WIRE_ELEMENTS_H_

// Elements of any dtype to and from a form, in blocks. Internal to
// runtime/wire.

#include <cstddef>
#include <vector>

#include "base/dtype.h"
#include "models/repository/wire_form.h"

namespace refract::runtime::wire {

// dtype of the tensor that carries elements of `dtype` in `type`.
base::DType CarrierOf(base::DType dtype, models::WireType type);

// `count` elements of `dtype`, in rows of `columns` (`count` is a multiple of
// it; 1 if rows mean nothing to `type`). `to` holds what CarrierOf() needs,
// for kInt8 with kInt8RowExtra bytes more per row. `floats` is memory to pass
// through, which grows to what it takes.
void EncodeElements(base::DType dtype, models::WireType type,
                    const std::byte* from, size_t count, size_t columns,
                    std::byte* to, std::vector<float>& floats);
// The reverse. `from` may change meanwhile: see Kernels.
void DecodeElements(base::DType dtype, models::WireType type,
                    const std::byte* from, size_t count, size_t columns,
                    std::byte* to, std::vector<float>& floats);

// Narrows nothing that does not fit: whether all of `count` int64 do.
bool FitInt32(const std::byte* from, size_t count);

}  // namespace refract::runtime::wire

#endif  // REFRACT_RUNTIME_WIRE_ELEMENTS_H_
