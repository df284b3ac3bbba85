#include "models/graph/constants.h"

#include <algorithm>

#include "models/graph/op_traits.h"

namespace refract::models {

std::vector<bool> ConstantNodes(const Graph& graph) {
  std::vector<bool> constant(graph.nodes.size(), false);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const std::vector<ValueId> inputs = InputsOf(node);
    // A node without operands is constant as well: arange(10), zeros(4).
    constant[n] =
        MayRunOnHn(ClassOf(graph, node)) && !IsRandom(node) &&
        std::all_of(inputs.begin(), inputs.end(), [&](ValueId id) {
          const Value& value = graph.value(id);
          if (value.is_weight()) return true;
          return value.producer != kNoNode && constant[value.producer];
        });
  }
  return constant;
}

std::vector<NodeId> NodesOfPart(const Graph& graph, const SplitPlan& plan,
                                Stage stage) {
  const std::vector<bool> constant = ConstantNodes(graph);
  std::vector<bool> wanted(graph.nodes.size(), false);
  // A constant is computed in each part that reads it, never sent.
  const auto want_maker = [&](ValueId id) {
    const NodeId maker = graph.value(id).producer;
    if (maker != kNoNode && constant[maker]) wanted[maker] = true;
  };
  // The CPU node returns the answer, constants in it included.
  if (stage == Stage::kCnPost) {
    for (const ValueId id : graph.outputs) want_maker(id);
  }
  // From the last node backwards: readers come after producers.
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    if (!constant[n]) wanted[n] = plan.stages[n] == stage;
    if (!wanted[n]) continue;
    for (const ValueId id : InputsOf(graph.nodes[n])) want_maker(id);
  }
  std::vector<NodeId> nodes;
  for (size_t n = 0; n < wanted.size(); ++n) {
    if (wanted[n]) nodes.push_back(static_cast<NodeId>(n));
  }
  return nodes;
}

std::vector<std::vector<NodeId>> ReadersOfWeights(const Graph& graph) {
  const std::vector<bool> constant = ConstantNodes(graph);
  // Per value: the weights of which it is made as a constant, or itself.
  std::vector<std::vector<ValueId>> behind(graph.values.size());
  std::vector<std::vector<NodeId>> readers(graph.values.size());
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (graph.values[id].is_weight()) {
      behind[id] = {static_cast<ValueId>(id)};
    }
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    std::vector<ValueId> weights;
    for (const ValueId id : InputsOf(graph.nodes[n])) {
      weights.insert(weights.end(), behind[id].begin(), behind[id].end());
    }
    std::sort(weights.begin(), weights.end());
    weights.erase(std::unique(weights.begin(), weights.end()), weights.end());
    if (constant[n]) {
      for (const ValueId id : graph.nodes[n].outputs) {
        if (id != kNoValue) behind[id] = weights;
      }
    } else {
      for (const ValueId id : weights) {
        readers[id].push_back(static_cast<NodeId>(n));
      }
    }
  }
  return readers;
}

}  // namespace refract::models
