#ifndef REFRACT_RUNTIME_CUDA_CALLS_ROWS_H_
#define REFRACT_RUNTIME_CUDA_CALLS_ROWS_H_

#include <cstdint>

namespace refract::runtime::cuda {

// Index of a value of a program.
using ValueId = int;
inline constexpr ValueId kNone = -1;

// A number that depends on the batch: per_item · batch + fixed.
struct Rows {
  int64_t per_item = 1;
  int64_t fixed = 0;
  int64_t At(int64_t batch) const { return per_item * batch + fixed; }
  friend bool operator==(const Rows&, const Rows&) = default;
};
inline constexpr Rows kOneRow = {0, 1};

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_CALLS_ROWS_H_
