#ifndef REFRACT_BASE_INTEGERS_H_
#define REFRACT_BASE_INTEGERS_H_

// Elements of dense tensors of int32 or int64: ids, offsets, lengths.

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/tensor.h"

namespace refract::base {

inline bool IsInt32OrInt64(DType dtype) {
  return dtype == DType::kInt32 || dtype == DType::kInt64;
}

inline int64_t IntAt(const TensorView& tensor, int64_t i) {
  return tensor.dtype == DType::kInt32
             ? reinterpret_cast<const int32_t*>(tensor.data)[i]
             : reinterpret_cast<const int64_t*>(tensor.data)[i];
}

// Sets element i of the tensor of `dtype` at `data`.
inline void SetInt(DType dtype, std::byte* data, int64_t i, int64_t value) {
  if (dtype == DType::kInt32) {
    reinterpret_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
  } else {
    reinterpret_cast<int64_t*>(data)[i] = value;
  }
}
inline void SetInt(Tensor& tensor, int64_t i, int64_t value) {
  SetInt(tensor.dtype(), tensor.data(), i, value);
}

}  // namespace refract::base

#endif  // REFRACT_BASE_INTEGERS_H_
