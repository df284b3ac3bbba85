#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/passes/functionalize.h"
#include "models/graph/op_traits.h"

namespace refract::models {
namespace {

// Follows chains of replacements made by RemoveNoOpCasts.
void ReplaceAll(Graph& graph, const std::vector<ValueId>& by) {
  for (Node& node : graph.nodes) {
    for (ValueId id : InputsOf(node)) {
      if (by[id] != id) ReplaceInput(node, id, by[id]);
    }
  }
  for (ValueId& id : graph.outputs) id = by[id];
}

bool IsCast(absl::string_view op) {
  return absl::StartsWith(op, "aten.type_as.") ||
         absl::StartsWith(op, "aten.to.") ||
         absl::StartsWith(op, "aten._to_copy.");
}

// A batch norm in training mode also moves its running statistics.
bool UpdatesStatistics(const Node& node) {
  if (!MixesRows(node)) return false;
  const Argument* mean = node.FindArg("running_mean");
  return mean != nullptr && std::holds_alternative<ValueRef>(*mean);
}

}  // namespace

void RemoveUnused(Graph& graph) {
  // Backwards from the outputs: nodes are in topological order, so all readers
  // of a value have been seen before its producer. Results of a live node that
  // nobody reads become kNoValue. Operators of a functional graph have no
  // effects.
  std::vector<bool> used(graph.values.size(), false);
  for (ValueId id : graph.outputs) used[id] = true;
  std::vector<Node> kept;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    bool live = false;
    for (ValueId& output : node->outputs) {
      if (output == kNoValue) continue;
      if (used[output]) {
        live = true;
      } else {
        output = kNoValue;
      }
    }
    if (!live) continue;
    for (ValueId id : InputsOf(*node)) used[id] = true;
    kept.push_back(std::move(*node));
  }
  std::reverse(kept.begin(), kept.end());
  // Inputs are part of the signature, read or not.
  for (ValueId id : graph.inputs) used[id] = true;

  // Values keep their order; ids of nodes and values have no gaps afterwards.
  std::vector<ValueId> renumbered(graph.values.size(), kNoValue);
  std::vector<Value> values;
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (!used[id]) continue;
    renumbered[id] = static_cast<ValueId>(values.size());
    values.push_back(std::move(graph.values[id]));
    values.back().producer = kNoNode;
  }
  auto renumber = [&](ValueId& id) {
    if (id != kNoValue) id = renumbered[id];
  };
  for (size_t n = 0; n < kept.size(); ++n) {
    for (NamedArgument& arg : kept[n].args) {
      if (auto* ref = std::get_if<ValueRef>(&arg.value)) {
        renumber(ref->id);
      } else if (auto* list = std::get_if<ValueList>(&arg.value)) {
        for (ValueId& id : *list) renumber(id);
      } else if (auto* ints = std::get_if<IntList>(&arg.value)) {
        for (IntOrValue& item : *ints) renumber(item.value);
      }
    }
    for (ValueId& id : kept[n].outputs) {
      renumber(id);
      if (id != kNoValue) values[id].producer = static_cast<NodeId>(n);
    }
  }
  for (ValueId& id : graph.inputs) renumber(id);
  for (ValueId& id : graph.outputs) renumber(id);
  graph.nodes = std::move(kept);
  graph.values = std::move(values);
}

void RemoveNoOpCasts(Graph& graph) {
  std::vector<ValueId> by(graph.values.size());
  for (size_t id = 0; id < by.size(); ++id) by[id] = static_cast<ValueId>(id);
  for (const Node& node : graph.nodes) {
    if (!IsCast(node.op) || node.outputs.size() != 1 ||
        node.outputs[0] == kNoValue) {
      continue;
    }
    const Argument* self = node.FindArg("self");
    if (self == nullptr || !std::holds_alternative<ValueRef>(*self)) continue;
    const ValueId source = std::get<ValueRef>(*self).id;
    const base::DType dtype = graph.value(source).dtype;
    if (dtype != base::DType::kUnknown &&
        dtype == graph.value(node.outputs[0]).dtype) {
      // `source` comes before the cast, so its own replacement is final.
      by[node.outputs[0]] = by[source];
    }
  }
  ReplaceAll(graph, by);
  RemoveUnused(graph);
}

absl::Status CheckRunnable(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (IsRandom(node)) {
      return absl::InvalidArgumentError(absl::StrCat(
          node.name, " (", node.op,
          ") draws random numbers, so answers would differ from call to call; "
          "call model.eval() before exporting, or remove it"));
    }
    if (UpdatesStatistics(node)) {
      return absl::InvalidArgumentError(
          absl::StrCat(node.name, " (", node.op,
                       ") updates its running statistics on every call; call "
                       "model.eval() before exporting"));
    }
  }
  return absl::OkStatus();
}

}  // namespace refract::models
