#ifndef REFRACT_RUNTIME_TORCH_REGION_CALLER_TORCH_H_
#define REFRACT_RUNTIME_TORCH_REGION_CALLER_TORCH_H_

#include <memory>

#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "runtime/torch/caller.h"

namespace refract::runtime::aten {

// Caller::Create() for a node that is a piece of TorchScript
// (models/graph/script_region.h). InvalidArgument names the node: its script is
// damaged, or needs an operator library that is not loaded.
absl::StatusOr<std::unique_ptr<const Caller>> CreateRegionCaller(
    const models::Node& node);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_REGION_CALLER_TORCH_H_
