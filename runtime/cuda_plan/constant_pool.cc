#include "runtime/cuda_plan/constant_pool.h"

#include <cmath>
#include <numeric>

namespace refract::runtime::cuda_plan {

const ConstantPool::Mask& ConstantPool::CausalMask(int64_t size) {
  if (masks_.empty() || masks_.back().size < size) {
    Mask& mask = masks_.emplace_back();
    mask.size = size;
    mask.values.reserve(static_cast<size_t>(size * size));
    for (int64_t row = 0; row < size; ++row) {
      for (int64_t col = 0; col < size; ++col) {
        mask.values.push_back(col <= row ? 0.0f : -INFINITY);
      }
    }
  }
  return masks_.back();
}

const std::vector<int64_t>& ConstantPool::Counting(int64_t size) {
  if (countings_.empty() ||
      static_cast<int64_t>(countings_.back().size()) < size) {
    auto& numbers = countings_.emplace_back(static_cast<size_t>(size));
    std::iota(numbers.begin(), numbers.end(), 0);
  }
  return countings_.back();
}

}  // namespace refract::runtime::cuda_plan
