#ifndef REFRACT_TOOLS_SPLIT_REPORT_H_
#define REFRACT_TOOLS_SPLIT_REPORT_H_

// What `refract partition --method optimal` tells beside the plan itself.

#include <ostream>
#include <string>

#include "models/graph.h"
#include "partitioner/optimal.h"
#include "tools/split_conditions.h"

namespace refract::tools {

// Conditions, table of alternatives, how far the optimum is proven, what had to
// be assumed.
void PrintSplit(const models::Graph& graph, const SplitConditions& conditions,
                const partitioner::OptimalSplit& split, std::ostream& out);

// The same as one JSON object, with the costs of every operator, the bytes of
// every value and the stages of every alternative, so that other programs can
// check the sums. docs/partitioning.md lists the fields.
std::string SplitToJson(const models::Graph& graph,
                        const SplitConditions& conditions,
                        const partitioner::OptimalSplit& split);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_SPLIT_REPORT_H_
