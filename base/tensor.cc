#include "base/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace refract::base {
namespace {
constexpr int64_t kMaxElements = int64_t{1} << 62;
// A huge page of x86-64, and of 64-bit ARM with pages of 4 KiB.
constexpr size_t kHugePageBytes = size_t{2} << 20;
}  // namespace

absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> dims) {
  int64_t product = 1;
  bool zero = false;
  for (int64_t dim : dims) {
    if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("negative dimension in shape ", DimsToString(dims)));
    }
    // An overflow of the other dimensions is an error even if one dimension is
    // zero.
    if (dim == 0) {
      zero = true;
    } else if (__builtin_mul_overflow(product, dim, &product) ||
               product > kMaxElements) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape ", DimsToString(dims), " overflows"));
    }
  }
  return zero ? 0 : product;
}

absl::StatusOr<size_t> ByteSize(DType dtype, absl::Span<const int64_t> dims) {
  REFRACT_ASSIGN_OR_RETURN(const int64_t elements, NumElements(dims));
  const auto size = static_cast<int64_t>(SizeOf(dtype));
  if (size == 0) return absl::InvalidArgumentError("unknown element type");
  int64_t bytes;
  if (__builtin_mul_overflow(elements, size, &bytes) || bytes > kMaxElements) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", DimsToString(dims), " overflows"));
  }
  return static_cast<size_t>(bytes);
}

std::string DimsToString(absl::Span<const int64_t> dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

AlignedBuffer::AlignedBuffer(size_t bytes) : size_(bytes) {
  // Rounded up so that kernels may read whole registers at the end; never
  // null, so that a zero-sized tensor still has an address.
  const size_t rounded =
      std::max<size_t>(1, (bytes + kTensorAlignBytes - 1) / kTensorAlignBytes) *
      kTensorAlignBytes;
  const size_t huge = rounded / kHugePageBytes * kHugePageBytes;
  void* memory = nullptr;
  if (posix_memalign(&memory, huge > 0 ? kHugePageBytes : kTensorAlignBytes,
                     rounded) != 0) {
    throw std::bad_alloc();
  }
  // Whole huge pages only, so that no memory is wasted. This is a hint: without
  // huge pages the memory works as well.
  if (huge > 0) madvise(memory, huge, MADV_HUGEPAGE);
  data_.reset(static_cast<std::byte*>(memory));
}

void AlignedBuffer::Free::operator()(std::byte* p) const { std::free(p); }

absl::StatusOr<Tensor> Tensor::Allocate(DType dtype,
                                        absl::Span<const int64_t> dims) {
  Tensor tensor;
  REFRACT_ASSIGN_OR_RETURN(tensor.bytes_, ByteSize(dtype, dims));
  tensor.dtype_ = dtype;
  tensor.dims_.assign(dims.begin(), dims.end());
  try {
    tensor.buffer_ = AlignedBuffer(tensor.bytes_);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a tensor of ", tensor.bytes_, " bytes"));
  }
  return tensor;
}

absl::StatusOr<Tensor> Tensor::CopyOf(const TensorView& view) {
  REFRACT_ASSIGN_OR_RETURN(Tensor tensor, Allocate(view.dtype, view.dims));
  if (tensor.bytes_ != view.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shape ", DimsToString(view.dims), " of ", Name(view.dtype), " needs ",
        tensor.bytes_, " bytes, got ", view.bytes));
  }
  if (view.bytes > 0) std::memcpy(tensor.data(), view.data, view.bytes);
  return tensor;
}

}  // namespace refract::base
