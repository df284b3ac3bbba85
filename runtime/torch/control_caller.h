#ifndef REFRACT_RUNTIME_TORCH_CONTROL_CALLER_H_
#define REFRACT_RUNTIME_TORCH_CONTROL_CALLER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/torch/caller.h"

namespace refract::runtime::aten {

// Caller::Create() for a control region (models/graph/control_region.h).
absl::StatusOr<std::unique_ptr<const Caller>> CreateControlCaller(
    const models::Node& node);

}  // namespace refract::runtime::aten

#endif  // REFRACT_RUNTIME_TORCH_CONTROL_CALLER_H_
