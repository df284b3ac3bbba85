#ifndef REFRACT_GPU_NODE_FINITE_H_
#define REFRACT_GPU_NODE_FINITE_H_

#include "base/tensor.h"

namespace refract::gpu_node {

// Whether a tensor holds a NaN or an infinity; false for what has none. Looks
// at exponents only, a few bytes per ns. Safe on memory of any alignment.
bool HasNonFinite(const base::TensorView& tensor);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_FINITE_H_
