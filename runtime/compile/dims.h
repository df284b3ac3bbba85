#ifndef REFRACT_RUNTIME_COMPILE_DIMS_H_
#define REFRACT_RUNTIME_COMPILE_DIMS_H_

// Rules for dimensions that several operators share.

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace refract::runtime {

// A dimension counted from the front, or from the back if negative. A scalar
// counts as having one dimension, as in PyTorch. InvalidArgument when the
// dimension does not exist.
inline absl::StatusOr<size_t> WrapDim(int64_t dim, size_t rank) {
  const auto limit = static_cast<int64_t>(rank == 0 ? 1 : rank);
  if (dim < -limit || dim >= limit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dimension ", dim, " does not exist in a tensor of rank ", rank));
  }
  return static_cast<size_t>(dim < 0 ? dim + limit : dim);
}

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_DIMS_H_
