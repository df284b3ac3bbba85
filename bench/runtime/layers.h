#ifndef REFRACT_BENCH_RUNTIME_LAYERS_H_
#define REFRACT_BENCH_RUNTIME_LAYERS_H_

#include <cstdint>
#include <vector>

#include "bench/runtime/timing.h"

namespace refract::bench {

// MLPerf-v1's MLPs against LibTorch's ways to compute them and a loop of fused
// multiply-adds; a row of `json`'s "layers" per batch. 1: results differ.
int RunLayers(const std::vector<int64_t>& batches, int rounds, Clock clock,
              Json& json);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_RUNTIME_LAYERS_H_
