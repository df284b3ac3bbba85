#ifndef REFRACT_RUNTIME_CPU_INTEGERS_H_
#define REFRACT_RUNTIME_CPU_INTEGERS_H_

// Integer arithmetic on ids, lengths and positions. All results are exact.

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// add, sub, mul (modulo 2^64, as in LibTorch), minimum, maximum and comparisons
// of int64 tensors with int64 tensors or integers, broadcast. Null for anything
// else.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateIntegerKernel(
    const KernelRequest& request);

// arange of integers, as int64. Null for anything else.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateRangeKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_INTEGERS_H_
