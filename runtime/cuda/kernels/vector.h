#ifndef REFRACT_RUNTIME_CUDA_KERNELS_VECTOR_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_VECTOR_H_

// Accesses of several elements at once.

#include <cstdint>

#include "runtime/cuda/calls/annotations.h"
#include "runtime/cuda/calls/scalar.h"

namespace refract::runtime::cuda {

// The widest access of one thread.
struct alignas(16) Vector16 {
  uint32_t words[4];
};

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

// Whether accesses of 16 bytes at `data` and at every later row are aligned.
inline bool RowsAligned(const void* data, int64_t ld, DType dtype) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
         ld * SizeOf(dtype) % 16 == 0;
}

// kWidth elements from `index` on, as floats. Aligned to their size.
template <int kWidth>
REFRACT_HOST_DEVICE void LoadWide(const void* data, DType dtype, int64_t index,
                                  float (&out)[kWidth]) {
  if constexpr (kWidth == 1) {
    out[0] = Load(data, dtype, index);
  } else if (dtype == DType::kFloat32) {
    const auto pack = *reinterpret_cast<const Pack<float, kWidth>*>(
        static_cast<const float*>(data) + index);
    for (int i = 0; i < kWidth; ++i) out[i] = pack.values[i];
  } else {
    const auto pack = *reinterpret_cast<const Pack<uint16_t, kWidth>*>(
        static_cast<const uint16_t*>(data) + index);
    if (dtype == DType::kFloat16) {
      for (int i = 0; i < kWidth; ++i) out[i] = ToFloat(Half{pack.values[i]});
    } else {
      for (int i = 0; i < kWidth; ++i) {
        out[i] = ToFloat(BFloat16{pack.values[i]});
      }
    }
  }
}

template <int kWidth>
REFRACT_HOST_DEVICE void StoreWide(const float (&values)[kWidth], void* data,
                                   DType dtype, int64_t index) {
  if constexpr (kWidth == 1) {
    Store(values[0], data, dtype, index);
  } else if (dtype == DType::kFloat32) {
    Pack<float, kWidth> pack;
    for (int i = 0; i < kWidth; ++i) pack.values[i] = values[i];
    *reinterpret_cast<Pack<float, kWidth>*>(static_cast<float*>(data) + index) =
        pack;
  } else {
    Pack<uint16_t, kWidth> pack;
    for (int i = 0; i < kWidth; ++i) {
      if (dtype == DType::kFloat16) {
        Half half;
        FromFloat(values[i], half);
        pack.values[i] = half.bits;
      } else {
        BFloat16 bfloat;
        FromFloat(values[i], bfloat);
        pack.values[i] = bfloat.bits;
      }
    }
    *reinterpret_cast<Pack<uint16_t, kWidth>*>(static_cast<uint16_t*>(data) +
                                               index) = pack;
  }
}

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_VECTOR_H_
