#include "models/torch_export/recorded_shapes.h"

#include <algorithm>
#include <vector>

namespace refract::models::torch_export {
namespace {

// The rank of the states: the rank of the input of aten.lstm.input; 3 for
// packed sequences (aten.lstm.data).
size_t StateRank(const Graph& graph, const Node& node) {
  if (node.op == "aten.lstm.data") return 3;
  const Argument* input = node.FindArg("input");
  if (input == nullptr || !std::holds_alternative<ValueRef>(*input)) return 0;
  return graph.value(std::get<ValueRef>(*input).id).shape.size();
}

}  // namespace

void CorrectRecordedShapes(Graph& graph) {
  std::vector<bool> doubtful(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    const std::vector<ValueId> reads = InputsOf(node);
    if (std::any_of(reads.begin(), reads.end(),
                    [&](ValueId id) { return doubtful[id]; })) {
      for (ValueId id : node.outputs) {
        if (id == kNoValue) continue;
        doubtful[id] = true;
        Value& value = graph.values[id];
        value.has_shape = false;
        value.shape.clear();
        value.sym_value = SymExpr();
      }
      continue;
    }
    if (node.op != "aten.lstm.input" && node.op != "aten.lstm.data") continue;
    const size_t rank = StateRank(graph, node);
    for (size_t i = 1; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      if (id == kNoValue) continue;
      std::vector<SymExpr>& shape = graph.values[id].shape;
      // A record without the fault stays.
      if (rank < 2 || shape.size() != rank + 1 || shape[1].constant() != 1) {
        continue;
      }
      shape.erase(shape.begin() + 1);
      doubtful[id] = true;
    }
  }
}

}  // namespace refract::models::torch_export
