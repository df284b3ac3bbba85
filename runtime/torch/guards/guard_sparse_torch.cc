#include <ATen/core/Tensor.h>

#include <cstdint>

#include "runtime/torch/guards/guard_checks_torch.h"
#include "runtime/torch/guards/guard_tools_torch.h"

namespace refract::models::aten {
namespace {

// Bags of ids whose offsets begin with 0. Where the last offset is the end of
// the last bag, what comes after it.
void CheckBags(const at::Tensor& ids, const at::Tensor& offsets,
               bool include_last) {
  CheckOffsets(offsets, ids.numel());
  TORCH_CHECK(offsets.numel() == 0 || Integers(offsets, "offsets")[0] == 0,
              "offsets that do not begin with 0");
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
  const int64_t last = Integers(offsets, "offsets").back();
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
  int64_t rows = table.size(0);
  if (a[5].toBool() && IsGiven(a[7]) && a[7].toTensor().numel() > 1) {
    const at::Tensor& mapping = a[7].toTensor();
    const Integers kept(mapping, "rows that are left");
    for (int64_t i = 0; i < kept.size(); ++i) {
      TORCH_CHECK(kept[i] >= -1 && kept[i] < rows, "row ", kept[i],
                  " of a table of ", rows);
    }
    rows = mapping.numel();
  }
  const Integers all(ids, "ids");
  for (int64_t i = 0; i < all.size(); ++i) {
    TORCH_CHECK(all[i] >= 0 && all[i] < rows, "id ", all[i], " of a table of ",
                rows, " rows");
  }
  if (IsGiven(a[2])) CheckBags(ids, a[2].toTensor(), a[8].toBool());
  CheckWeights(a[6], ids.numel());
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
    if (!IsGiven(a[place])) continue;
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
    const Integers numbers(segments, lengths ? "lengths" : "offsets");
    const int64_t row = segments.size(axis);
    const int64_t size = data.size(axis);
    int64_t last = 0;
    for (int64_t i = 0; i < numbers.size(); ++i) {
      const bool begins = i % row == 0;
      const bool ends = (i + 1) % row == 0;
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

}  // namespace refract::models::aten
