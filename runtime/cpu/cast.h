#ifndef REFRACT_RUNTIME_CPU_CAST_H_
#define REFRACT_RUNTIME_CPU_CAST_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// aten.to.dtype, to.dtype_layout, _to_copy and type_as between bool, int32,
// int64 and float32, with C's conversions: floats towards zero, integers modulo
// 2^32, any nonzero value is true. A float outside the range of the integer
// type, NaN included, becomes the least integer, as on x86. Null for anything
// else.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateCastKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_CAST_H_
