#ifndef REFRACT_BENCH_GPU_NODE_DENSE_MODEL_H_
#define REFRACT_BENCH_GPU_NODE_DENSE_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "models/repository/repository.h"

namespace refract::bench {

// A multi-layer perceptron with ReLU between its layers, all of it on the GPU
// node: "x", FP32[B, widths[0]] → "score", FP32[B, widths.back()]. Weights are
// random numbers of fixed seed. InvalidArgument: fewer than two widths.
absl::StatusOr<std::shared_ptr<const models::LoadedModel>> MakeDenseModel(
    const std::vector<int64_t>& widths);

}  // namespace refract::bench

#endif  // REFRACT_BENCH_GPU_NODE_DENSE_MODEL_H_
