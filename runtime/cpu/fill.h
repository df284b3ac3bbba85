#ifndef REFRACT_RUNTIME_CPU_FILL_H_
#define REFRACT_RUNTIME_CPU_FILL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// aten.{zeros,ones,full,new_zeros,new_ones,new_full}.default of float32, int64,
// int32 and bool: constant tensors such as the initial state of a recurrence.
// Null for anything else, and for a number known only at run time.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateFillKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_FILL_H_
