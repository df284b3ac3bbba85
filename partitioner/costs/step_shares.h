#ifndef REFRACT_PARTITIONER_COSTS_STEP_SHARES_H_
#define REFRACT_PARTITIONER_COSTS_STEP_SHARES_H_

// Operators that an engine computes as one step: what lies between them is
// never written out, unless a cut separates them.

#include <vector>

#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"

namespace refract::partitioner {

// Views and sizes, which take no time.
bool IsFree(const models::Graph& graph, models::NodeId node);

// Adds `excess`, the seconds that the operators of a step take more apart than
// together, to the values that some of them make and others read, in proportion
// to their bytes. Values that are views of one another are one, and each of
// them costs what that one does. `cut_s`: per value of the graph.
void ShareExcess(const models::Graph& graph,
                 const std::vector<models::NodeId>& step,
                 const models::SymbolBindings& sizes, double excess,
                 std::vector<double>& cut_s);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_STEP_SHARES_H_
