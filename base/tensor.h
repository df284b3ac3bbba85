#ifndef REFRACT_BASE_TENSOR_H_
#define REFRACT_BASE_TENSOR_H_

// Host tensors: dense, row-major, little-endian. Strides are used only in the
// files that need them (weights, the LibTorch adapter).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"

namespace refract::base {

// Alignment of every buffer of tensor data: a cache line, an AVX-512 register,
// and the alignment of the message format. It is part of the numerics contract:
// MKL may round differently on differently aligned inputs, so split and unsplit
// runs must use the same.
inline constexpr size_t kTensorAlignBytes = 64;

// Rows first. Empty = scalar.
using Dims = absl::InlinedVector<int64_t, 6>;

// Product of `dims` × SizeOf(dtype). InvalidArgument when a dimension is
// negative or the product passes 2^62.
absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> dims);
absl::StatusOr<size_t> ByteSize(DType dtype, absl::Span<const int64_t> dims);

// "[2, 128]"
std::string DimsToString(absl::Span<const int64_t> dims);

// Dtype and dims of a tensor before it is computed.
struct TensorSpec {
  DType dtype = DType::kUnknown;
  Dims dims;
};

// A tensor in memory owned elsewhere. Copyable; functions that return a view
// name the owner of `data`.
struct TensorView {
  DType dtype = DType::kUnknown;
  Dims dims;
  const std::byte* data = nullptr;
  size_t bytes = 0;

  int64_t num_elements() const {
    const size_t size = SizeOf(dtype);
    return size == 0 ? 0 : static_cast<int64_t>(bytes / size);
  }
  template <typename T>
  absl::Span<const T> as() const {
    return {reinterpret_cast<const T*>(data), bytes / sizeof(T)};
  }
};

// Memory aligned to kTensorAlignBytes, uninitialised. Move-only.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes);

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

// A tensor that owns its memory. Move-only.
class Tensor {
 public:
  Tensor() = default;
  // Uninitialised. InvalidArgument as ByteSize(); or ResourceExhausted.
  static absl::StatusOr<Tensor> Allocate(DType dtype,
                                         absl::Span<const int64_t> dims);
  static absl::StatusOr<Tensor> CopyOf(const TensorView& view);

  DType dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  std::byte* data() { return buffer_.data(); }
  const std::byte* data() const { return buffer_.data(); }
  size_t bytes() const { return bytes_; }
  template <typename T>
  absl::Span<T> as() {
    return {reinterpret_cast<T*>(data()), bytes_ / sizeof(T)};
  }
  // Valid while this tensor lives and is not moved from.
  TensorView view() const { return {dtype_, dims_, buffer_.data(), bytes_}; }

 private:
  DType dtype_ = DType::kUnknown;
  Dims dims_;
  size_t bytes_ = 0;
  AlignedBuffer buffer_;
};

}  // namespace refract::base

#endif  // REFRACT_BASE_TENSOR_H_
