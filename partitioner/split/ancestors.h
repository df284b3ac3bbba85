#ifndef REFRACT_PARTITIONER_SPLIT_ANCESTORS_H_
#define REFRACT_PARTITIONER_SPLIT_ANCESTORS_H_

#include "absl/status/statusor.h"
#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"
#include "models/repository/split_plan.h"

namespace refract::partitioner {

// Prism's size-aware transfer (NSDI '25 section 4.1), generalised: if crossing
// tensors are computed from smaller tensors, the smaller tensors cross and the
// HN computes the rest. Moves CN-pre operators to the HN, never back, such that
// as few bytes as possible cross, and among such plans as few operators as
// possible move. Idempotent. Considers bytes alone: SplitOptimally() weighs
// them against times.
//
// `plan` must be valid for `graph`. Errors: those of cut::FindBest.
absl::StatusOr<models::SplitPlan> SendSmallerAncestors(
    const models::Graph& graph, const models::SymbolBindings& sizes,
    models::SplitPlan plan);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SPLIT_ANCESTORS_H_
