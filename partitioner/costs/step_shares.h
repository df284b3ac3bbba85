#ifndef REFRACT_PARTITIONER_COSTS_STEP_SHARES_H_
#define REFRACT_PARTITIONER_COSTS_STEP_SHARES_H_

// Fused operators: the values between them are not written to memory, unless a
// cut separates them.

#include <vector>

#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"

namespace refract::partitioner {

// Views and sizes, which take no time.
bool IsFree(const models::Graph& graph, models::NodeId node);

// Distributes `excess`, the extra seconds of a step's operators when they are
// separated, over the values between them, in proportion to their bytes. Values
// that are views of one another count as one value, and each of them has its
// cost. `cut_s`: per value of the graph.
void ShareExcess(const models::Graph& graph,
                 const std::vector<models::NodeId>& step,
                 const models::SymbolBindings& sizes, double excess,
                 std::vector<double>& cut_s);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_STEP_SHARES_H_
