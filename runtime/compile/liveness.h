#ifndef REFRACT_RUNTIME_COMPILE_LIVENESS_H_
#define REFRACT_RUNTIME_COMPILE_LIVENESS_H_

#include "models/graph/graph.h"
#include "runtime/compile/plan.h"

namespace refract::runtime {

// Gives every local that needs one a buffer, every step the LibTorch results
// that it may let go, and every output how it gets where it must: sets
// Local::buffer, Step::release, PlanOutput::{direct, buffer} and
// Plan::num_buffers. Roots and constants must be known.
void PlanMemory(const models::Graph& graph, Plan& plan);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_LIVENESS_H_
