#include "runtime/torch/guards/guard_fbgemm_tables_torch.h"

#include <cstdint>

#include "runtime/torch/guards/guard_checks_torch.h"

namespace refract::runtime::aten {
namespace {

// Offsets of the bags of `tables` tables, table after table. Returns the number
// of bags per table.
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
  const at::Tensor& begins;    // where each table begins, in elements
  const at::Tensor& hash_sum;  // rows of all tables before each table
  // Columns of all tables before each table; null: all have `columns`.
  const at::Tensor* columns_sum = nullptr;
  int64_t columns = 0;
};

// Each table must lie within the weights, and each id must be a row of its
// table: fbgemm computes addresses from these numbers.
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
    // Features that share a table repeat its begin: the table ends where the
    // next different sum of rows begins.
    int64_t next = t + 1;
    while (next < count && rows[next] == rows[t]) ++next;
    const int64_t height = rows[next] - rows[t];
    // The comparison below divides instead of multiplying: height × width may
    // exceed 64 bits.
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
  // D_offsets give the column of each table in a result row of `columns`
  // columns: they must begin with 0 and end with `columns`, so that the row is
  // written whole and nothing behind it.
  const int64_t columns = total_columns.toInt();
  TORCH_CHECK(Integers(sums, "D_offsets")[0] == 0 &&
                  CheckOffsets(sums, columns, "D_offsets") == columns,
              "D_offsets of other columns than ", columns);
  TORCH_CHECK(mode.toInt() == 0 || mode.toInt() == 1, "bags pooled in mode ",
              mode.toInt());
  CheckTables(tables, ids, offsets);
}

// Pooled bags, or without pooling the rows themselves, all of one width.
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
    // fbgemm's codes: 1 and 2 are memory that a device may share, 3 is host
    // memory.
    const bool shared = places[t] == 1 || places[t] == 2;
    TORCH_CHECK(shared || places[t] == 3, "a table that is placed in memory ",
                places[t]);
    const int64_t bytes = shared ? spare.numel() : weights.numel();
    TORCH_CHECK(at_bytes[t] >= 0 && at_bytes[t] < bytes &&
                    (t == 0 || at_bytes[t] >= at_bytes[t - 1]),
                "table ", t, " at ", at_bytes[t], " of ", bytes, " bytes");
    // fbgemm's codes of row types: fp32, fp16, int8, int4, int2, fp8. It has no
    // rows of bf16 (5).
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
  // On a CPU fbgemm pools into fp32 (0), fp16 (1) and bf16 (5). Its signature
  // also takes int8 (2) and int4 (3) with pooling; fbgemm 1.6 then ends the
  // process by SIGILL.
  const int64_t result = a[16].toInt();
  TORCH_CHECK(mode == 2 || (result != 2 && result != 3),
              "bags pooled into numbers of type ", result);
  const at::Tensor& sums = a[5].toTensor();
  TORCH_CHECK(sums.scalar_type() == at::kInt, "D_offsets that are not int32");
  const int64_t columns = a[6].toInt();
  // Without pooling all tables have one width, and D_offsets may be empty.
  if (mode == 2 && sums.numel() < 2) return;
  CheckCount(sums, tables + 1, "D_offsets");
  TORCH_CHECK(CheckOffsets(sums, columns, "D_offsets") == columns || mode == 2,
              "D_offsets of other columns than ", columns);
}

void GuardPooledTables(Arguments a) {
  CheckPooledTables({.weights = a[0].toTensor(),
                     .begins = a[1].toTensor(),
                     .hash_sum = a[4].toTensor(),
                     .columns_sum = &a[2].toTensor()},
                    a[5].toTensor(), a[6].toTensor(), a[7], a[3]);
  CheckWeights(a[8], a[5].toTensor().numel());
}

void GuardPooledTablesWrapper(Arguments a) {
  CheckPooledTables({.weights = a[0].toTensor(),
                     .begins = a[5].toTensor(),
                     .hash_sum = a[9].toTensor(),
                     .columns_sum = &a[6].toTensor()},
                    a[10].toTensor(), a[11].toTensor(), a[12], a[7]);
  CheckWeights(a[13], a[10].toTensor().numel());
}

void GuardTrainedTables(Arguments a) {
  CheckLookup({.weights = a[0].toTensor(),
               .begins = a[2].toTensor(),
               .hash_sum = a[6].toTensor(),
               .columns_sum = &a[3].toTensor()},
              a[8].toTensor(), a[9].toTensor(), a[10], a[4], a[5], a[11]);
}

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

void GuardTables(Arguments a) {
  CheckTables({.weights = a[0].toTensor(),
               .begins = a[1].toTensor(),
               .hash_sum = a[3].toTensor(),
               .columns = a[2].toInt()},
              a[4].toTensor(), a[5].toTensor());
}

void GuardTablesWrapper(Arguments a) {
  CheckTables({.weights = a[0].toTensor(),
               .begins = a[5].toTensor(),
               .hash_sum = a[7].toTensor(),
               .columns = a[6].toInt()},
              a[8].toTensor(), a[9].toTensor());
}

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
  // fbgemm reads ids by offsets before it has repaired the later offsets.
  CheckOffsets(offsets, a[1].toTensor().numel());
  CheckWeights(a[5], a[1].toTensor().numel());
}

}  // namespace refract::runtime::aten
