#ifndef REFRACT_RUNTIME_COMPILE_COMPILER_H_
#define REFRACT_RUNTIME_COMPILE_COMPILER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"
#include "runtime/compile/plan.h"
#include "runtime/program.h"

namespace refract::runtime {

// As Program::Compile. Internal to runtime/.
absl::StatusOr<Plan> CompilePlan(
    const models::Graph& graph, const Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const CompileOptions& options, Target target = Target::kTranslation);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_COMPILER_H_
