#ifndef REFRACT_RUNTIME_CPU_TAKE_H_
#define REFRACT_RUNTIME_CPU_TAKE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// Elements selected by int64 or int32 index tensors:
//   aten.index_select.default  out[…, j, …] = self[…, index[j], …]
//   aten.index.Tensor          out[…, j…, …] = self[…, i₁[j…], i₂[j…], …], the
//                              indices of one shape and adjacent
//   aten.gather.default        out[…, j, …] = self[…, index[…, j, …], …]
// Any dtype, bit for bit. Negative indices count from the end, except for
// gather and index_select, where LibTorch refuses them as well. An index out of
// range is InvalidArgument, with its name and position. Null for masks, indices
// that broadcast, and rows of a table, which are a look-up (embedding.h).
absl::StatusOr<std::unique_ptr<const Kernel>> CreateTakeKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_TAKE_H_
