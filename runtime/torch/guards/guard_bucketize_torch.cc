#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

#include "runtime/torch/guards/guard_fbgemm_torch.h"
#include "runtime/torch/guards/guard_tools_torch.h"

namespace refract::models::aten {
namespace {

void CheckJaggedIds(const at::Tensor& lengths, const at::Tensor& ids,
                    const c10::IValue& weights) {
  CheckRank(lengths, 1, "lengths");
  CheckRank(ids, 1, "ids");
  CheckLengths(lengths, ids.numel());
  if (IsGiven(weights)) CheckWeights(weights, ids.numel());
}

// There is a length for each bucket and bag.
void CheckBuckets(int64_t buckets, const at::Tensor& lengths) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  TORCH_CHECK(buckets > 0 && buckets <= kMost / (lengths.numel() + 1),
              lengths.numel(), " bags of ids in ", buckets, " buckets");
}

// (lengths, indices, bucketize_pos, sequence, block_sizes, my_size, …); `rest`
// is where batch_size_per_feature lies: it, max_B and block_bucketize_pos come
// one after the other; `blocks` is total_num_blocks.
void CheckBlocks(Arguments a, const c10::IValue& weights, size_t rest,
                 size_t blocks) {
  const at::Tensor& lengths = a[0].toTensor();
  const at::Tensor& ids = a[1].toTensor();
  const at::Tensor& sizes = a[4].toTensor();
  const int64_t buckets = a[5].toInt();
  CheckJaggedIds(lengths, ids, weights);
  CheckBuckets(buckets, lengths);
  CheckRank(sizes, 1, "block_sizes");
  const int64_t features = sizes.numel();
  TORCH_CHECK(features > 0, "no block_sizes");
  TORCH_CHECK(sizes.scalar_type() == ids.scalar_type(),
              "block_sizes and ids of different types");
  const Integers all(sizes, "block_sizes");
  for (int64_t i = 0; i < features; ++i) {
    TORCH_CHECK(all[i] > 0, "block_sizes: blocks of ", all[i]);
  }
  if (IsGiven(a[rest])) {
    const at::Tensor& batches = a[rest].toTensor();
    CheckRank(batches, 1, "batch_size_per_feature");
    CheckCount(batches, features, "batch sizes");
    TORCH_CHECK(batches.scalar_type() == lengths.scalar_type(),
                "batch sizes and lengths of different types");
    TORCH_CHECK(CheckLengths(batches, lengths.numel(),
                             "batch_size_per_feature") == lengths.numel(),
                "batch sizes of fewer than ", lengths.numel(), " lengths");
    const Integers each(batches, "batch_size_per_feature");
    for (int64_t i = 0; i < features; ++i) {
      TORCH_CHECK(each[i] <= a[rest + 1].toInt(), "a batch of ", each[i],
                  " where the model says at most ", a[rest + 1].toInt());
    }
  } else {
    TORCH_CHECK(lengths.numel() % features == 0, lengths.numel(),
                " lengths for ", features, " features");
  }
  if (a[rest + 2].isList()) {
    const c10::ArrayRef<c10::IValue> bounds = a[rest + 2].toListRef();
    TORCH_CHECK(static_cast<int64_t>(bounds.size()) == features, "bounds of ",
                bounds.size(), " features where ", features, " are wanted");
    for (const c10::IValue& value : bounds) {
      const at::Tensor& each = value.toTensor();
      CheckRank(each, 1, "bounds of buckets");
      CheckCount(each, buckets + 1, "bounds of buckets");
      TORCH_CHECK(each.scalar_type() == ids.scalar_type(),
                  "bounds of buckets and ids of different types");
      const Integers bound(each, "bounds of buckets");
      CheckOffsets(each, bound.back(), "bounds of buckets");
      TORCH_CHECK(bound[0] == 0, "bounds of buckets that do not begin with 0");
    }
    // Below the first bound there is no bucket.
    CheckIndices(ids, std::numeric_limits<int64_t>::max(), "ids");
  }
  if (IsGiven(a[blocks])) {
    CheckRank(a[blocks].toTensor(), 1, "total_num_blocks");
    CheckCount(a[blocks].toTensor(), features, "counts of blocks");
    TORCH_CHECK(a[blocks].toTensor().scalar_type() == ids.scalar_type(),
                "counts of blocks and ids of different types");
    const Integers counts(a[blocks].toTensor(), "total_num_blocks");
    for (int64_t i = 0; i < features; ++i) {
      TORCH_CHECK(counts[i] >= buckets && counts[i] % buckets == 0,
                  "total_num_blocks: ", counts[i], " blocks in ", buckets,
                  " buckets");
    }
  }
}

}  // namespace

// (lengths, indices, bucketize_pos, sequence, block_sizes, my_size, weights,
// batch_size_per_feature, max_B, block_bucketize_pos, keep_orig_idx,
// total_num_blocks, keep_orig_idx_per_feature)
void GuardBlockBuckets(Arguments a) {
  TORCH_CHECK(a.size() < 13 || !IsGiven(a[12]),
              "buckets that keep ids by feature");
  CheckBlocks(a, a[6], 7, 11);
}

// As above, but for return_bucket_mapping after block_bucketize_pos.
void GuardBlockBucketsInference(Arguments a) {
  TORCH_CHECK(!IsGiven(a[13]), "buckets that keep ids by feature");
  CheckBlocks(a, a[6], 7, 12);
}

// (lengths, indices, bucketize_pos, my_size, weights)
void GuardBuckets(Arguments a) {
  CheckJaggedIds(a[0].toTensor(), a[1].toTensor(), a[4]);
  CheckBuckets(a[3].toInt(), a[0].toTensor());
}

// (lengths, bucketized_lengths, bucket_mapping)
void GuardBucketPermutation(Arguments a) {
  const at::Tensor& lengths = a[0].toTensor();
  const at::Tensor& buckets = a[1].toTensor();
  const at::Tensor& mapping = a[2].toTensor();
  CheckRank(lengths, 1, "lengths");
  CheckRank(buckets, 1, "bucketized_lengths");
  CheckRank(mapping, 1, "bucket_mapping");
  TORCH_CHECK(lengths.numel() > 0 && buckets.numel() % lengths.numel() == 0,
              buckets.numel(), " lengths of buckets for ", lengths.numel(),
              " lengths");
  TORCH_CHECK(CheckLengths(lengths, mapping.numel()) == mapping.numel(),
              "lengths of fewer than ", mapping.numel(), " values");
  CheckLengths(buckets, mapping.numel(), "bucketized_lengths");
  CheckIndices(mapping, buckets.numel() / lengths.numel(), "bucket_mapping");
}

// (indices_list, offsets_list, per_sample_weights, include_last_offsets)
void GuardInputCombine(Arguments a) {
  const c10::ArrayRef<c10::IValue> ids = a[0].toListRef();
  const c10::ArrayRef<c10::IValue> offsets = a[1].toListRef();
  const c10::ArrayRef<c10::IValue> weights = a[2].toListRef();
  const at::Tensor& last = a[3].toTensor();
  TORCH_CHECK(!ids.empty() && ids.size() == offsets.size() &&
                  ids.size() == weights.size(),
              ids.size(), " lists of ids, ", offsets.size(), " of offsets and ",
              weights.size(), " of weights");
  TORCH_CHECK(last.scalar_type() == at::kBool && last.is_contiguous(),
              "include_last_offsets that is no list of bools");
  CheckCount(last, static_cast<int64_t>(ids.size()), "include_last_offsets");
  for (size_t i = 0; i < ids.size(); ++i) {
    const at::Tensor& bounds = offsets[i].toTensor();
    CheckRank(ids[i].toTensor(), 1, "ids");
    CheckRank(bounds, 1, "offsets");
    CheckOffsets(bounds, ids[i].toTensor().numel());
    TORCH_CHECK(bounds.numel() > 0, "no offsets");
    if (weights[i].toTensor().numel() > 0) {
      CheckWeights(weights[i], ids[i].toTensor().numel());
    }
  }
}

// (input, …): rows of float32 to rows of bytes.
void GuardFloatRows(Arguments a) {
  TORCH_CHECK(a[0].toTensor().scalar_type() == at::kFloat,
              "rows that are not float32");
  TORCH_CHECK(a[0].toTensor().dim() > 0 && a[0].toTensor().is_contiguous(),
              "rows of ", a[0].toTensor().sizes());
}

// (input, bit_rate)
void GuardRowsOfBits(Arguments a) {
  GuardFloatRows(a);
  const at::Tensor& rows = a[0].toTensor();
  const int64_t bits = a[1].toInt();
  CheckRank(rows, 2, "rows");
  TORCH_CHECK(bits == 2 || bits == 4 || bits == 8, "rows of ", bits, " bits");
  TORCH_CHECK(rows.size(1) > 0 && rows.size(1) % (2 * (8 / bits)) == 0,
              "rows of ", rows.size(1), " numbers in ", bits, " bits");
}

// (input, bit_rate, …): each row ends with a scale and a bias, both fp16.
void GuardBitsOfRows(Arguments a) {
  const at::Tensor& rows = a[0].toTensor();
  const int64_t bits = a[1].toInt();
  CheckRank(rows, 2, "rows");
  TORCH_CHECK(rows.scalar_type() == at::kByte && rows.is_contiguous(),
              "rows that are no dense bytes");
  TORCH_CHECK(rows.size(1) > 4, "rows of ", rows.size(1), " bytes");
  // Rows of 2 bits are read past their end.
  TORCH_CHECK(bits == 4 || bits == 8, "rows of ", bits, " bits");
}

}  // namespace refract::models::aten
