#ifndef REFRACT_RUNTIME_COMPILE_COMPILER_H_
#define REFRACT_RUNTIME_COMPILE_COMPILER_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "models/repository/weights.h"
#include "runtime/compile/plan.h"
#include "runtime/program.h"

namespace refract::runtime {

// Target of the plan. Fusions that every device supports run for both targets;
// DenseOp and others are for the CPU alone.
enum class Target : uint8_t { kCpu, kTranslation };

// As Program::Compile. Internal to runtime/.
absl::StatusOr<Plan> CompilePlan(
    const models::Graph& graph, const Part& part,
    std::shared_ptr<const models::WeightStore> weights,
    const CompileOptions& options, Target target = Target::kTranslation);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_COMPILER_H_
