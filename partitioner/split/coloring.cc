#include "partitioner/split/coloring.h"

#include <algorithm>
#include <tuple>

namespace refract::partitioner {
namespace {

using models::Graph;
using models::kNoNode;
using models::Node;
using models::NodeId;
using models::OpClass;
using models::Stage;
using models::Value;
using models::ValueId;
using models::ValueKind;

bool IsSize(const Node& node) {
  return models::ClassOf(node.op) == OpClass::kSize;
}

void SortDistinct(std::vector<NodeId>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

NodeSet Both(const NodeSet& a, const NodeSet& b) {
  NodeSet result(a.size());
  for (size_t n = 0; n < a.size(); ++n) result[n] = a[n] && b[n];
  return result;
}

int Count(const NodeSet& nodes) {
  return static_cast<int>(std::count(nodes.begin(), nodes.end(), true));
}

void Remove(const NodeSet& what, NodeSet& from) {
  for (size_t n = 0; n < from.size(); ++n) {
    if (what[n]) from[n] = false;
  }
}

}  // namespace

NodeSet NodesOfClass(const Graph& graph, OpClass op_class) {
  NodeSet result(graph.nodes.size(), false);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    result[n] = models::ClassOf(graph, graph.nodes[n]) == op_class;
  }
  return result;
}

Topology::Topology(const Graph& graph)
    : producers_(graph.nodes.size()),
      consumers_(graph.nodes.size()),
      reads_input_(graph.nodes.size(), false) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const ValueId id : models::InputsOf(graph.nodes[n])) {
      const Value& value = graph.value(id);
      if (value.producer != kNoNode) {
        producers_[n].push_back(value.producer);
      } else if (!value.is_weight()) {
        reads_input_[n] = true;
      }
    }
    SortDistinct(producers_[n]);
    for (const NodeId producer : producers_[n]) {
      consumers_[producer].push_back(static_cast<NodeId>(n));
    }
  }
}

// Nodes are in topological order: one pass against the order reaches every
// ancestor, one pass along it every descendant.
NodeSet Topology::WithAncestors(NodeSet nodes) const {
  for (size_t n = size(); n-- > 0;) {
    if (!nodes[n]) continue;
    for (const NodeId producer : producers_[n]) nodes[producer] = true;
  }
  return nodes;
}

NodeSet Topology::WithDescendants(NodeSet nodes) const {
  for (size_t n = 0; n < size(); ++n) {
    if (!nodes[n]) continue;
    for (const NodeId consumer : consumers_[n]) nodes[consumer] = true;
  }
  return nodes;
}

NodeSet Topology::Descendants(const NodeSet& nodes) const {
  NodeSet result(size(), false);
  for (size_t n = 0; n < size(); ++n) {
    for (const NodeId producer : producers_[n]) {
      if (nodes[producer] || result[producer]) result[n] = true;
    }
  }
  return result;
}

NodeSet Topology::DependingOnInputs() const {
  return WithDescendants(reads_input_);
}

// A search from the seeds in both directions. A node that is not free stops it,
// so a colour never passes an operator that must stay on the CN.
NodeSet Topology::Grow(const NodeSet& seeds, const NodeSet& free) const {
  NodeSet colored(size(), false);
  std::vector<NodeId> pending;
  const auto color = [&](NodeId node) {
    if (!free[node] || colored[node]) return;
    colored[node] = true;
    pending.push_back(node);
  };
  for (size_t n = 0; n < size(); ++n) {
    if (seeds[n]) color(static_cast<NodeId>(n));
  }
  while (!pending.empty()) {
    const NodeId node = pending.back();
    pending.pop_back();
    for (const NodeId producer : producers_[node]) color(producer);
    for (const NodeId consumer : consumers_[node]) color(consumer);
  }
  return colored;
}

void ReleaseSharedSizes(const Graph& graph, const Topology& topology,
                        NodeSet& on_hn) {
  // Sizes that depend on no HN nodes except other sizes in this set.
  NodeSet movable(topology.size(), false);
  for (size_t n = 0; n < topology.size(); ++n) {
    if (!on_hn[n] || !IsSize(graph.nodes[n])) continue;
    const std::vector<NodeId>& producers =
        topology.producers(static_cast<NodeId>(n));
    // Producers come first in the order of nodes, so their entries are final.
    movable[n] = std::all_of(
        producers.begin(), producers.end(),
        [&](NodeId producer) { return !on_hn[producer] || movable[producer]; });
  }
  // From the last to the first, so that a size needed only by a released size
  // is released, too.
  for (size_t n = topology.size(); n-- > 0;) {
    if (!movable[n]) continue;
    const std::vector<NodeId>& consumers =
        topology.consumers(static_cast<NodeId>(n));
    const bool shared =
        std::any_of(consumers.begin(), consumers.end(),
                    [&](NodeId consumer) { return !on_hn[consumer]; });
    if (shared) on_hn[n] = false;
  }
}

void MakeConvex(const Topology& topology, const NodeSet& dense,
                NodeSet& on_hn) {
  for (size_t n = 0; n < topology.size(); ++n) {
    if (on_hn[n]) continue;
    // A node of the CN with HN nodes on both sides lies on a path HN → CN → HN:
    // one of the two sides has to leave the HN.
    NodeSet self(topology.size(), false);
    self[n] = true;
    // HN nodes before this node, then after it: two passes over the graph.
    const NodeSet before = Both(topology.WithAncestors(self), on_hn);
    const int num_before = Count(before);
    if (num_before == 0) continue;
    const NodeSet after = Both(topology.WithDescendants(self), on_hn);
    const int num_after = Count(after);
    if (num_after == 0) continue;
    // The side with fewer dense operators leaves; of equal sides the smaller.
    const auto loss_before =
        std::make_tuple(Count(Both(before, dense)), num_before);
    const auto loss_after =
        std::make_tuple(Count(Both(after, dense)), num_after);
    // The whole side leaves, so a removed node keeps no HN node on that side,
    // and no new path arises.
    Remove(loss_after < loss_before ? after : before, on_hn);
  }
}

void KeepSizesNearTheirTensors(const Graph& graph, models::SplitPlan& plan) {
  // Tensors that the HN computes or receives for operators other than sizes.
  NodeSet on_hn_anyway(graph.values.size(), false);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (plan.stages[n] != Stage::kHn) continue;
    for (const ValueId id : graph.nodes[n].outputs) {
      if (id != models::kNoValue) on_hn_anyway[id] = true;
    }
    if (IsSize(graph.nodes[n])) continue;
    for (const ValueId id : models::InputsOf(graph.nodes[n])) {
      on_hn_anyway[id] = true;
    }
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (plan.stages[n] != Stage::kHn || !IsSize(node)) continue;
    // A size moves if it needs a tensor that is not on the HN anyway, and if
    // all its operands are on CN-pre: stages then stay monotone.
    bool wants_foreign_tensor = false;
    bool all_inputs_on_cn = true;
    for (const ValueId id : models::InputsOf(node)) {
      const Value& value = graph.value(id);
      if (value.producer != kNoNode &&
          plan.stages[value.producer] != Stage::kCnPre) {
        all_inputs_on_cn = false;
      }
      if (value.kind == ValueKind::kTensor && !value.is_weight() &&
          !on_hn_anyway[id]) {
        wants_foreign_tensor = true;
      }
    }
    const bool result_may_cross =
        std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
          return id == models::kNoValue || models::MayCross(graph.value(id));
        });
    // A whole tensor would cross for one number: the number crosses instead.
    if (wants_foreign_tensor && all_inputs_on_cn && result_may_cross) {
      plan.stages[n] = Stage::kCnPre;
    }
  }
}

}  // namespace refract::partitioner
