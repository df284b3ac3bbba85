#include "runtime/cuda_plan/sizes.h"

#include <algorithm>

namespace refract::runtime::cuda_plan {

// The line through the first two probes; the third probe must lie on it, or the
// size does not grow evenly with the batch.
std::optional<cuda::Rows> Size::rows() const {
  const int64_t run = kProbes[1] - kProbes[0];
  const int64_t rise = at[1] - at[0];
  if (rise % run != 0) return std::nullopt;
  cuda::Rows rows;
  rows.per_item = rise / run;
  rows.fixed = at[0] - rows.per_item * kProbes[0];
  if (rows.At(kProbes[2]) != at[2]) return std::nullopt;
  return rows;
}

Size operator*(const Size& a, const Size& b) {
  Size result;
  for (size_t p = 0; p < kProbes.size(); ++p) result.at[p] = a.at[p] * b.at[p];
  return result;
}

Size operator+(const Size& a, const Size& b) {
  Size result;
  for (size_t p = 0; p < kProbes.size(); ++p) result.at[p] = a.at[p] + b.at[p];
  return result;
}

Size Product(const Sizes& sizes, size_t first, size_t last) {
  Size product = 1;
  for (size_t d = first; d < last; ++d) product = product * sizes[d];
  return product;
}

std::optional<int> BatchDimOf(const Sizes& dims) {
  int found = -1;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].constant()) continue;
    if (found >= 0) return std::nullopt;
    found = static_cast<int>(d);
  }
  return found;
}

namespace {

// Strides of `to` over the elements that have `strides` under `from`, at one
// batch. The rule of PyTorch's view(): from the last dimension on, dimensions
// of `from` are joined to runs of elements at equal distances (`run` elements,
// `stride` apart). Dimensions of `to` are cut from the run, innermost first
// (`cut` elements so far), and must use it up exactly: no dimension of `to` may
// reach across two runs.
bool CutAnew(const std::vector<int64_t>& from,
             const std::vector<int64_t>& strides,
             const std::vector<int64_t>& to, std::vector<int64_t>& result) {
  result.assign(to.size(), 0);
  auto next = static_cast<int64_t>(to.size()) - 1;
  int64_t stride = strides.empty() ? 1 : strides.back();
  int64_t run = 1;
  int64_t cut = 1;
  for (auto d = static_cast<int64_t>(from.size()) - 1; d >= 0; --d) {
    run *= from[d];
    const bool ends =
        d == 0 || (from[d - 1] != 1 && strides[d - 1] != run * stride);
    if (!ends) continue;
    while (next >= 0 && (cut < run || to[next] == 1)) {
      result[next] = cut * stride;
      cut *= to[next];
      --next;
    }
    if (cut != run) return false;
    if (d > 0) {
      stride = strides[d - 1];
      run = cut = 1;
    }
  }
  while (next >= 0 && to[next] == 1) result[next--] = stride;
  return next < 0;
}

std::vector<int64_t> At(const Sizes& sizes, size_t probe) {
  std::vector<int64_t> values;
  for (const Size& size : sizes) values.push_back(size.at[probe]);
  return values;
}

}  // namespace

std::optional<Tensor> Reshaped(const Tensor& tensor, const Sizes& dims) {
  Tensor result = tensor;
  result.dims = dims;
  result.strides.assign(dims.size(), 0);
  for (size_t p = 0; p < kProbes.size(); ++p) {
    // The strides are found at each probe batch separately, and must then lie
    // on lines.
    std::vector<int64_t> strides;
    if (!CutAnew(At(tensor.dims, p), At(tensor.strides, p), At(dims, p),
                 strides)) {
      return std::nullopt;
    }
    for (size_t d = 0; d < dims.size(); ++d) {
      result.strides[d].at[p] = strides[d];
    }
  }
  for (const Size& stride : result.strides) {
    if (!stride.rows()) return std::nullopt;
  }
  return result;
}

Tensor Permuted(const Tensor& tensor, const std::vector<size_t>& order) {
  Tensor result = tensor;
  for (size_t d = 0; d < order.size(); ++d) {
    result.dims[d] = tensor.dims[order[d]];
    result.strides[d] = tensor.strides[order[d]];
  }
  return result;
}

std::optional<Tensor> Expanded(const Tensor& tensor, const Sizes& dims) {
  if (dims.size() < tensor.rank()) return std::nullopt;
  Tensor result = tensor;
  const size_t added = dims.size() - tensor.rank();
  result.dims = dims;
  result.strides.assign(dims.size(), 0);
  for (size_t d = added; d < dims.size(); ++d) {
    const Size& from = tensor.dims[d - added];
    if (from == dims[d]) {
      result.strides[d] = tensor.strides[d - added];
    } else if (from.constant() != 1) {
      return std::nullopt;
    }
  }
  return result;
}

Tensor Sliced(const Tensor& tensor, size_t dim, const Size& start, int64_t step,
              const Size& count) {
  Tensor result = tensor;
  result.offset = tensor.offset + start * tensor.strides[dim];
  result.dims[dim] = count;
  result.strides[dim] = tensor.strides[dim] * step;
  return result;
}

Tensor Selected(const Tensor& tensor, size_t dim, int64_t index) {
  Tensor result = Sliced(tensor, dim, index, 1, 1);
  const auto at = static_cast<std::ptrdiff_t>(dim);
  result.dims.erase(result.dims.begin() + at);
  result.strides.erase(result.strides.begin() + at);
  return result;
}

Tensor Unsqueezed(const Tensor& tensor, size_t dim) {
  Tensor result = tensor;
  const auto at = static_cast<std::ptrdiff_t>(dim);
  result.dims.insert(result.dims.begin() + at, 1);
  result.strides.insert(result.strides.begin() + at, 0);
  return result;
}

}  // namespace refract::runtime::cuda_plan
