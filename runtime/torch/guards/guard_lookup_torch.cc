#include <ATen/core/Tensor.h>

#include <cstdint>

#include "runtime/torch/guards/guard_fbgemm_torch.h"
#include "runtime/torch/guards/guard_tools_torch.h"

namespace refract::models::aten {
namespace {

// Look-ups of `tables` tables: offsets of their bags, table after table.
// Returns the bags of each.
int64_t CheckBagsOfTables(int64_t tables, const at::Tensor& ids,
                          const at::Tensor& offsets) {
  TORCH_CHECK(tables > 0, "a look-up without a table");
  CheckRank(ids, 1, "ids");
  CheckRank(offsets, 1, "offsets");
  TORCH_CHECK(offsets.numel() > 0 && (offsets.numel() - 1) % tables == 0,
              offsets.numel(), " offsets for ", tables, " tables");
  CheckOffsets(offsets, ids.numel());
  return (offsets.numel() - 1) / tables;
}

// Tables of floating-point rows, one after the other in `weights`.
struct Tables {
  const at::Tensor& weights;
  const at::Tensor& begins;    // where each begins, in elements
  const at::Tensor& hash_sum;  // rows of all before it
  // Columns of all before it, or the columns of each.
  const at::Tensor* columns_sum = nullptr;
  int64_t columns = 0;
};

// That each table is where the weights are and each id is one of its rows: it
// is these numbers that fbgemm goes by.
void CheckTables(const Tables& tables, const at::Tensor& ids,
                 const at::Tensor& offsets) {
  const int64_t count = tables.begins.numel();
  CheckRank(tables.weights, 1, "weights");
  const int64_t bags = CheckBagsOfTables(count, ids, offsets);
  CheckCount(tables.hash_sum, count + 1, "sums of rows");
  CheckOffsets(tables.hash_sum, tables.weights.numel(), "sums of rows");
  const Integers begins(tables.begins, "weights_offsets");
  const Integers rows(tables.hash_sum, "sums of rows");
  const Integers bounds(offsets, "offsets");
  const Integers all(ids, "ids");
  for (int64_t t = 0; t < count; ++t) {
    int64_t width = tables.columns;
    if (tables.columns_sum != nullptr) {
      const Integers sums(*tables.columns_sum, "D_offsets");
      width = sums[t + 1] - sums[t];
    }
    // Features of one table have its begin each: it ends where the next does.
    int64_t next = t + 1;
    while (next < count && rows[next] == rows[t]) ++next;
    const int64_t height = rows[next] - rows[t];
    const int64_t size = tables.weights.numel();
    TORCH_CHECK(width > 0 && width <= size && height > 0, "table ", t, " of ",
                height, " rows of ", width);
    TORCH_CHECK(begins[t] >= 0 && begins[t] <= size &&
                    height <= (size - begins[t]) / width,
                "table ", t, " of ", height, " rows of ", width, " at ",
                begins[t], " of ", size, " weights");
    for (int64_t i = bounds[t * bags]; i < bounds[(t + 1) * bags]; ++i) {
      TORCH_CHECK(all[i] >= 0 && all[i] < height, "id ", all[i],
                  " of a table of ", height, " rows");
    }
  }
}

void CheckPooledTables(const Tables& tables, const at::Tensor& ids,
                       const at::Tensor& offsets, const c10::IValue& mode,
                       const c10::IValue& total_columns) {
  const at::Tensor& sums = *tables.columns_sum;
  CheckCount(sums, tables.begins.numel() + 1, "D_offsets");
  TORCH_CHECK(sums.scalar_type() == at::kInt, "D_offsets that are not int32");
  const int64_t columns = total_columns.toInt();
  TORCH_CHECK(Integers(sums, "D_offsets")[0] == 0 &&
                  CheckOffsets(sums, columns, "D_offsets") == columns,
              "D_offsets of other columns than ", columns);
  TORCH_CHECK(mode.toInt() == 0 || mode.toInt() == 1, "bags pooled in mode ",
              mode.toInt());
  CheckTables(tables, ids, offsets);
}

}  // namespace

// (dev_weights, uvm_weights, weights_placements, weights_offsets, weights_tys,
// D_offsets, total_D, …, [12] indices, [13] offsets, pooling_mode,
// [15] indice_weights, …): fbgemm checks the ids themselves, by the tables'
// sizes.
void GuardQuantizedTables(Arguments a) {
  const at::Tensor& ids = a[12].toTensor();
  const at::Tensor& offsets = a[13].toTensor();
  const at::Tensor& begins = a[3].toTensor();
  const int64_t tables = begins.numel();
  CheckBagsOfTables(tables, ids, offsets);
  TORCH_CHECK(ids.scalar_type() == offsets.scalar_type(),
              "ids and offsets of different types");
  CheckWeights(a[15], ids.numel());
  const at::Tensor& weights = a[0].toTensor();
  const at::Tensor& spare = a[1].toTensor();
  CheckCount(a[2].toTensor(), tables, "placements");
  CheckCount(a[4].toTensor(), tables, "types of weights");
  const Integers at_bytes(begins, "weights_offsets");
  const Integers types(a[4].toTensor(), "types of weights");
  const Integers places(a[2].toTensor(), "placements");
  for (int64_t t = 0; t < tables; ++t) {
    // Numbers of fbgemm: memory that a device may share, or the host's own.
    const bool shared = places[t] == 1 || places[t] == 2;
    TORCH_CHECK(shared || places[t] == 3, "a table that is placed in memory ",
                places[t]);
    const int64_t bytes = shared ? spare.numel() : weights.numel();
    TORCH_CHECK(at_bytes[t] >= 0 && at_bytes[t] < bytes &&
                    (t == 0 || at_bytes[t] >= at_bytes[t - 1]),
                "table ", t, " at ", at_bytes[t], " of ", bytes, " bytes");
    // fp32, fp16, int8, int4, int2 and fp8; bf16 is none of its rows.
    TORCH_CHECK(types[t] >= 0 && types[t] <= 6 && types[t] != 5,
                "rows of type ", types[t]);
  }
  constexpr int64_t kLargestAlignment = 4096;
  if (!a[19].isNone()) {
    TORCH_CHECK(a[19].toInt() > 0 && a[19].toInt() <= kLargestAlignment,
                "rows aligned to ", a[19].toInt(), " bytes");
  }
  const int64_t mode = a[14].toInt();
  TORCH_CHECK(mode >= 0 && mode <= 2, "bags pooled in mode ", mode);
  const at::Tensor& sums = a[5].toTensor();
  TORCH_CHECK(sums.scalar_type() == at::kInt, "D_offsets that are not int32");
  const int64_t columns = a[6].toInt();
  // Without pooling there is one width for all.
  if (mode == 2 && sums.numel() < 2) return;
  CheckCount(sums, tables + 1, "D_offsets");
  TORCH_CHECK(CheckOffsets(sums, columns, "D_offsets") == columns || mode == 2,
              "D_offsets of other columns than ", columns);
}

// (weights, weights_offsets, D_offsets, total_D, hash_size_cumsum, indices,
// offsets, pooling_mode, indice_weights, output_dtype)
void GuardPooledTables(Arguments a) {
  CheckPooledTables({.weights = a[0].toTensor(),
                     .begins = a[1].toTensor(),
                     .hash_sum = a[4].toTensor(),
                     .columns_sum = &a[2].toTensor()},
                    a[5].toTensor(), a[6].toTensor(), a[7], a[3]);
  CheckWeights(a[8], a[5].toTensor().numel());
}

// (host_weights, dev_weights, uvm_weights, lxu_cache_weights,
// weights_placements, weights_offsets, D_offsets, total_D, max_D,
// hash_size_cumsum, indices, offsets, pooling_mode, indice_weights, …)
void GuardPooledTablesWrapper(Arguments a) {
  CheckPooledTables({.weights = a[0].toTensor(),
                     .begins = a[5].toTensor(),
                     .hash_sum = a[9].toTensor(),
                     .columns_sum = &a[6].toTensor()},
                    a[10].toTensor(), a[11].toTensor(), a[12], a[7]);
  CheckWeights(a[13], a[10].toTensor().numel());
}

namespace {

// Bags of one sum each, or the rows themselves, all of one width.
void CheckLookup(const Tables& tables, const at::Tensor& ids,
                 const at::Tensor& offsets, const c10::IValue& mode,
                 const c10::IValue& total_columns,
                 const c10::IValue& most_columns, const c10::IValue& weights) {
  constexpr int64_t kNoPooling = 2;
  if (mode.toInt() == kNoPooling) {
    CheckTables({.weights = tables.weights,
                 .begins = tables.begins,
                 .hash_sum = tables.hash_sum,
                 .columns = most_columns.toInt()},
                ids, offsets);
  } else {
    CheckPooledTables(tables, ids, offsets, mode, total_columns);
  }
  CheckWeights(weights, ids.numel());
}

}  // namespace

// (host_weights, weights_placements, weights_offsets, D_offsets, total_D,
// max_D, hash_size_cumsum, total_hash_size_bits, indices, offsets,
// pooling_mode, indice_weights, …)
void GuardTrainedTables(Arguments a) {
  CheckLookup({.weights = a[0].toTensor(),
               .begins = a[2].toTensor(),
               .hash_sum = a[6].toTensor(),
               .columns_sum = &a[3].toTensor()},
              a[8].toTensor(), a[9].toTensor(), a[10], a[4], a[5], a[11]);
}

// (placeholder, weights, D_offsets, total_D, max_D, hash_size_cumsum,
// total_hash_size_bits, indices, offsets, pooling_mode, indice_weights, …):
// on the CPU `weights` are host_weights, weights_placements, weights_offsets.
void GuardTrainedTablesOfList(Arguments a) {
  const c10::ArrayRef<c10::IValue> weights = a[1].toListRef();
  TORCH_CHECK(weights.size() == 3, "tables of ", weights.size(),
              " parts: they are not in host memory");
  CheckLookup({.weights = weights[0].toTensor(),
               .begins = weights[2].toTensor(),
               .hash_sum = a[5].toTensor(),
               .columns_sum = &a[2].toTensor()},
              a[7].toTensor(), a[8].toTensor(), a[9], a[3], a[4], a[10]);
}

// (weights, weights_offsets, D, hash_size_cumsum, indices, offsets,
// output_dtype)
void GuardTables(Arguments a) {
  CheckTables({.weights = a[0].toTensor(),
               .begins = a[1].toTensor(),
               .hash_sum = a[3].toTensor(),
               .columns = a[2].toInt()},
              a[4].toTensor(), a[5].toTensor());
}

// (host_weights, dev_weights, uvm_weights, lxu_cache_weights,
// weights_placements, weights_offsets, D, hash_size_cumsum, indices, offsets,
// …)
void GuardTablesWrapper(Arguments a) {
  CheckTables({.weights = a[0].toTensor(),
               .begins = a[5].toTensor(),
               .hash_sum = a[7].toTensor(),
               .columns = a[6].toInt()},
              a[8].toTensor(), a[9].toTensor());
}

// (dev_weights, weights_offsets, D_offsets, total_D, max_D, hash_size_cumsum,
// total_hash_size_bits, indices, offsets, pooling_mode, indice_weights, …,
// [13] B_offsets)
void GuardDenseTables(Arguments a) {
  TORCH_CHECK(!IsGiven(a[13]), "tables with batches of their own");
  CheckPooledTables({.weights = a[0].toTensor(),
                     .begins = a[1].toTensor(),
                     .hash_sum = a[5].toTensor(),
                     .columns_sum = &a[2].toTensor()},
                    a[7].toTensor(), a[8].toTensor(), a[9], a[3]);
  CheckWeights(a[10], a[7].toTensor().numel());
}

// (weight, table_offsets, offsets, indices): one number for each row, for each
// of several tasks.
void GuardUnaryTables(Arguments a) {
  const at::Tensor& weight = a[0].toTensor();
  const at::Tensor& begins = a[1].toTensor();
  const at::Tensor& ids = a[3].toTensor();
  TORCH_CHECK(weight.dim() == 2 || (weight.dim() == 3 && weight.size(2) == 1),
              "weights of ", weight.sizes(),
              " where one for each row is wanted");
  CheckRank(begins, 1, "table_offsets");
  const int64_t tables = begins.numel() - 1;
  const int64_t bags = CheckBagsOfTables(tables, ids, a[2].toTensor());
  CheckOffsets(begins, weight.size(1), "table_offsets");
  TORCH_CHECK(begins.scalar_type() == a[2].toTensor().scalar_type() &&
                  ids.scalar_type() == begins.scalar_type(),
              "ids and offsets of different types");
  const Integers rows(begins, "table_offsets");
  const Integers bounds(a[2].toTensor(), "offsets");
  const Integers all(ids, "ids");
  for (int64_t t = 0; t < tables; ++t) {
    for (int64_t i = bounds[t * bags]; i < bounds[(t + 1) * bags]; ++i) {
      TORCH_CHECK(all[i] >= 0 && all[i] < rows[t + 1] - rows[t], "id ", all[i],
                  " of a table of ", rows[t + 1] - rows[t], " rows");
    }
  }
}

// (indices, offsets, index_remappings, index_remappings_offsets)
void GuardPrunedArrays(Arguments a) {
  const at::Tensor& ids = a[0].toTensor();
  const at::Tensor& begins = a[3].toTensor();
  CheckRank(begins, 1, "index_remappings_offsets");
  const int64_t tables = begins.numel() - 1;
  const int64_t bags = CheckBagsOfTables(tables, ids, a[1].toTensor());
  CheckOffsets(begins, a[2].toTensor().numel(), "index_remappings_offsets");
  const Integers rows(begins, "index_remappings_offsets");
  const Integers bounds(a[1].toTensor(), "offsets");
  const Integers all(ids, "ids");
  for (int64_t t = 0; t < tables; ++t) {
    const int64_t height = rows[t + 1] - rows[t];
    if (height == 0) continue;  // ids of a table that is not pruned
    for (int64_t i = bounds[t * bags]; i < bounds[(t + 1) * bags]; ++i) {
      TORCH_CHECK(all[i] >= 0 && all[i] < height, "id ", all[i],
                  " of a table of ", height, " rows");
    }
  }
}

// (indices, offsets, hash_table, hash_table_offsets)
void GuardPrunedHashes(Arguments a) {
  const at::Tensor& table = a[2].toTensor();
  const at::Tensor& begins = a[3].toTensor();
  CheckRank(begins, 1, "hash_table_offsets");
  CheckRank(table, 2, "a hash table");
  TORCH_CHECK(table.size(1) == 2, "a hash table of ", table.sizes());
  const int64_t tables = begins.numel() - 1;
  CheckBagsOfTables(tables, a[0].toTensor(), a[1].toTensor());
  CheckOffsets(begins, table.size(0), "hash_table_offsets");
  const Integers slots(table, "a hash table");
  const Integers rows(begins, "hash_table_offsets");
  for (int64_t t = 0; t < tables; ++t) {
    if (rows[t + 1] == rows[t]) continue;  // a table that is not pruned
    // The search for an id that it does not have ends at an empty slot.
    int64_t slot = rows[t];
    while (slot < rows[t + 1] && slots[2 * slot] != -1) ++slot;
    TORCH_CHECK(slot < rows[t + 1], "hash table ", t, " is full");
  }
}

// (rows_per_table, indices, offsets, bounds_check_mode, warning, weights,
// B_offsets, …): puts ids and offsets right that are wrong.
void GuardBoundsCheck(Arguments a) {
  TORCH_CHECK(!IsGiven(a[6]), "tables with batches of their own");
  const int64_t tables = a[0].toTensor().numel();
  const at::Tensor& offsets = a[2].toTensor();
  TORCH_CHECK(tables > 0, "a look-up without a table");
  TORCH_CHECK(a[0].toTensor().scalar_type() == at::kLong,
              "rows of tables that are not int64");
  CheckRank(a[1].toTensor(), 1, "ids");
  CheckRank(offsets, 1, "offsets");
  TORCH_CHECK(offsets.numel() > 0 && (offsets.numel() - 1) % tables == 0,
              offsets.numel(), " offsets for ", tables, " tables");
  TORCH_CHECK(offsets.scalar_type() == a[1].toTensor().scalar_type(),
              "ids and offsets of different types");
  TORCH_CHECK(a[3].toInt() >= 0 && a[3].toInt() <= 2, "bounds checked in mode ",
              a[3].toInt());
  TORCH_CHECK(a[4].toTensor().numel() == 1 &&
                  a[4].toTensor().scalar_type() == at::kLong,
              "a count of warnings that is no int64");
  // It reads ids by offsets before it has put right those that follow.
  CheckOffsets(offsets, a[1].toTensor().numel());
  CheckWeights(a[5], a[1].toTensor().numel());
}

}  // namespace refract::models::aten
