#include "runtime/torch/guards/guard_fbgemm_torch.h"

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/torch/guards/guard_checks_torch.h"

namespace refract::runtime::aten {
namespace {

// Jagged `values` and `offsets`, by their places among the arguments. Offsets
// may be a list of levels; the bags of a level are the items of the next one.
void CheckJagged(Arguments a, size_t values, size_t offsets) {
  const at::Tensor& data = a[values].toTensor();
  TORCH_CHECK(data.defined() && data.dim() > 0, "jagged values of ",
              data.sizes());
  if (a[offsets].isTensor()) {
    TORCH_CHECK(a[offsets].toTensor().numel() > 0, "no offsets");
    CheckRank(a[offsets].toTensor(), 1, "offsets");
    CheckOffsets(a[offsets].toTensor(), data.size(0));
    return;
  }
  const c10::ArrayRef<c10::IValue> list = a[offsets].toListRef();
  TORCH_CHECK(!list.empty(), "a jagged tensor without offsets");
  for (size_t i = 0; i < list.size(); ++i) {
    const at::Tensor& each = list[i].toTensor();
    CheckRank(each, 1, "offsets");
    TORCH_CHECK(each.numel() > 0, "no offsets");
    // All levels are read as the first one's integers.
    TORCH_CHECK(each.scalar_type() == list[0].toTensor().scalar_type(),
                "offsets of different types");
    CheckOffsets(each, i + 1 < list.size() ? list[i + 1].toTensor().numel() - 1
                                           : data.size(0));
  }
}

// (values, offsets, max_lengths, padding_value)
void GuardJaggedToPadded(Arguments a) {
  CheckJagged(a, 0, 1);
  const std::vector<int64_t> sizes = a[2].toIntVector();
  TORCH_CHECK(sizes.size() == a[1].toListRef().size(), sizes.size(),
              " sizes for jagged values of ", a[1].toListRef().size(),
              " levels");
  for (const int64_t size : sizes) {
    TORCH_CHECK(size >= 0, "padding to a size of ", size);
  }
}

// (values, offsets, max_sequence_length, …)
void GuardJaggedToDense(Arguments a) {
  CheckJagged(a, 0, 1);
  TORCH_CHECK(a[2].toInt() >= 0, "padding to a size of ", a[2].toInt());
}

// (batch_size, csr_seg, values)
void GuardSegmentSums(Arguments a) {
  const int64_t batch = a[0].toInt();
  const at::Tensor& values = a[2].toTensor();
  TORCH_CHECK(batch > 0, "segments of batches of ", batch);
  CheckRank(values, 1, "values");
  CheckRank(a[1].toTensor(), 1, "segments");
  TORCH_CHECK(a[1].toTensor().numel() > 0, "no offsets");
  CheckOffsets(a[1].toTensor(), values.numel() / batch, "segments");
}

// (offsets, range_size)
void GuardOffsetsRange(Arguments a) {
  CheckRank(a[0].toTensor(), 1, "offsets");
  CheckOffsets(a[0].toTensor(), a[1].toInt());
}

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
  const at::Tensor& begins;    // where each begins, in elements
  const at::Tensor& hash_sum;  // rows of all before it
  // Columns of all before it, or the columns of each.
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
  const at::Tensor& sums = a[5].toTensor();
  TORCH_CHECK(sums.scalar_type() == at::kInt, "D_offsets that are not int32");
  const int64_t columns = a[6].toInt();
  // Without pooling all tables have one width, and D_offsets may be empty.
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

// (rows_per_table, indices, offsets, bounds_check_mode, warning, weights,
// B_offsets, …): the operator repairs ids and offsets that are out of range.
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

// `lengths` of features × bags, whose features `permute` puts in another order.
// `said`: the count of permuted values where the model gives it.
void CheckPermuted(const at::Tensor& permute, const at::Tensor& lengths,
                   int64_t features, const at::Tensor& values,
                   const c10::IValue& weights, const c10::IValue& said) {
  CheckRank(permute, 1, "a permutation");
  TORCH_CHECK(permute.scalar_type() == at::kInt, "a permutation of ",
              permute.scalar_type(), " where int32 is wanted");
  TORCH_CHECK(values.dim() > 0, "values of ", values.sizes());
  CheckLengths(lengths, values.size(0));
  CheckIndices(permute, features, "a permutation");
  const Integers all(lengths, "lengths");
  const Integers order(permute, "a permutation");
  const int64_t row = features == 0 ? 0 : lengths.numel() / features;
  int64_t sum = 0;
  for (int64_t i = 0; i < order.size(); ++i) {
    for (int64_t bag = 0; bag < row; ++bag) sum += all[order[i] * row + bag];
  }
  TORCH_CHECK(said.isNone() || said.toInt() == sum, "lengths of ", sum,
              " values where the model says ",
              said.isNone() ? 0 : said.toInt());
  if (!IsGiven(weights)) return;
  const at::Tensor& each = weights.toTensor();
  TORCH_CHECK(each.dim() > 0 && each.size(0) >= values.size(0), each.numel(),
              " weights for ", values.size(0), " values");
}

void CheckSelection(const at::Tensor& table, const at::Tensor& indices) {
  TORCH_CHECK(table.dim() > 0, "a selection from a number");
  CheckRank(indices, 1, "indices");
  CheckIndices(indices, table.size(0));
}

// (permute, lengths, values, weights, permuted_lengths_sum)
void GuardPermutation(Arguments a) {
  const at::Tensor& lengths = a[1].toTensor();
  TORCH_CHECK(lengths.dim() > 0, "lengths of ", lengths.sizes());
  CheckPermuted(a[0].toTensor(), lengths, lengths.size(0), a[2].toTensor(),
                a[3], a[4]);
}

// (permute, lengths, values, stride, weights, permuted_lengths_sum)
void GuardPermutationInRows(Arguments a) {
  const at::Tensor& lengths = a[1].toTensor();
  const int64_t stride = a[3].toInt();
  CheckRank(lengths, 1, "lengths");
  TORCH_CHECK(stride > 0 && lengths.numel() % stride == 0, lengths.numel(),
              " lengths in rows of ", stride);
  CheckPermuted(a[0].toTensor(), lengths, lengths.numel() / stride,
                a[2].toTensor(), a[4], a[5]);
}

// (pooled_embs, permutes, in_shapes, out_shapes, out_lengths, …): rows of
// `permutes` are (from, to, its column, its column, columns, next).
void GuardMultiPermutation(Arguments a) {
  const std::vector<at::Tensor> pooled = a[0].toTensorVector();
  const at::Tensor& permutes = a[1].toTensor();
  const std::vector<int64_t> widths = a[4].toIntVector();
  TORCH_CHECK(a.size() < 6 || !a[5].toBool(), "a permutation in reverse");
  TORCH_CHECK(!pooled.empty(), "no pooled embeddings");
  for (const at::Tensor& each : pooled) {
    CheckRank(each, 2, "pooled embeddings");
    TORCH_CHECK(each.size(0) == pooled[0].size(0) &&
                    each.scalar_type() == pooled[0].scalar_type(),
                "pooled embeddings of different batches or types");
  }
  for (const int64_t width : widths) {
    TORCH_CHECK(width >= 0, "embeddings of ", width, " columns");
  }
  for (const size_t i : {size_t{1}, size_t{2}, size_t{3}}) {
    TORCH_CHECK(a[i].toTensor().scalar_type() == at::kInt &&
                    a[i].toTensor().is_contiguous(),
                "permutations and shapes that are not dense int32");
  }
  CheckRank(permutes, 2, "permutations");
  TORCH_CHECK(permutes.size(1) == 6, "permutations of ", permutes.sizes());
  CheckCount(a[2].toTensor(), static_cast<int64_t>(pooled.size()), "shapes");
  CheckCount(a[3].toTensor(), static_cast<int64_t>(widths.size()), "shapes");
  // Each column of each result must be written once: a column that is not would
  // show memory of an earlier request.
  std::vector<int64_t> written(widths.size(), 0);
  const Integers in(a[2].toTensor(), "shapes");
  const Integers out(a[3].toTensor(), "shapes");
  for (size_t i = 0; i < pooled.size(); ++i) {
    TORCH_CHECK(in[static_cast<int64_t>(i)] == pooled[i].size(1),
                "pooled embeddings of ", pooled[i].sizes(),
                " where the model says ", in[static_cast<int64_t>(i)]);
  }
  for (size_t i = 0; i < widths.size(); ++i) {
    TORCH_CHECK(out[static_cast<int64_t>(i)] == widths[i], "results of ",
                widths[i], " columns where the model says ",
                out[static_cast<int64_t>(i)]);
  }
  const Integers rows(permutes, "permutations");
  for (int64_t row = 0; row < permutes.size(0); ++row) {
    const int64_t from = rows[6 * row];
    const int64_t to = rows[6 * row + 1];
    const int64_t columns = rows[6 * row + 4];
    TORCH_CHECK(from >= 0 && from < in.size() && to >= 0 && to < out.size(),
                "a permutation from ", from, " to ", to);
    const int64_t at = rows[6 * row + 2];
    const int64_t goal = rows[6 * row + 3];
    TORCH_CHECK(columns >= 0 && at >= 0 && at + columns <= in[from] &&
                    goal >= 0 && goal + columns <= out[to],
                "a permutation of columns ", at, " to ", at + columns, " of ",
                in[from], " to ", goal, " of ", out[to]);
    written[static_cast<size_t>(to)] += columns;
  }
  for (size_t i = 0; i < widths.size(); ++i) {
    TORCH_CHECK(written[i] == widths[i], written[i],
                " columns for a result of ", widths[i]);
  }
}

// (pooled_embs or one of them, keys, lengths, groups)
void GuardRegroupedTensors(Arguments a) {
  const c10::ArrayRef<c10::IValue> keys = a[1].toListRef();
  const c10::ArrayRef<c10::IValue> lengths = a[2].toListRef();
  TORCH_CHECK(keys.size() == lengths.size(), "keys of ", keys.size(),
              " tensors with lengths of ", lengths.size());
  std::set<std::string> known;
  std::vector<int64_t> columns;
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::vector<int64_t> each = lengths[i].toIntVector();
    TORCH_CHECK(keys[i].toListRef().size() == each.size(),
                keys[i].toListRef().size(), " keys with ", each.size(),
                " lengths");
    columns.push_back(0);
    for (const int64_t length : each) {
      TORCH_CHECK(length >= 0 && length <= std::numeric_limits<int32_t>::max(),
                  "lengths: a length of ", length);
      columns.back() += length;
    }
    for (const c10::IValue& key : keys[i].toListRef()) {
      known.insert(key.toStringRef());
    }
  }
  for (const c10::IValue& group : a[3].toListRef()) {
    for (const c10::IValue& key : group.toListRef()) {
      TORCH_CHECK(known.count(key.toStringRef()) > 0, "no tensor has the key ",
                  key.toStringRef());
    }
  }
  if (!a[0].isTensorList()) return;
  const std::vector<at::Tensor> pooled = a[0].toTensorVector();
  TORCH_CHECK(pooled.size() == keys.size() && !pooled.empty(), pooled.size(),
              " tensors with keys of ", keys.size());
  for (size_t i = 0; i < pooled.size(); ++i) {
    CheckRank(pooled[i], 2, "pooled embeddings");
    TORCH_CHECK(pooled[i].size(1) == columns[i] &&
                    pooled[i].size(0) == pooled[0].size(0) &&
                    pooled[i].scalar_type() == pooled[0].scalar_type(),
                "pooled embeddings of ", pooled[i].sizes(),
                " where the lengths say ", columns[i]);
  }
}

// (inputs, group_size): the indices, then the tensors. GuardGroupSelect()'s
// operator calls this operator.
void GuardGroupSelectForward(Arguments a) {
  const c10::ArrayRef<c10::IValue> inputs = a[0].toListRef();
  const int64_t count = a[1].toInt();
  TORCH_CHECK(count > 0 && static_cast<int64_t>(inputs.size()) == 2 * count,
              inputs.size(), " tensors and lists of indices in groups of ",
              count);
  const auto half = static_cast<size_t>(count);
  for (size_t i = 0; i < half; ++i) {
    CheckSelection(inputs[half + i].toTensor(), inputs[i].toTensor());
  }
}

// (input_group, indices_group)
void GuardGroupSelect(Arguments a) {
  const c10::ArrayRef<c10::IValue> tables = a[0].toListRef();
  const c10::ArrayRef<c10::IValue> indices = a[1].toListRef();
  TORCH_CHECK(tables.size() == indices.size(), tables.size(), " tensors for ",
              indices.size(), " lists of indices");
  for (size_t i = 0; i < tables.size(); ++i) {
    CheckSelection(tables[i].toTensor(), indices[i].toTensor());
  }
}

struct Checked {
  const char* name;
  Guard guard;
};

constexpr Checked kChecked[] = {
    {"jagged_to_padded_dense", GuardJaggedToPadded},
    {"jagged_to_padded_dense_forward", GuardJaggedToPadded},
    {"jagged_1d_to_dense", GuardJaggedToDense},
    {"jagged_2d_to_dense", GuardJaggedToDense},
    {"segment_sum_csr", GuardSegmentSums},
    {"offsets_range", GuardOffsetsRange},
    {"permute_1D_sparse_data", GuardPermutation},
    {"permute_2D_sparse_data", GuardPermutation},
    {"permute_sparse_data", GuardPermutation},
    {"permute_2D_sparse_data_input1D", GuardPermutationInRows},
    {"permute_multi_embedding", GuardMultiPermutation},
    {"permute_multi_embedding_function", GuardMultiPermutation},
    {"regroup_keyed_tensor", GuardRegroupedTensors},
    {"kt_regroup_arguments", GuardRegroupedTensors},
    {"group_index_select_dim0", GuardGroupSelect},
    {"group_index_select_dim0_gpu_impl", GuardGroupSelectForward},
    {"int_nbit_split_embedding_codegen_lookup_function", GuardQuantizedTables},
    {"split_embedding_codegen_forward_cpu", GuardPooledTables},
    {"split_embedding_codegen_forward_unweighted_pt2_wrapper",
     GuardPooledTablesWrapper},
    {"split_embedding_codegen_forward_weighted_pt2_wrapper",
     GuardPooledTablesWrapper},
    {"split_embedding_nobag_codegen_forward_cpu", GuardTables},
    {"split_embedding_nobag_codegen_forward_unweighted_pt2_wrapper",
     GuardTablesWrapper},
    {"bounds_check_indices", GuardBoundsCheck},
};

// Operators that check their arguments themselves, or read shapes alone.
constexpr const char* kCheckThemselves[] = {
    "Bfloat16QuantizedToFloat",
    "FloatToBfloat16Quantized",
    "FloatToHFP8Quantized",
    "HFP8QuantizedToFloat",
    "Fused8BitRowwiseQuantizedToFloat",
    "Fused8BitRowwiseQuantizedToHalf",
    "Fused8BitRowwiseQuantizedToFloatOrHalf",
    "Fused8BitRowwiseQuantizedToBfloat16",
    "all_to_one_device",
    "asynchronous_batched_complete_cumsum",
    "asynchronous_complete_cumsum",
    "asynchronous_exclusive_cumsum",
    "asynchronous_inclusive_cumsum",
    "batch_index_select_dim0",
    "batch_index_select_dim0_forward_cpu_impl",
    "batch_index_select_dim0_tensor",
    "batch_index_select_dim0_tensor_forward_cpu_impl",
    "check_feature_gate_key",
    "get_infos_metadata",
    "get_unique_indices",
    "get_unique_indices_with_inverse",
    "index_select_dim0",
    "is_uvm_tensor",
    "lengths_range",
    "merge_pooled_embeddings",
    "permute102_baddbmm_permute102",
    "recat_embedding_grad_output_mixed_D",
    "sum_reduce_to_one",
    "tbe_input_combine_with_length",
    "uvm_to_cpu",
};

}  // namespace

FbgemmRule RuleOfFbgemm(const std::string& name) {
  static const auto& rules = *[] {
    auto* made = new std::map<std::string, FbgemmRule>();
    for (const Checked& each : kChecked) {
      (*made)[each.name] = {.may_run = true, .guard = each.guard};
    }
    for (const char* each : kCheckThemselves) {
      (*made)[each] = {.may_run = true};
    }
    return made;
  }();
  const auto it = rules.find(name);
  if (it != rules.end()) return it->second;
  // One look-up per optimiser: adagrad, sgd, …
  constexpr char kLookup[] = "split_embedding_codegen_lookup_";
  const auto ends_with = [&name](const std::string& end) {
    return name.size() > end.size() &&
           name.compare(name.size() - end.size(), end.size(), end) == 0;
  };
  if (name.rfind(kLookup, 0) == 0) {
    if (ends_with("_function_cpu")) {
      return {.may_run = true, .guard = GuardTrainedTables};
    }
    if (ends_with("_function_pt2")) {
      return {.may_run = true, .guard = GuardTrainedTablesOfList};
    }
  }
  return {.why_not =
              "it may read outside its tables for wrong offsets, lengths or "
              "ids, and Refract has no check for them; compute the same with "
              "operators of ATen"};
}

}  // namespace refract::runtime::aten
