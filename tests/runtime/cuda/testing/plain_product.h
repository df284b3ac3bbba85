#ifndef REFRACT_TESTS_RUNTIME_CUDA_TESTING_PLAIN_PRODUCT_H_
#define REFRACT_TESTS_RUNTIME_CUDA_TESTING_PLAIN_PRODUCT_H_

// The result of a matrix product of the backend, by plain loops with fp32 sums.

#include <cstdint>

#include "runtime/cuda/calls/calls.h"
#include "runtime/cuda/kernels/scalar_math.h"
#include "tests/runtime/cuda/testing/simt.h"

namespace refract::runtime::cuda::testing {

inline void MultiplyPlainly(const GemmCall& call) {
  const GemmShape& s = call.shape;
  auto factor = [&](const void* data, int64_t i) {
    const float value = Load(data, s.dtype, i);
    return s.tf32 && s.dtype == DType::kFloat32 ? RoundToTf32(value) : value;
  };
  for (int64_t m = 0; m < s.m; ++m) {
    for (int64_t n = 0; n < s.n; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < s.k; ++k) {
        sum += factor(call.in, m * s.ld_in + k) *
               factor(call.weight, n * s.ld_weight + k);
      }
      if (call.bias != nullptr) sum += Load(call.bias, s.dtype, n);
      if (s.epilogue == Epilogue::kRelu || s.epilogue == Epilogue::kReluBias) {
        sum = Relu(sum);
      }
      Store(sum, call.out, s.dtype, m * s.ld_out + n);
    }
  }
}

}  // namespace refract::runtime::cuda::testing

#endif  // REFRACT_TESTS_RUNTIME_CUDA_TESTING_PLAIN_PRODUCT_H_
