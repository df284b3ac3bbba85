#ifndef REFRACT_RUNTIME_COMPILE_VIEW_OP_H_
#define REFRACT_RUNTIME_COMPILE_VIEW_OP_H_

// Operators that only change dimensions: view, reshape, flatten, unflatten,
// squeeze, unsqueeze; and copies (clone, contiguous, conversion to the same
// dtype, dropout that is off), which a functional graph over dense values does
// not need. They cost nothing: the result is the operand's memory with other
// dimensions.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/tensor.h"
#include "runtime/kernel.h"

namespace refract::runtime {

// Immutable, thread-safe.
class ViewOp {
 public:
  // Null when the node is another operator. Its operand is operand 0.
  static absl::StatusOr<std::unique_ptr<const ViewOp>> Create(
      const KernelRequest& request);

  // The result's dims; same number of elements. InvalidArgument when the sizes
  // do not fit the operand.
  absl::Status Infer(const Operands& operands, base::Dims& dims) const;

 private:
  enum class Kind : uint8_t {
    kSame,
    kReshape,
    kFlatten,
    kUnflatten,
    kSqueeze,
    kUnsqueeze
  };
  ViewOp() = default;
  static bool IsCopy(const KernelRequest& request);
  absl::Status Reshape(const Operands& operands, const base::Dims& from,
                       base::Dims& dims) const;

  Kind kind_ = Kind::kSame;
  std::vector<IntSource> size_;  // kReshape, kUnflatten
  // kFlatten: first and last dimension; kUnflatten: one; kSqueeze: the
  // dimensions to squeeze, empty for all; kUnsqueeze: one.
  std::vector<int64_t> dims_;
  bool squeeze_all_ = false;
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_VIEW_OP_H_
