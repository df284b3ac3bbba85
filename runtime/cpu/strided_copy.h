#ifndef REFRACT_RUNTIME_CPU_STRIDED_COPY_H_
#define REFRACT_RUNTIME_CPU_STRIDED_COPY_H_

// Copies of strided views into dense memory, and the operators that are only
// such copies: slice, select, narrow, expand, permute, transpose, t, unbind,
// split, split_with_sizes, chunk.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// In elements, of either sign; a stride of 0 repeats.
using Strides = base::Dims;

// Row-major strides of a dense tensor.
Strides DenseStrides(absl::Span<const int64_t> dims);

// For each index i of `dims`, in row-major order:
//   *to++ = from[sum_d i[d] * strides[d]]
// Bit for bit, for elements of 1, 2, 4 or 8 bytes. The caller has checked that
// all source elements exist. Ranks above kMaxKernelRank allocate.
void CopyStrided(const std::byte* from, absl::Span<const int64_t> dims,
                 absl::Span<const int64_t> strides, size_t element_bytes,
                 std::byte* to);

// Kernels for the operators named above; null when `request` is another
// operator or its ranks are unknown. They move bits, so any dtype works without
// rounding. A slice's bounds are clamped as in Python. An index of select or
// narrow out of range, and sizes of a split or expand that do not fit, are
// InvalidArgument.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateCopyKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_STRIDED_COPY_H_
