#ifndef REFRACT_RUNTIME_CPU_CAT_H_
#define REFRACT_RUNTIME_CPU_CAT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// aten.cat.default, aten.hstack.default and aten.stack.default over tensors of
// one dtype and rank:
//   out[…, start_t + i, …] = tensors[t][…, i, …],  start_t = sizes before t
// Any dtype, bit for bit. Sizes that differ in another dimension are
// InvalidArgument. Null for mixed dtypes, which LibTorch promotes, and for
// mixed ranks (LibTorch's legacy empty tensors).
absl::StatusOr<std::unique_ptr<const Kernel>> CreateCatKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_CAT_H_
