#ifndef REFRACT_RUNTIME_COMPILE_LIVENESS_H_
#define REFRACT_RUNTIME_COMPILE_LIVENESS_H_

#include "models/graph/graph.h"
#include "runtime/compile/plan.h"

namespace refract::runtime {

// Assigns a buffer to every local that needs one, to every step the LibTorch
// results that it releases, and to every output its destination: sets
// Local::buffer, Step::release, PlanOutput::{direct, buffer} and
// Plan::num_buffers. Roots and constants must be known.
void PlanMemory(const models::Graph& graph, Plan& plan);

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_LIVENESS_H_
