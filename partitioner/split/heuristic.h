#ifndef REFRACT_PARTITIONER_SPLIT_HEURISTIC_H_
#define REFRACT_PARTITIONER_SPLIT_HEURISTIC_H_

#include "absl/status/statusor.h"
#include "base/digest.h"
#include "models/graph/graph.h"
#include "models/repository/split_plan.h"

namespace refract::partitioner {

// Prism's colouring (NSDI '25 section 4.1). CPU-intensive operators and
// everything before them stay on the CN. Colouring grows from the dense seeds
// upstream and downstream over all operators that the HN may run. HN → CN → HN
// paths are then repaired, so that one crossing each way remains. Pure; the
// plan passes models::ValidatePlan. A model without dense operators gets an
// all-CN plan.
absl::StatusOr<models::SplitPlan> SplitHeuristically(const models::Graph& graph,
                                                     const base::Digest& model);

// Everything on the CN: always legal.
models::SplitPlan AllCn(const models::Graph& graph, const base::Digest& model);

// As many operators as legal on the HN: every operator that may run there and
// does not feed an operator that may not. Sizes of tensors that the HN does not
// need otherwise stay on the CN.
absl::StatusOr<models::SplitPlan> AllHn(const models::Graph& graph,
                                        const base::Digest& model);

// As AllHn, but operators before `first`, in the graph's order, stay on the CN:
// the later `first`, the less is on the HN. Method "from NAME" of `first`.
absl::StatusOr<models::SplitPlan> HnFrom(const models::Graph& graph,
                                         const base::Digest& model,
                                         models::NodeId first);

// `node` alone on the HN: its operands go up and its results come down. All-CN
// stages if it may not run there. Method "only NAME".
absl::StatusOr<models::SplitPlan> HnOnly(const models::Graph& graph,
                                         const base::Digest& model,
                                         models::NodeId node);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SPLIT_HEURISTIC_H_
