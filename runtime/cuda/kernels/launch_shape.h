#ifndef REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_SHAPE_H_
#define REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_SHAPE_H_

#include <cstdint>

#include "runtime/cuda/calls/index_math.h"

namespace refract::runtime::cuda {

struct LaunchShape {
  int64_t blocks = 0;
  int threads = 0;
  int64_t shared_bytes = 0;
};

// Dynamic shared memory that every GPU gives a block without a raised limit.
inline constexpr int64_t kMaxSharedBytes = 48 * 1024;
inline constexpr int kWarp = 32;
inline constexpr int kThreads = 256;
// More blocks than fill any GPU several times over: beyond it, longer loops per
// thread are cheaper than more blocks.
inline constexpr int64_t kMaxBlocks = 4096;

// One thread per unit of work, in a loop if there are more units.
inline LaunchShape FlatShape(int64_t units) {
  const int64_t blocks = CeilDiv(units, kThreads);
  return {blocks < kMaxBlocks ? blocks : kMaxBlocks, kThreads, 0};
}

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_KERNELS_LAUNCH_SHAPE_H_
