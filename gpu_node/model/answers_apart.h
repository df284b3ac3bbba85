#ifndef REFRACT_GPU_NODE_MODEL_ANSWERS_APART_H_
#define REFRACT_GPU_NODE_MODEL_ANSWERS_APART_H_

// How far two answers to the same rows are apart that were computed among other
// rows, so with sums in another order.

#include "base/tensor.h"

namespace refract::gpu_node {

struct Apart {
  // Infinity where a NaN, an infinity or an integer differs, or the sizes do.
  double largest = 0;
  // What is expected of sums in another order: a share of the largest value (at
  // least 1), far above what rounding does, far below what mixing rows does.
  double allowed = 0;

  bool ok() const { return largest <= allowed; }
};

// Of two tensors of one type.
Apart Compare(const base::TensorView& a, const base::TensorView& b);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_MODEL_ANSWERS_APART_H_
