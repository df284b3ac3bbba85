#ifndef REFRACT_RUNTIME_CPU_CAST_H_
#define REFRACT_RUNTIME_CPU_CAST_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// aten.to.dtype, to.dtype_layout, _to_copy and type_as between two of bool,
// int32, int64 and float32, as C converts: floats towards zero, integers modulo
// 2^32, truth where something is not 0. A float that no integer of the result's
// type stands for, NaN among them, gives the least, as x86 has it. Null for
// anything else.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateCastKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_CAST_H_
