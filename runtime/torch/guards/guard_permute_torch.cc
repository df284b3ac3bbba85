#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "runtime/torch/guards/guard_fbgemm_torch.h"
#include "runtime/torch/guards/guard_tools_torch.h"

namespace refract::models::aten {
namespace {

// Lengths of `features` × bags, whose features are put in another order. The
// permuted values' count where the model says it is `said`.
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

// What is put in another order within one batch: `segments` after `segments`,
// one for each of the features and ads.
struct Ads {
  int64_t batches = 0;
  int64_t ads = 0;
};

// (…, batch_offsets, num_ads)
Ads CheckAds(const at::Tensor& batch_offsets, int64_t ads) {
  CheckRank(batch_offsets, 1, "batch_offsets");
  TORCH_CHECK(batch_offsets.numel() > 1, "no batch_offsets");
  TORCH_CHECK(ads > 0, "batches of ", ads, " ads");
  const int64_t last = CheckOffsets(batch_offsets, ads, "batch_offsets");
  TORCH_CHECK(Integers(batch_offsets, "batch_offsets")[0] == 0 && last == ads,
              "batch_offsets of ", last, " ads where the model says ", ads);
  return {.batches = batch_offsets.numel() - 1, .ads = ads};
}

// Segments of `offsets` copied to where `reordered` says.
void CheckReordered(const Ads& sizes, const at::Tensor& offsets,
                    const at::Tensor& values, const at::Tensor& reordered,
                    const at::Tensor& batch_offsets, bool broadcast,
                    int64_t count) {
  CheckRank(offsets, 1, "offsets");
  CheckRank(reordered, 1, "reordered offsets");
  TORCH_CHECK(values.dim() > 0, "values of ", values.sizes());
  TORCH_CHECK(offsets.scalar_type() == reordered.scalar_type(),
              "offsets of different types");
  CheckOffsets(offsets, values.size(0));
  CheckOffsets(reordered, count, "reordered offsets");
  TORCH_CHECK(reordered.numel() > 0 && (reordered.numel() - 1) % sizes.ads == 0,
              reordered.numel(), " reordered offsets for ", sizes.ads, " ads");
  const int64_t features = (reordered.numel() - 1) / sizes.ads;
  CheckCount(offsets, features * (broadcast ? sizes.batches : sizes.ads) + 1,
             "offsets");
  const Integers from(offsets, "offsets");
  const Integers to(reordered, "reordered offsets");
  const Integers batch(batch_offsets, "batch_offsets");
  for (int64_t b = 0; b < sizes.batches; ++b) {
    const int64_t ads = batch[b + 1] - batch[b];
    for (int64_t f = 0; f < features; ++f) {
      const int64_t first =
          broadcast ? features * b + f : features * batch[b] + f * ads;
      const int64_t length = broadcast ? (from[first + 1] - from[first]) * ads
                                       : from[first + ads] - from[first];
      const int64_t at = f * sizes.ads + batch[b];
      TORCH_CHECK(to[at + ads] - to[at] == length, "reordered offsets of ",
                  to[at + ads] - to[at], " values where ", length,
                  " are to be put");
    }
  }
}

void CheckSelection(const at::Tensor& table, const at::Tensor& indices) {
  TORCH_CHECK(table.dim() > 0, "a selection from a number");
  CheckRank(indices, 1, "indices");
  CheckIndices(indices, table.size(0));
}

}  // namespace

// (permute, lengths, values, weights, permuted_lengths_sum)
void GuardPermutation(Arguments a) {
  const at::Tensor& lengths = a[1].toTensor();
  TORCH_CHECK(lengths.dim() > 0, "lengths of ", lengths.sizes());
  CheckPermuted(a[0].toTensor(), lengths, lengths.size(0), a[2].toTensor(),
                a[3], a[4]);
}

// (permute, lengths, values, weights)
void GuardPermutedFeatures(Arguments a) {
  CheckRank(a[1].toTensor(), 2, "lengths");
  CheckPermuted(a[0].toTensor(), a[1].toTensor(), a[1].toTensor().size(0),
                a[2].toTensor(), a[3], c10::IValue());
}

// (permute, lengths, embeddings)
void GuardPermutedSequences(Arguments a) {
  CheckRank(a[1].toTensor(), 2, "lengths");
  CheckRank(a[2].toTensor(), 2, "embeddings");
  TORCH_CHECK(a[2].toTensor().size(1) > 0, "embeddings of no columns");
  CheckPermuted(a[0].toTensor(), a[1].toTensor(), a[1].toTensor().size(0),
                a[2].toTensor(), c10::IValue(), c10::IValue());
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

// (permute, input_offset, output_offset, output_size)
void GuardExpandedPermutation(Arguments a) {
  const at::Tensor& permute = a[0].toTensor();
  const at::Tensor& from = a[1].toTensor();
  const at::Tensor& to = a[2].toTensor();
  for (const at::Tensor* each : {&permute, &from, &to}) {
    CheckRank(*each, 1, "permutations and offsets");
    TORCH_CHECK(each->scalar_type() == permute.scalar_type(),
                "permutations and offsets of different types");
  }
  CheckCount(to, permute.numel() + 1, "output offsets");
  CheckIndices(permute, from.numel() - 1, "a permutation");
  CheckOffsets(from, std::numeric_limits<int64_t>::max(), "input offsets");
  const int64_t last = CheckOffsets(to, a[3].toInt(), "output offsets");
  TORCH_CHECK(Integers(to, "output offsets")[0] == 0 && last == a[3].toInt(),
              "output offsets of ", last, " values where the model says ",
              a[3].toInt());
}

// (permute): each place once, or some of the result would not be written.
void GuardInvertedPermutation(Arguments a) {
  const at::Tensor& permute = a[0].toTensor();
  CheckRank(permute, 1, "a permutation");
  CheckIndices(permute, permute.numel(), "a permutation");
  const Integers order(permute, "a permutation");
  std::vector<bool> seen(static_cast<size_t>(order.size()), false);
  for (int64_t i = 0; i < order.size(); ++i) {
    TORCH_CHECK(!seen[static_cast<size_t>(order[i])], "a permutation with ",
                order[i], " twice");
    seen[static_cast<size_t>(order[i])] = true;
  }
}

// (pooled_embs, offset_dim_list, permute_list, inv_offset_dim_list,
// inv_permute_list): columns of one matrix in another order.
void GuardRepeatedPooledPermutation(Arguments a) {
  const at::Tensor& pooled = a[0].toTensor();
  const at::Tensor& offsets = a[1].toTensor();
  const at::Tensor& permute = a[2].toTensor();
  CheckRank(pooled, 2, "pooled embeddings");
  for (const size_t i : {size_t{1}, size_t{2}, size_t{3}, size_t{4}}) {
    CheckRank(a[i].toTensor(), 1, "offsets and permutations");
    TORCH_CHECK(a[i].toTensor().scalar_type() == at::kLong,
                "offsets and permutations that are not int64");
  }
  TORCH_CHECK(offsets.numel() > 0, "no offsets");
  const int64_t last = CheckOffsets(offsets, pooled.size(1));
  TORCH_CHECK(Integers(offsets, "offsets")[0] == 0 && last == pooled.size(1),
              "offsets of ", last, " columns for ", pooled.sizes());
  CheckIndices(permute, offsets.numel() - 1, "a permutation");
  CheckCount(a[3].toTensor(), permute.numel() + 1, "inverse offsets");
}

// Each part once.
void GuardPooledPermutation(Arguments a) {
  GuardRepeatedPooledPermutation(a);
  CheckCount(a[2].toTensor(), a[1].toTensor().numel() - 1, "places");
  CheckCount(a[4].toTensor(), a[1].toTensor().numel() - 1, "places");
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
  // Columns of each result that are written: each once, or what was in memory
  // before would be an answer.
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

// (cat_ad_lengths, batch_offsets, num_ads_in_batch, broadcast_lengths,
// max_batch_size)
void GuardReorderedLengths(Arguments a) {
  const at::Tensor& lengths = a[0].toTensor();
  TORCH_CHECK(lengths.dim() > 0, "lengths of ", lengths.sizes());
  const Ads sizes = CheckAds(a[1].toTensor(), a[2].toInt());
  const int64_t columns = a[3].toBool() ? sizes.batches : sizes.ads;
  TORCH_CHECK(lengths.numel() % columns == 0, lengths.numel(), " lengths for ",
              columns, a[3].toBool() ? " batches" : " ads");
  TORCH_CHECK(a[4].toInt() == 0, "lengths in batches of at most ",
              a[4].toInt());
}

// (cat_ad_offsets, cat_ad_indices, reordered_cat_ad_offsets, batch_offsets,
// num_ads_in_batch, broadcast_indices, num_indices_after_broadcast)
void GuardReorderedIndices(Arguments a) {
  const bool broadcast = a[5].toBool();
  const at::Tensor& values = a[1].toTensor();
  CheckRank(values, 1, "values");
  const Ads sizes = CheckAds(a[3].toTensor(), a[4].toInt());
  CheckReordered(sizes, a[0].toTensor(), values, a[2].toTensor(),
                 a[3].toTensor(), broadcast,
                 broadcast ? a[6].toInt() : values.numel());
}

// (…_offsets, values, reordered offsets, batch_offsets, num_items_in_batch)
void GuardReorderedSequences(Arguments a) {
  const at::Tensor& values = a[1].toTensor();
  CheckRank(values, 2, "embeddings");
  const Ads sizes = CheckAds(a[3].toTensor(), a[4].toInt());
  CheckReordered(sizes, a[0].toTensor(), values, a[2].toTensor(),
                 a[3].toTensor(), false, values.size(0));
}

// (inputs, group_size): the indices, then the tensors.
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

}  // namespace refract::models::aten
