#ifndef REFRACT_RUNTIME_CPU_INTEGERS_H_
#define REFRACT_RUNTIME_CPU_INTEGERS_H_

// What models do with ids, lengths and positions beside look-ups. All exact.

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// add, sub, mul (modulo 2^64, as LibTorch), minimum, maximum and comparisons of
// int64 tensors with int64 tensors or whole numbers, broadcast. Null for
// anything else.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateIntegerKernel(
    const KernelRequest& request);

// arange of whole numbers, as int64. Null for anything else.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateRangeKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_INTEGERS_H_
