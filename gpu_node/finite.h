#ifndef REFRACT_GPU_NODE_FINITE_H_
#define REFRACT_GPU_NODE_FINITE_H_

#include "base/finite.h"

namespace refract::gpu_node {

using base::HasNonFinite;

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_FINITE_H_
