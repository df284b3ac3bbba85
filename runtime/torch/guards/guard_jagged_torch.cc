#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/torch/guards/guard_fbgemm_torch.h"
#include "runtime/torch/guards/guard_tools_torch.h"

namespace refract::models::aten {
namespace {

// That a dense tensor of `dims` dimensions has a row for each bag.
void CheckDenseRows(const at::Tensor& dense, int64_t rows, int64_t dims) {
  CheckRank(dense, dims, "a dense operand");
  TORCH_CHECK(dense.size(0) == rows, "a dense operand of ", dense.sizes(),
              " for ", rows, " bags");
}

int64_t RowsOf(const c10::IValue& offsets) {
  if (offsets.isTensor()) return offsets.toTensor().numel() - 1;
  return offsets.toListRef().front().toTensor().numel() - 1;
}

}  // namespace

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

// (x_values, x_offsets, y, …): dense operands have a row for each bag.
void GuardJaggedDense(Arguments a) {
  CheckJagged(a, 0, 1);
  const auto levels = static_cast<int64_t>(a[1].toListRef().size());
  CheckRank(a[0].toTensor(), 2, "jagged values");
  for (size_t i = 2; i < a.size() && a[i].isTensor(); ++i) {
    CheckDenseRows(a[i].toTensor(), RowsOf(a[1]), levels + 2);
    TORCH_CHECK(a[i].toTensor().size(-1) == a[0].toTensor().size(1),
                "a dense operand of ", a[i].toTensor().sizes(),
                " for jagged values of ", a[0].toTensor().sizes());
  }
}

// (x_values, x_offsets, y, max_L)
void GuardJaggedDenseBmm(Arguments a) {
  CheckJagged(a, 0, 1);
  CheckRank(a[0].toTensor(), 2, "jagged values");
  CheckDenseRows(a[2].toTensor(), RowsOf(a[1]), 3);
  TORCH_CHECK(a[2].toTensor().size(1) == a[0].toTensor().size(1),
              "a product of jagged values of ", a[0].toTensor().sizes(),
              " and ", a[2].toTensor().sizes());
}

// (x_values, y_values, x_offsets, max_L)
void GuardJaggedJaggedBmm(Arguments a) {
  CheckJagged(a, 0, 2);
  const at::Tensor& x = a[0].toTensor();
  const at::Tensor& y = a[1].toTensor();
  CheckRank(x, 2, "jagged values");
  CheckRank(y, 2, "jagged values");
  TORCH_CHECK(x.size(0) == y.size(0), "a product of jagged values of ",
              x.sizes(), " and ", y.sizes());
}

// (values, x_offsets, max_L)
void GuardJaggedSoftmax(Arguments a) {
  CheckJagged(a, 0, 1);
  CheckRank(a[0].toTensor(), 2, "jagged values");
}

// (v, a_values, a_offsets): v has as many rows for each bag as there are heads.
void GuardVectorsTimesJagged(Arguments a) {
  CheckJagged(a, 1, 2);
  const at::Tensor& vectors = a[0].toTensor();
  const at::Tensor& values = a[1].toTensor();
  const int64_t bags = RowsOf(a[2]);
  CheckRank(vectors, 2, "vectors");
  CheckRank(values, 2, "jagged values");
  TORCH_CHECK(bags > 0 ? vectors.size(0) % bags == 0 : vectors.size(0) == 0,
              vectors.size(0), " vectors for ", bags, " bags");
  const int64_t heads = bags > 0 ? vectors.size(0) / bags : 1;
  TORCH_CHECK(heads > 0 && values.size(1) % heads == 0, "jagged values of ",
              values.sizes(), " for ", heads, " heads");
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

// (dense, x_offsets, total_L)
void GuardDenseToJagged(Arguments a) {
  const at::Tensor& dense = a[0].toTensor();
  const std::vector<at::Tensor> list = a[1].toTensorVector();
  TORCH_CHECK(
      !list.empty() && dense.dim() >= 1 && list[0].numel() == dense.size(0) + 1,
      "offsets for other rows than ", dense.sizes());
  TORCH_CHECK(dense.dim() == static_cast<int64_t>(list.size()) + 2,
              "offsets of ", list.size(), " levels for ", dense.sizes());
  for (size_t i = 0; i < list.size(); ++i) {
    const bool is_last = i + 1 == list.size();
    CheckRank(list[i], 1, "offsets");
    TORCH_CHECK(list[i].numel() > 0, "no offsets");
    TORCH_CHECK(list[i].scalar_type() == list[0].scalar_type(),
                "offsets of different types");
    // What the last one counts is the result, given or told by it.
    const int64_t count = is_last && !a[2].isNone() ? a[2].toInt()
                          : is_last ? std::numeric_limits<int32_t>::max()
                                    : list[i + 1].numel() - 1;
    const int64_t end = CheckOffsets(list[i], count);
    TORCH_CHECK(!is_last || a[2].isNone() || end == count, "offsets of ", end,
                " values where the model says ", count);
  }
}

// (values, lengths, max_truncated_length)
void GuardTruncatedValues(Arguments a) {
  CheckRank(a[0].toTensor(), 1, "jagged values");
  CheckRank(a[1].toTensor(), 1, "lengths");
  CheckLengths(a[1].toTensor(), a[0].toTensor().size(0));
  TORCH_CHECK(a[2].toInt() >= 0, "values cut to ", a[2].toInt());
}

// (values, lengths, mask, check_length)
void GuardMaskedSelect(Arguments a) {
  const at::Tensor& values = a[0].toTensor();
  CheckRank(values, 1, "jagged values");
  CheckRank(a[1].toTensor(), 1, "lengths");
  CheckRank(a[2].toTensor(), 1, "a mask");
  TORCH_CHECK(a[2].toTensor().scalar_type() == at::kBool,
              "a mask that is not of type bool");
  CheckCount(a[2].toTensor(), values.size(0), "marks");
  CheckLengths(a[1].toTensor(), values.size(0));
}

// (weights, reverse_indices, num_unique_indices)
void GuardWeightsAndCounts(Arguments a) {
  CheckCount(a[0].toTensor(), a[1].toTensor().numel(), "weights");
  CheckIndices(a[1].toTensor(), a[2].toInt());
}

// (values, lengths, indices, num_dense_output_rows)
void GuardJaggedSelect(Arguments a) {
  const at::Tensor& values = a[0].toTensor();
  const at::Tensor& lengths = a[1].toTensor();
  const at::Tensor& indices = a[2].toTensor();
  CheckRank(values, 2, "jagged values");
  CheckRank(lengths, 1, "lengths");
  CheckRank(indices, 1, "indices");
  CheckLengths(lengths, values.size(0));
  CheckIndices(indices, lengths.numel());
  const Integers each(lengths, "lengths");
  const Integers chosen(indices, "indices");
  int64_t rows = 0;
  for (int64_t i = 0; i < chosen.size(); ++i) rows += each[chosen[i]];
  TORCH_CHECK(a[3].isNone() || a[3].toInt() == rows, "bags of ", rows,
              " values where the model says ", a[3].toInt());
}

// (values, indices, input_offsets, output_offsets, num_dense_output_rows):
// offsets are the ends of bags.
void GuardJaggedSelectForward(Arguments a) {
  const at::Tensor& values = a[0].toTensor();
  const at::Tensor& indices = a[1].toTensor();
  CheckRank(values, 2, "jagged values");
  for (const size_t i : {size_t{1}, size_t{2}, size_t{3}}) {
    CheckRank(a[i].toTensor(), 1, i == 1 ? "indices" : "offsets");
  }
  CheckOffsets(a[2].toTensor(), values.size(0), "input_offsets");
  CheckCount(a[3].toTensor(), indices.numel(), "output_offsets");
  const Integers in(a[2].toTensor(), "input_offsets");
  const Integers out(a[3].toTensor(), "output_offsets");
  CheckIndices(indices, in.size());
  const Integers chosen(indices, "indices");
  int64_t rows = 0;
  for (int64_t i = 0; i < chosen.size(); ++i) {
    const int64_t bag = chosen[i];
    rows += in[bag] - (bag > 0 ? in[bag - 1] : 0);
    TORCH_CHECK(out[i] == rows, "output_offsets: ", out[i], " where bags have ",
                rows, " values");
  }
  TORCH_CHECK(a[4].isNone() || a[4].toInt() == rows, "bags of ", rows,
              " values where the model says ", a[4].toInt());
}

// (x_values, x_lengths, start, slice_length)
void GuardJaggedSlice(Arguments a) {
  CheckRank(a[0].toTensor(), 1, "jagged values");
  CheckRank(a[1].toTensor(), 1, "lengths");
  CheckRank(a[2].toTensor(), 1, "starts");
  CheckLengths(a[1].toTensor(), a[0].toTensor().size(0));
  CheckCount(a[2].toTensor(), a[1].toTensor().numel(), "starts");
  CheckIndices(a[2].toTensor(), std::numeric_limits<int64_t>::max(), "starts");
  TORCH_CHECK(a[2].toTensor().scalar_type() == a[1].toTensor().scalar_type(),
              "starts and lengths of different types");
  TORCH_CHECK(a[3].toInt() >= 0, "slices of ", a[3].toInt());
}

// (x_values, x_lengths, src_start, output_lengths, tgt_start, num_output_rows,
// slice_length, fill_zeros)
void GuardJaggedSliceForward(Arguments a) {
  CheckRank(a[0].toTensor(), 1, "jagged values");
  CheckLengths(a[1].toTensor(), a[0].toTensor().size(0));
  CheckLengths(a[3].toTensor(), a[5].toInt(), "output_lengths");
  const int64_t bags = a[1].toTensor().numel();
  for (const size_t i : {size_t{1}, size_t{2}, size_t{3}, size_t{4}}) {
    const at::Tensor& each = a[i].toTensor();
    CheckRank(each, 1, "lengths and starts");
    CheckCount(each, bags, "lengths and starts");
    CheckIndices(each, std::numeric_limits<int64_t>::max(),
                 "lengths and starts");
    TORCH_CHECK(each.scalar_type() == a[1].toTensor().scalar_type(),
                "lengths and starts of different types");
  }
  TORCH_CHECK(a[6].toInt() >= 0, "slices of ", a[6].toInt());
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

// (t_in, lengths, max_length, …)
void GuardPackSegments(Arguments a) {
  const at::Tensor& values = a[0].toTensor();
  TORCH_CHECK(values.dim() > 0, "segments of a number");
  CheckRank(a[1].toTensor(), 1, "lengths");
  CheckLengths(a[1].toTensor(), values.size(0));
  TORCH_CHECK(a[2].toInt() > 0, "segments cut to ", a[2].toInt());
}

// (values, lengths, offset_per_key, max_lengths_per_key, padding_value)
void GuardStackedJagged(Arguments a) {
  const at::Tensor& values = a[0].toTensor();
  const at::Tensor& lengths = a[1].toTensor();
  const std::vector<int64_t> offsets = a[2].toIntVector();
  const std::vector<int64_t> sizes = a[3].toIntVector();
  TORCH_CHECK(values.dim() > 0, "jagged values of ", values.sizes());
  CheckRank(lengths, 2, "lengths");
  const int64_t keys = lengths.size(0);
  TORCH_CHECK(static_cast<int64_t>(sizes.size()) == keys &&
                  static_cast<int64_t>(offsets.size()) == keys + 1,
              "lengths of ", keys, " keys where the model has ", sizes.size());
  int64_t last = 0;
  for (const int64_t offset : offsets) {
    TORCH_CHECK(offset >= last && offset <= values.size(0), "offset ", offset,
                " after ", last, " of ", values.size(0), " values");
    last = offset;
  }
  for (size_t key = 0; key < sizes.size(); ++key) {
    TORCH_CHECK(sizes[key] >= 0, "padding to a size of ", sizes[key]);
    CheckLengths(lengths.select(0, static_cast<int64_t>(key)),
                 offsets[key + 1] - offsets[key]);
  }
}

// (lengths)
void GuardRepeatArange(Arguments a) {
  CheckRank(a[0].toTensor(), 1, "lengths");
  CheckLengths(a[0].toTensor(), std::numeric_limits<int32_t>::max());
}

// (num_sources, num_targets, output_size)
void GuardSourceMask(Arguments a) {
  const at::Tensor& sources = a[0].toTensor();
  const at::Tensor& targets = a[1].toTensor();
  CheckRank(sources, 1, "sources");
  CheckRank(targets, 1, "targets");
  TORCH_CHECK(sources.numel() == targets.numel(), sources.numel(),
              " counts of sources for ", targets.numel(), " of targets");
  const int64_t rows = a[2].toInt();
  const int64_t sum = CheckLengths(sources, rows, "sources");
  TORCH_CHECK(sum + CheckLengths(targets, rows - sum, "targets") == rows,
              "fewer sources and targets than ", rows);
}

}  // namespace refract::models::aten
