#ifndef REFRACT_RUNTIME_CUDA_DEVICE_GRAPH_TRIAL_H_
#define REFRACT_RUNTIME_CUDA_DEVICE_GRAPH_TRIAL_H_

// Which of two ways to compute the same is faster here.

#include <cuda_runtime_api.h>

#include <vector>

#include "runtime/cuda/status.h"

namespace refract::runtime::cuda {

// Whether launching `these`, one after another, takes less time than launching
// `those`, by more than times differ by: the medians of a few rounds, in which
// both take turns. Synchronises; nothing else should be given to `stream`.
Result<bool> FasterGraphs(const std::vector<cudaGraphExec_t>& these,
                          const std::vector<cudaGraphExec_t>& those,
                          cudaStream_t stream);

}  // namespace refract::runtime::cuda

#endif  // REFRACT_RUNTIME_CUDA_DEVICE_GRAPH_TRIAL_H_
