#ifndef REFRACT_MODELS_GRAPH_CONSTANTS_H_
#define REFRACT_MODELS_GRAPH_CONSTANTS_H_

// Values that are the same for every request, because they are made from
// weights alone (transposed or concatenated weights, masks, positions). They
// never cross: a node computes those that it reads itself, at load.

#include <vector>

#include "models/graph/graph.h"
#include "models/repository/split_plan.h"

namespace refract::models {

// Per node: everything it reads is a weight or made by such a node, and it may
// run on either kind of node. Look-ups are not among them: the table would have
// to be where the constant is read.
std::vector<bool> ConstantNodes(const Graph& graph);

// Nodes that a part of a plan computes: those of its stage, and the constants
// that it reads or gives as outputs. Ascending, which is execution order.
std::vector<NodeId> NodesOfPart(const Graph& graph, const SplitPlan& plan,
                                Stage stage);

// For each value that is a weight the nodes for whose sake a side holds it, in
// order: those that read it, or a constant made of it, and are no constants
// themselves.
std::vector<std::vector<NodeId>> ReadersOfWeights(const Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_GRAPH_CONSTANTS_H_
