#ifndef REFRACT_GPU_NODE_DEVICE_COMPILE_FOR_CUDA_H_
#define REFRACT_GPU_NODE_DEVICE_COMPILE_FOR_CUDA_H_

// Runs a part of a graph on a GPU behind the interface of runtime::Program, for
// `refract run --device cuda`: single requests are executed as on the GPU node,
// but without the scheduler.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"
#include "runtime/cuda/instance/device_api.h"
#include "runtime/cuda_plan/foreign.h"
#include "runtime/program.h"

namespace refract::gpu_node {

struct CompileForCudaOptions {
  std::string model;            // for messages
  std::string device = "cuda";  // for messages
  // Rows of the largest bucket; larger requests run in pieces. ≥ 1.
  int64_t max_rows = 1024;
  // Memory for all bag entries together; requests with more entries run in
  // pieces. Bytes.
  int64_t entry_memory = int64_t{64} << 20;
  runtime::CompileOptions compile;  // config.gpu_precision sets the type
  // Operators without a kernel of ours; null: such operators are refused.
  std::shared_ptr<runtime::cuda_plan::ForeignOperators> foreign;
};

// Translates the part and loads it onto `device`. Where sizes besides the batch
// vary between requests, it is translated again for the sizes of each request.
// Errors as CudaDevice::Add(). Runs of the program take turns; outputs are
// valid until the next run. The graph must outlive the program.
absl::StatusOr<std::unique_ptr<const runtime::Program>> CompileForCuda(
    std::shared_ptr<runtime::cuda::DeviceApi> device,
    const models::Graph& graph, const runtime::Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const CompileForCudaOptions& options);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_DEVICE_COMPILE_FOR_CUDA_H_
