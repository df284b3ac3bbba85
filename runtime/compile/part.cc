// The three parts of a split plan, with inputs and outputs in message order.

#include <set>

#include "models/graph/constants.h"
#include "runtime/program.h"

namespace refract::runtime {
namespace {

using models::Stage;
using models::ValueId;

// Values that CN-post needs and the HN does not compute: they stay on the CN,
// in id order. CN-post computes constants itself.
std::vector<ValueId> KeptOnCn(const models::Graph& graph,
                              const models::SplitPlan& plan) {
  std::set<ValueId> kept;
  const std::vector<bool> constant = models::ConstantNodes(graph);
  const auto add = [&](ValueId id) {
    const models::Value& value = graph.value(id);
    if (value.is_weight()) return;
    if (value.producer == models::kNoNode ||
        (plan.stages[value.producer] == Stage::kCnPre &&
         !constant[value.producer])) {
      kept.insert(id);
    }
  };
  for (models::NodeId node : models::NodesOfPart(graph, plan, Stage::kCnPost)) {
    for (ValueId id : models::InputsOf(graph.nodes[node])) add(id);
  }
  for (ValueId id : graph.outputs) add(id);
  return {kept.begin(), kept.end()};
}

}  // namespace

Part Part::Whole(const models::Graph& graph) {
  Part part;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    part.nodes.push_back(static_cast<models::NodeId>(i));
  }
  part.inputs = graph.inputs;
  part.outputs = graph.outputs;
  return part;
}

Part Part::CnPre(const models::Graph& graph, const models::SplitPlan& plan) {
  Part part;
  part.nodes = models::NodesOfPart(graph, plan, Stage::kCnPre);
  part.inputs = graph.inputs;
  part.outputs = plan.up;
  const std::vector<ValueId> kept = KeptOnCn(graph, plan);
  // Values for the HN first, in message order; then values that stay.
  part.outputs.insert(part.outputs.end(), kept.begin(), kept.end());
  return part;
}

Part Part::Hn(const models::Graph& graph, const models::SplitPlan& plan) {
  Part part;
  part.nodes = models::NodesOfPart(graph, plan, Stage::kHn);
  part.inputs = plan.up;
  part.outputs = plan.down;
  return part;
}

Part Part::CnPost(const models::Graph& graph, const models::SplitPlan& plan) {
  Part part;
  part.nodes = models::NodesOfPart(graph, plan, Stage::kCnPost);
  part.inputs = KeptOnCn(graph, plan);
  part.inputs.insert(part.inputs.end(), plan.down.begin(), plan.down.end());
  part.outputs = graph.outputs;
  return part;
}

}  // namespace refract::runtime
