// Element-wise chain → sum that is its only reader, as one step that never
// stores the chain's results.

#include <utility>
#include <vector>

#include "runtime/compile/node_args.h"
#include "runtime/fusion/passes.h"
#include "runtime/fusion/sum_dims.h"
#include "runtime/fusion/uses.h"

namespace refract::runtime {

void FuseSums(const models::Graph& graph, Plan& plan) {
  const Uses uses(plan);
  std::vector<bool> dropped(plan.steps.size(), false);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    Step& step = plan.steps[i];
    if (step.kernel == nullptr || step.fused || step.operands.size() != 1 ||
        step.outputs[0] == kNoLocal) {
      continue;
    }
    const int summed = step.operands[0];
    const int maker = uses.producer(summed);
    if (maker < 0 || uses.OnlyReader(summed) != static_cast<int>(i)) {
      continue;
    }
    Step& from = plan.steps[maker];
    const ElementChainOp* const chain = ChainOf(from);
    // Another reader of the chain would need its results in memory.
    if (chain == nullptr || chain->outputs.size() != 1 ||
        chain->outputs[0].is_bool) {
      continue;
    }
    const models::Node& node = graph.nodes[step.nodes[0]];
    const auto dims = SumDimsOf(
        NodeArgs(node), graph.value(models::InputsOf(node).front()).shape);
    if (!dims.ok() || !*dims) continue;
    ChainSumOp op = {*chain, **dims};
    TakeNodes(from, step);
    dropped[maker] = true;
    step.operands = from.operands;
    step.fused = std::move(op);
  }
  DropSteps(dropped, plan);
}

}  // namespace refract::runtime
