// Copies row by row after merging dimensions; the last merged dimension is the
// row.

#include "runtime/cpu/strided_copy.h"

#include <cstring>

namespace refract::runtime::cpu {
namespace {

// The same traversal with dimensions merged wherever strides allow it, so that
// rows are long and few.
struct Walk {
  base::Dims dims;
  Strides strides;
};

Walk Collapse(absl::Span<const int64_t> dims,
              absl::Span<const int64_t> strides) {
  Walk walk;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) continue;
    // A step of the outer dimension is a whole inner dimension: both are one.
    if (!walk.dims.empty() && walk.strides.back() == strides[d] * dims[d]) {
      walk.dims.back() *= dims[d];
      walk.strides.back() = strides[d];
    } else {
      walk.dims.push_back(dims[d]);
      walk.strides.push_back(strides[d]);
    }
  }
  return walk;
}

template <typename T>
void CopyRow(const std::byte* from, int64_t count, int64_t stride,
             std::byte* to) {
  const T* source = reinterpret_cast<const T*>(from);
  T* target = reinterpret_cast<T*>(to);
  // A broadcast dimension: the compiler turns this loop into vector stores.
  if (stride == 0) {
    const T value = *source;
    for (int64_t i = 0; i < count; ++i) target[i] = value;
  } else {
    for (int64_t i = 0; i < count; ++i) target[i] = source[i * stride];
  }
}

using RowCopier = void (*)(const std::byte*, int64_t, int64_t, std::byte*);

// By size alone, since elements are moved and not read.
RowCopier RowCopierFor(size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return CopyRow<uint8_t>;
    case 2:
      return CopyRow<uint16_t>;
    case 4:
      return CopyRow<uint32_t>;
    default:
      return CopyRow<uint64_t>;
  }
}

}  // namespace

Strides DenseStrides(absl::Span<const int64_t> dims) {
  Strides strides(dims.size(), 1);
  for (size_t d = dims.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * dims[d];
  }
  return strides;
}

void CopyStrided(const std::byte* from, absl::Span<const int64_t> dims,
                 absl::Span<const int64_t> strides, size_t element_bytes,
                 std::byte* to) {
  for (int64_t dim : dims) {
    if (dim == 0) return;
  }
  const auto bytes = static_cast<int64_t>(element_bytes);
  Walk walk = Collapse(dims, strides);
  // All sizes are 1.
  if (walk.dims.empty()) {
    std::memcpy(to, from, element_bytes);
    return;
  }
  const int64_t row = walk.dims.back();
  const int64_t row_stride = walk.strides.back();
  walk.dims.pop_back();
  walk.strides.pop_back();
  const RowCopier copy_row = RowCopierFor(element_bytes);
  base::Dims index(walk.dims.size(), 0);
  while (true) {
    // Contiguous rows are copied by memcpy.
    if (row_stride == 1) {
      std::memcpy(to, from, static_cast<size_t>(row * bytes));
    } else {
      copy_row(from, row, row_stride, to);
    }
    to += row * bytes;
    // Next index of the outer dimensions, the last one fastest.
    size_t d = walk.dims.size();
    while (d > 0) {
      --d;
      from += walk.strides[d] * bytes;
      if (++index[d] < walk.dims[d]) break;
      from -= walk.dims[d] * walk.strides[d] * bytes;
      index[d] = 0;
      if (d == 0) return;
    }
    if (walk.dims.empty()) return;
  }
}

}  // namespace refract::runtime::cpu
