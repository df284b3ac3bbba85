#ifndef REFRACT_RUNTIME_CUDA_PLAN_SIZES_H_
#define REFRACT_RUNTIME_CUDA_PLAN_SIZES_H_

// Sizes, strides and offsets that depend on the batch, and the views of a
// tensor that only change strides.
//
// A device program needs them as per_item · batch + fixed. Products of them
// occur on the way (when dimensions are merged), so arithmetic uses their
// values at a few batch sizes, and the line through these values is found at
// the end.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/cuda/program/device_program.h"

namespace refract::runtime::cuda_plan {

// Primes, so that a size that happens to be a multiple does not pass for one,
// and large, so that no dimension of the batch has size 1.
inline constexpr std::array<int64_t, 3> kProbes = {1009, 2003, 3001};

struct Size {
  std::array<int64_t, 3> at = {};

  Size() = default;
  Size(int64_t constant) : at{constant, constant, constant} {}  // NOLINT

  // nullopt: it depends on the batch.
  std::optional<int64_t> constant() const {
    if (at[0] != at[1] || at[0] != at[2]) return std::nullopt;
    return at[0];
  }
  // nullopt: not a line with integers.
  std::optional<cuda::Rows> rows() const;

  friend bool operator==(const Size&, const Size&) = default;
  friend Size operator*(const Size& a, const Size& b);
  friend Size operator+(const Size& a, const Size& b);
};

using Sizes = std::vector<Size>;

Size Product(const Sizes& sizes, size_t first, size_t last);

// A tensor in the memory of a device program's value.
struct Tensor {
  cuda::ValueId value = cuda::kNone;
  cuda::DType dtype = cuda::DType::kFloat32;
  Sizes dims;
  Sizes strides;
  Size offset = 0;  // elements

  size_t rank() const { return dims.size(); }
};

// The dimension whose size depends on the batch; -1: none. nullopt:
// several.
std::optional<int> BatchDimOf(const Sizes& dims);

// The same elements in row-major order under other dims; nullopt: that needs a
// copy.
std::optional<Tensor> Reshaped(const Tensor& tensor, const Sizes& dims);
// Dimension i of the result is dimension order[i].
Tensor Permuted(const Tensor& tensor, const std::vector<size_t>& order);
// Broadcast to `dims`, as PyTorch's expand; nullopt: they do not fit.
std::optional<Tensor> Expanded(const Tensor& tensor, const Sizes& dims);
// `count` entries of dimension `dim` from `start` on, every `step`-th.
Tensor Sliced(const Tensor& tensor, size_t dim, const Size& start, int64_t step,
              const Size& count);
// Entry `index` of dimension `dim`, which the result lacks.
Tensor Selected(const Tensor& tensor, size_t dim, int64_t index);
Tensor Unsqueezed(const Tensor& tensor, size_t dim);

}  // namespace refract::runtime::cuda_plan

#endif  // REFRACT_RUNTIME_CUDA_PLAN_SIZES_H_
