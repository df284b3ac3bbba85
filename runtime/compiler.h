#ifndef REFRACT_RUNTIME_COMPILER_H_
#define REFRACT_RUNTIME_COMPILER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "models/graph.h"
#include "models/weights.h"
#include "runtime/plan.h"
#include "runtime/program.h"

namespace refract::runtime {

// As Program::Compile. Internal to runtime/.
absl::StatusOr<Plan> CompilePlan(
    const models::Graph& graph, const Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const CompileOptions& options);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILER_H_
