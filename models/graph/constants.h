#ifndef REFRACT_MODELS_GRAPH_CONSTANTS_H_
#define REFRACT_MODELS_GRAPH_CONSTANTS_H_

// Values that are the same for every request, because they depend on weights
// alone (transposed or concatenated weights, masks, positions). They never
// cross: a node computes the constants that it reads, at load.

#include <vector>

#include "models/graph/graph.h"
#include "models/repository/split_plan.h"

namespace refract::models {

// Per graph node: whether all its operands are weights or results of such
// nodes, and it may run on either kind of machine. Look-ups do not count: the
// table would have to be where the constant is read.
std::vector<bool> ConstantNodes(const Graph& graph);

// Graph nodes that a part of a plan computes: the nodes of its stage, and the
// constants that it reads or returns. Ascending, which is execution order.
std::vector<NodeId> NodesOfPart(const Graph& graph, const SplitPlan& plan,
                                Stage stage);

// For each weight the graph nodes for which a machine holds it, in order: nodes
// that read the weight, or a constant made of it, and are no constants
// themselves.
std::vector<std::vector<NodeId>> ReadersOfWeights(const Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_GRAPH_CONSTANTS_H_
