#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_EMBEDDING_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_EMBEDDING_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// aten.embedding.default, and aten.index_select.default along dimension 0:
//   for i in 0 … num_elements(ids): out[i, …] = table[ids[i], …]
// Any dtype, bit for bit, or a table in a row format, decoded (row_reader.h);
// ids int32 or int64. padding_idx matters to training
// only. Ids outside the table follow its IdPolicy: the request is refused, or
// the result is a row of zeros or table row 0 and counted in RunStats. Null
// when `request` is something else, or ranks or dtypes are unknown.
absl::StatusOr<std::unique_ptr<const Kernel>> CreateEmbeddingKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_EMBEDDING_H_
