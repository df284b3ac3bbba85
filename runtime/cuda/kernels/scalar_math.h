#ifndef REFRACT_RUNTIME_CUDA_KERNELS_SCALAR_MATH_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_SCALAR_MATH_H_

// Functions of one or two floats as PyTorch defines them: a NaN argument gives
// NaN, also in Relu, Maximum and Minimum.

#include <cmath>

#include "runtime/cuda/calls/annotations.h"

namespace refract::runtime::cuda {

REFRACT_HOST_DEVICE float Relu(float x) { return x < 0.0f ? 0.0f : x; }
REFRACT_HOST_DEVICE float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
REFRACT_HOST_DEVICE float Silu(float x) { return x / (1.0f + expf(-x)); }
// x/2 · (1 + erf(x/√2)).
REFRACT_HOST_DEVICE float Gelu(float x) {
  return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}
// PyTorch's approximate="tanh": the factor is √(2/π).
REFRACT_HOST_DEVICE float GeluTanh(float x) {
  return 0.5f * x *
         (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
// Only NaN differs from itself.
REFRACT_HOST_DEVICE float Maximum(float a, float b) {
  return a != a || a > b ? a : b;
}
REFRACT_HOST_DEVICE float Minimum(float a, float b) {
  return a != a || a < b ? a : b;
}

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_SCALAR_MATH_H_
