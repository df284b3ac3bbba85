#ifndef REFRACT_MODELS_ATEN_CONTROL_CALLER_H_
#define REFRACT_MODELS_ATEN_CONTROL_CALLER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "models/aten/caller.h"

namespace refract::models::aten {

// Caller::Create() for a control region (models/control_region.h).
absl::StatusOr<std::unique_ptr<const Caller>> CreateControlCaller(
    const Node& node);

}  // namespace refract::models::aten

#endif  // REFRACT_MODELS_ATEN_CONTROL_CALLER_H_
