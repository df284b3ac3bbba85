#include "runtime/torch/guards/guard_fbgemm_torch.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/torch/guards/guard_checks_torch.h"
#include "runtime/torch/guards/guard_fbgemm_tables_torch.h"

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
  // One padded size per level.
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
  // Lengths of a feature lie side by side, one per bag.
  const int64_t row = features == 0 ? 0 : lengths.numel() / features;
  // Where the model gives the count of permuted values, fbgemm allocates by it
  // without counting: it must be the sum of the lengths that are copied.
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
  // (first column, columns) of each result.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> written(widths.size());
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
    if (columns > 0)
      written[static_cast<size_t>(to)].emplace_back(goal, columns);
  }
  for (size_t i = 0; i < widths.size(); ++i) {
    std::sort(written[i].begin(), written[i].end());
    int64_t end = 0;
    for (const auto& [first, columns] : written[i]) {
      TORCH_CHECK(first == end, "permutations write column ",
                  std::min(first, end), " of a result ",
                  first < end ? "twice" : "never");
      end += columns;
    }
    TORCH_CHECK(end == widths[i], end, " columns for a result of ", widths[i]);
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

// (pooled_embs, offset_dim_list, permute_list, …): the columns between two
// offsets, in the order of the permutation. Further arguments are for the
// backward pass.
void GuardPooledPermutation(Arguments a) {
  const at::Tensor& pooled = a[0].toTensor();
  const at::Tensor& offsets = a[1].toTensor();
  const at::Tensor& permutation = a[2].toTensor();
  CheckRank(pooled, 2, "pooled embeddings");
  CheckRank(offsets, 1, "offsets");
  TORCH_CHECK(offsets.numel() > 1, offsets.numel(), " offsets");
  for (const at::Tensor& each : {offsets, permutation}) {
    TORCH_CHECK(each.scalar_type() == at::kLong && each.is_contiguous(),
                "offsets or a permutation that are not dense int64");
  }
  CheckOffsets(offsets, pooled.size(1));
  CheckIndices(permutation, offsets.numel() - 1, "permutation");
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
    {"permute_pooled_embs", GuardPooledPermutation},
    {"permute_pooled_embs_auto_grad", GuardPooledPermutation},
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
