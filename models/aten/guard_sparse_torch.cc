#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "models/aten/guard_checks_torch.h"

namespace refract::models::aten {
namespace {

// Reads integers of either width.
std::vector<int64_t> Integers(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kLong).contiguous();
  const int64_t* data = wide.const_data_ptr<int64_t>();
  return {data, data + wide.numel()};
}

bool IsGiven(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined();
}

// That they rise from 0 or more to `count` at most. Returns the last one.
int64_t CheckOffsets(const at::Tensor& offsets, int64_t count) {
  TORCH_CHECK(at::isIntegralType(offsets.scalar_type(), false),
              "offsets that are no integers");
  int64_t last = 0;
  for (const int64_t offset : Integers(offsets)) {
    TORCH_CHECK(offset >= last, "offset ", offset, " after ", last);
    TORCH_CHECK(offset <= count, "offset ", offset, " of ", count, " values");
    last = offset;
  }
  return last;
}

int64_t SumOfLengths(const at::Tensor& lengths, int64_t count) {
  TORCH_CHECK(at::isIntegralType(lengths.scalar_type(), false),
              "lengths that are no integers");
  int64_t sum = 0;
  for (const int64_t length : Integers(lengths)) {
    TORCH_CHECK(length >= 0, "a length of ", length);
    TORCH_CHECK(length <= count - sum, "lengths of more than ", count,
                " values");
    sum += length;
  }
  return sum;
}

// Bags of ids whose offsets begin with 0. Where the last offset is the end of
// the last bag, what comes after it.
void CheckBags(const at::Tensor& ids, const at::Tensor& offsets,
               bool include_last) {
  TORCH_CHECK(offsets.numel() == 0 || Integers(offsets.flatten())[0] == 0,
              "offsets that do not begin with 0");
  CheckOffsets(offsets, ids.numel());
  if (include_last) {
    TORCH_CHECK(offsets.numel() > 0, "include_last_offset without an offset");
  } else {
    TORCH_CHECK(offsets.numel() > 0 || ids.numel() == 0, ids.numel(),
                " ids without a bag");
  }
}

}  // namespace

// (weight, indices, offsets, scale_grad_by_freq, mode, sparse,
// per_sample_weights, include_last_offset, …)
void GuardBags(Arguments a) {
  const at::Tensor ids = a[1].toTensor();
  const at::Tensor& offsets = a[2].toTensor();
  const int64_t mode = a[4].toInt();
  TORCH_CHECK(mode >= 0 && mode <= 2, "embedding_bag has no mode ", mode);
  TORCH_CHECK(a[0].toTensor().dim() == 2, "a table of ",
              a[0].toTensor().sizes(), " where a matrix is wanted");
  TORCH_CHECK(offsets.dim() == 1, "offsets of ", offsets.sizes(),
              " where a vector is wanted");
  const bool include_last = a[7].toBool();
  CheckBags(ids, offsets, include_last);
  if (!include_last) return;
  // LibTorch's quick kernels leave ids after the last bag alone, its other ones
  // add them to a bag that is not there.
  const int64_t count = ids.numel();
  const int64_t last = Integers(offsets).back();
  if (last == count) return;
  TORCH_CHECK(ids.dim() == 1, "offsets of ", last, " ids for ", ids.sizes());
  a[1] = ids.narrow(0, 0, last);
  if (IsGiven(a[6]) && a[6].toTensor().dim() == 1 &&
      a[6].toTensor().numel() == count) {
    a[6] = a[6].toTensor().narrow(0, 0, last);
  }
}

// (weight, indices, offsets, scale_grad_by_freq, mode, pruned_weights,
// per_sample_weights, compressed_indices_mapping, include_last_offset)
void GuardQuantizedBags(Arguments a) {
  const at::Tensor& table = a[0].toTensor();
  const at::Tensor& ids = a[1].toTensor();
  TORCH_CHECK(table.dim() == 2, "a table of ", table.sizes(),
              " where a matrix is wanted");
  TORCH_CHECK(at::isIntegralType(ids.scalar_type(), false),
              "ids that are no integers");
  int64_t rows = table.size(0);
  if (a[5].toBool() && IsGiven(a[7]) && a[7].toTensor().numel() > 1) {
    const at::Tensor& mapping = a[7].toTensor();
    for (const int64_t row : Integers(mapping)) {
      TORCH_CHECK(row >= -1 && row < rows, "row ", row, " of a table of ",
                  rows);
    }
    rows = mapping.numel();
  }
  for (const int64_t id : Integers(ids)) {
    TORCH_CHECK(id >= 0 && id < rows, "id ", id, " of a table of ", rows,
                " rows");
  }
  if (IsGiven(a[2])) CheckBags(ids, a[2].toTensor(), a[8].toBool());
  if (IsGiven(a[6])) {
    TORCH_CHECK(a[6].toTensor().numel() == ids.numel(), a[6].toTensor().numel(),
                " weights for ", ids.numel(), " ids");
  }
}

// (data, reduce, *, lengths, indices, offsets, axis, unsafe, initial): `unsafe`
// leaves out LibTorch's own check.
void GuardSegments(Arguments a) {
  const at::Tensor& data = a[0].toTensor();
  int64_t axis = a[5].toInt();
  if (axis < 0) axis += data.dim();
  TORCH_CHECK(axis >= 0 && axis < data.dim(), "segments along dimension ",
              a[5].toInt(), " of ", data.sizes());
  for (const size_t place : {size_t{2}, size_t{4}}) {
    if (!a[place].isTensor() || !a[place].toTensor().defined()) continue;
    const bool lengths = place == 2;
    const at::Tensor& segments = a[place].toTensor();
    TORCH_CHECK(segments.dim() == axis + 1 && segments.numel() > 0,
                lengths ? "lengths" : "offsets", " of ", segments.sizes(),
                " for segments of ", data.sizes());
    for (int64_t d = 0; d < axis; ++d) {
      TORCH_CHECK(segments.size(d) == data.size(d),
                  lengths ? "lengths" : "offsets", " of ", segments.sizes(),
                  " for segments of ", data.sizes());
    }
    const std::vector<int64_t> numbers = Integers(segments);
    const int64_t row = segments.size(axis);
    const int64_t size = data.size(axis);
    int64_t last = 0;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const bool begins = i % static_cast<size_t>(row) == 0;
      const bool ends = (i + 1) % static_cast<size_t>(row) == 0;
      if (begins) last = 0;
      if (lengths) {
        TORCH_CHECK(numbers[i] >= 0 && numbers[i] <= size - last,
                    "a segment of ", numbers[i], " after ", last, " of ", size);
        last += numbers[i];
        TORCH_CHECK(!ends || last == size, "segments of ", last, " of ", size);
      } else {
        TORCH_CHECK(numbers[i] >= last && numbers[i] <= size, "offset ",
                    numbers[i], " after ", last, " of ", size);
        last = numbers[i];
      }
    }
  }
}

// (batch_size, csr_seg, values)
void GuardSegmentSums(Arguments a) {
  const int64_t batch = a[0].toInt();
  const at::Tensor& values = a[2].toTensor();
  TORCH_CHECK(batch > 0, "segments of batches of ", batch);
  CheckOffsets(a[1].toTensor(), values.numel() / batch);
}

// (offsets, range_size)
void GuardOffsetsRange(Arguments a) {
  CheckOffsets(a[0].toTensor(), a[1].toInt());
}

// (t_in, lengths, max_length)
void GuardPackSegments(Arguments a) {
  const at::Tensor& values = a[0].toTensor();
  TORCH_CHECK(values.dim() > 0, "segments of a number");
  SumOfLengths(a[1].toTensor(), values.size(0));
}

// (dev_weights, …, [12] indices, [13] offsets, pooling_mode,
// [15] indice_weights, …): fbgemm checks the ids themselves.
void GuardQuantizedTables(Arguments a) {
  const at::Tensor& ids = a[12].toTensor();
  const at::Tensor& tables =
      a[5].toTensor();  // D_offsets: one more than tables
  TORCH_CHECK(tables.numel() > 1, "a look-up without a table");
  CheckOffsets(a[13].toTensor(), ids.numel());
  if (IsGiven(a[15])) {
    TORCH_CHECK(a[15].toTensor().numel() == ids.numel(),
                a[15].toTensor().numel(), " weights for ", ids.numel(), " ids");
  }
}

// One row of lengths for each feature, put in another order.
void GuardPermutation(Arguments a) {
  const at::Tensor& lengths = a[1].toTensor();
  const at::Tensor& values = a[2].toTensor();
  if (lengths.dim() == 0 || values.dim() == 0) {
    TORCH_CHECK(false, "lengths of ", lengths.sizes(), " and values of ",
                values.sizes());
  }
  SumOfLengths(lengths, values.size(0));
  const int64_t features = lengths.size(0);
  const std::vector<int64_t> all = Integers(lengths);
  const int64_t row = features == 0 ? 0 : lengths.numel() / features;
  int64_t sum = 0;
  for (const int64_t from : Integers(a[0].toTensor())) {
    TORCH_CHECK(from >= 0 && from < features, "feature ", from, " of ",
                features);
    for (int64_t i = 0; i < row; ++i) {
      sum += all[static_cast<size_t>(from * row + i)];
    }
  }
  if (!a[4].isNone()) {
    TORCH_CHECK(a[4].toInt() == sum, "lengths of ", sum,
                " values where the model says ", a[4].toInt());
  }
  if (IsGiven(a[3])) {
    TORCH_CHECK(
        a[3].toTensor().dim() > 0 && a[3].toTensor().size(0) >= values.size(0),
        a[3].toTensor().numel(), " weights for ", values.size(0), " values");
  }
}

void CheckJagged(Arguments a, size_t values, size_t offsets) {
  const at::Tensor& data = a[values].toTensor();
  TORCH_CHECK(data.dim() > 0, "jagged values of ", data.sizes());
  if (a[offsets].isTensor()) {
    TORCH_CHECK(a[offsets].toTensor().numel() > 0, "no offsets");
    CheckOffsets(a[offsets].toTensor(), data.size(0));
    return;
  }
  const std::vector<at::Tensor> list = a[offsets].toTensorVector();
  for (size_t i = 0; i < list.size(); ++i) {
    TORCH_CHECK(list[i].numel() > 0, "no offsets");
    CheckOffsets(list[i],
                 i + 1 < list.size() ? list[i + 1].numel() - 1 : data.size(0));
  }
}

// (dense, x_offsets, total_L)
void GuardDenseToJagged(Arguments a) {
  const at::Tensor& dense = a[0].toTensor();
  const std::vector<at::Tensor> list = a[1].toTensorVector();
  TORCH_CHECK(
      !list.empty() && dense.dim() >= 1 && list[0].numel() == dense.size(0) + 1,
      "offsets for other rows than ", dense.sizes());
  for (size_t i = 0; i < list.size(); ++i) {
    const bool is_last = i + 1 == list.size();
    // What the last one counts is the result, given or told by it.
    const int64_t count = is_last && !a[2].isNone() ? a[2].toInt()
                          : is_last ? std::numeric_limits<int32_t>::max()
                                    : list[i + 1].numel() - 1;
    const int64_t end = CheckOffsets(list[i], count);
    TORCH_CHECK(!is_last || a[2].isNone() || end == count, "offsets of ", end,
                " values where the model says ", count);
  }
}

}  // namespace refract::models::aten
