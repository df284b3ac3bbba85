#ifndef REFRACT_GPU_NODE_METRICS_H_
#define REFRACT_GPU_NODE_METRICS_H_

#include <string>

#include "base/process/byte_budget.h"
#include "gpu_node/gpu_node.h"
#include "metrics/exposition.h"
#include "transport/links/channel.h"

namespace refract::gpu_node {

// All metrics of a GPU node, as docs/reference/metrics.md lists them. Their
// number is bounded by the models. `device`: "cpu" or "cuda:N".
void CollectMetrics(const GpuNode& node, const transport::Server& server,
                    const base::ByteBudget& request_memory,
                    const std::string& device, metrics::Exposition& exposition);

}  // namespace refract::gpu_node

#endif  // REFRACT_GPU_NODE_METRICS_H_
