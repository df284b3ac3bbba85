#ifndef REFRACT_TOOLS_PLAN_MODEL_COSTS_H_
#define REFRACT_TOOLS_PLAN_MODEL_COSTS_H_

#include "absl/status/statusor.h"
#include "placement/planner/spec.h"

namespace refract::tools {

// The costs of a version under its split plan, predicted as in `refract
// partition`: from measured times if there is a profile, otherwise from
// hardware descriptions. NotFound and InvalidArgument name the file or field.
absl::StatusOr<placement::ModelCosts> CostsOfVersion(
    const placement::ModelSource& source);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_PLAN_MODEL_COSTS_H_
