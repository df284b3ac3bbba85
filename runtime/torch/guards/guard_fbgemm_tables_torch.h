#ifndef REFRACT_RUNTIME_TORCH_GUARDS_GUARD_FBGEMM_TABLES_TORCH_H_
#define REFRACT_RUNTIME_TORCH_GUARDS_GUARD_FBGEMM_TABLES_TORCH_H_

// Checks of the look-ups of fbgemm_gpu in many tables, which compute addresses
// from offsets, sums of rows and ids. Only for guard_fbgemm_torch.cc. A comment
// lists the arguments of the operator.

#include "runtime/torch/guards/guard_checks_torch.h"

namespace refract::runtime::aten {

// (dev_weights, uvm_weights, weights_placements, weights_offsets, weights_tys,
// D_offsets, total_D, …, [12] indices, [13] offsets, pooling_mode,
// [15] indice_weights, …): fbgemm checks the ids themselves, by the tables'
// sizes.
void GuardQuantizedTables(Arguments a);

// (weights, weights_offsets, D_offsets, total_D, hash_size_cumsum, indices,
// offsets, pooling_mode, indice_weights, output_dtype)
void GuardPooledTables(Arguments a);

// (host_weights, dev_weights, uvm_weights, lxu_cache_weights,
// weights_placements, weights_offsets, D_offsets, total_D, max_D,
// hash_size_cumsum, indices, offsets, pooling_mode, indice_weights, …)
void GuardPooledTablesWrapper(Arguments a);

// (host_weights, weights_placements, weights_offsets, D_offsets, total_D,
// max_D, hash_size_cumsum, total_hash_size_bits, indices, offsets,
// pooling_mode, indice_weights, …)
void GuardTrainedTables(Arguments a);

// (placeholder, weights, D_offsets, total_D, max_D, hash_size_cumsum,
// total_hash_size_bits, indices, offsets, pooling_mode, indice_weights, …):
// on the CPU `weights` are host_weights, weights_placements, weights_offsets.
void GuardTrainedTablesOfList(Arguments a);

// (weights, weights_offsets, D, hash_size_cumsum, indices, offsets,
// output_dtype)
void GuardTables(Arguments a);

// (host_weights, dev_weights, uvm_weights, lxu_cache_weights,
// weights_placements, weights_offsets, D, hash_size_cumsum, indices, offsets,
// …)
void GuardTablesWrapper(Arguments a);

// (rows_per_table, indices, offsets, bounds_check_mode, warning, weights,
// B_offsets, …): the operator repairs ids and offsets that are out of range.
void GuardBoundsCheck(Arguments a);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_GUARDS_GUARD_FBGEMM_TABLES_TORCH_H_
