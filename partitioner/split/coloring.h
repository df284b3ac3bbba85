#ifndef REFRACT_PARTITIONER_SPLIT_COLORING_H_
#define REFRACT_PARTITIONER_SPLIT_COLORING_H_

// The steps of the heuristic split, one by one. Pure functions over sets of
// nodes; heuristic.cc puts them together.

#include <vector>

#include "models/graph/graph.h"
#include "models/graph/op_traits.h"
#include "models/repository/split_plan.h"

namespace refract::partitioner {

// Membership by NodeId.
using NodeSet = std::vector<bool>;

NodeSet NodesOfClass(const models::Graph& graph, models::OpClass op_class);

// Producers and consumers of each node. Relies on the topological order of a
// graph's nodes. Keeps no reference to the graph. Immutable.
class Topology {
 public:
  explicit Topology(const models::Graph& graph);

  const std::vector<models::NodeId>& producers(models::NodeId node) const {
    return producers_[node];
  }
  const std::vector<models::NodeId>& consumers(models::NodeId node) const {
    return consumers_[node];
  }
  size_t size() const { return producers_.size(); }

  // `nodes` and everything before (after) them.
  NodeSet WithAncestors(NodeSet nodes) const;
  NodeSet WithDescendants(NodeSet nodes) const;
  // All nodes after `nodes`; a node of `nodes` only if it comes after another
  // node of `nodes`.
  NodeSet Descendants(const NodeSet& nodes) const;
  // Nodes whose results differ between requests.
  NodeSet DependingOnInputs() const;

  // Colours from `seeds` upstream and downstream over `free` nodes; seeds that
  // are not free are ignored. (Prism section 4.1.)
  NodeSet Grow(const NodeSet& seeds, const NodeSet& free) const;

 private:
  // Distinct, ascending.
  std::vector<std::vector<models::NodeId>> producers_;
  std::vector<std::vector<models::NodeId>> consumers_;
  NodeSet reads_input_;
};

// Moves sizes to the CN that depend on no HN node and that the CN needs too.
// Computed on the HN, they would order CN work after the HN for a number that
// the CN has already.
void ReleaseSharedSizes(const models::Graph& graph, const Topology& topology,
                        NodeSet& on_hn);

// Removes nodes from `on_hn` until no path leads HN → CN → HN. At each
// offending CN node, in order, either its HN ancestors move before it or its HN
// descendants after it: the choice that gives up fewer `dense` nodes, then
// fewer nodes, then the ancestors.
void MakeConvex(const Topology& topology, const NodeSet& dense, NodeSet& on_hn);

// Moves size operators from the HN to CN-pre if the tensor that they measure
// would cross only for them. `plan.stages` must be monotone and stays so.
void KeepSizesNearTheirTensors(const models::Graph& graph,
                               models::SplitPlan& plan);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SPLIT_COLORING_H_
