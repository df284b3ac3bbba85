#ifndef REFRACT_RUNTIME_CPU_LOOK_UPS_EMBEDDING_BAG_H_
#define REFRACT_RUNTIME_CPU_LOOK_UPS_EMBEDDING_BAG_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// aten.embedding_bag.{default,padding_idx}, aten._embedding_bag.default and
// aten._embedding_bag_forward_only.default, of which only result 0 is used:
//
//   for each bag b, of ids[offsets[b] … offsets[b + 1]) without padding_idx:
//     sum:  out[b] = sum_i w[i] * table[ids[i]]      (w = 1 if not given)
//     mean: out[b] = sum_i table[ids[i]] / number of i
//     max:  out[b] = max_i table[ids[i]]
//   an empty bag gives zeros.
//
// Tables are float32, in a row format (decoded to float32: row_reader.h),
// float16, bfloat16 (summed in float32 in order of the ids,
// rounded once) or float64 (summed in float64). Tolerance against LibTorch:
// 1e-6 relative to the sum of magnitudes for float32, one unit in the last
// place for the small types. Ids and offsets are int32 or int64.
//
// Ids outside the table follow its IdPolicy: the request is refused; or a row
// of zeros, which counts in a mean and takes part in a max; or table row 0.
// Offsets that do not begin with 0, fall, or pass the end are InvalidArgument.
// Ids after the last offset of the include_last_offset form are checked but not
// read, as in LibTorch.
//
// Null when `request` is something else (other results used, ranks or dtypes
// unknown, weights without mode sum).
absl::StatusOr<std::unique_ptr<const Kernel>> CreateEmbeddingBagKernel(
    const KernelRequest& request);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_LOOK_UPS_EMBEDDING_BAG_H_
