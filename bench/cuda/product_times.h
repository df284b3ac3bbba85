#ifndef REFRACT_BENCH_CUDA_PRODUCT_TIMES_H_
#define REFRACT_BENCH_CUDA_PRODUCT_TIMES_H_

#include <cstdint>
#include <vector>

#include "bench/cuda/json.h"
#include "runtime/cuda/device/cuda_device.h"

namespace refract::bench {

// Our fastest kernel ÷ cuBLASLt's fastest for the layers of the benchmarks'
// models in fp16, each as a graph of `nodes` of it, operands in the L2 cache
// where they fit. No bar: programs take whichever is faster. A row for each
// layer and batch that ours is tried for.
std::vector<Json> MeasureProducts(runtime::cuda::CudaDevice& device,
                                  runtime::cuda::Stream stream,
                                  const std::vector<int64_t>& batches,
                                  int nodes, int repetitions);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_CUDA_PRODUCT_TIMES_H_
