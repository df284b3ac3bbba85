// Finds attention written as single operators. The match starts at a softmax,
// or at an element-wise chain between two products, and follows single-reader
// values in both directions: a reader elsewhere would need the scores or
// weights in memory.

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/compile/node_args.h"
#include "runtime/fusion/passes.h"
#include "runtime/fusion/uses.h"

namespace refract::runtime {
namespace {

// A batched product without bias and relu; null otherwise.
const MatMulOp* BareBatchedProduct(const Step& step) {
  const auto* const product =
      step.fused ? std::get_if<MatMulOp>(&*step.fused) : nullptr;
  const bool fits = product != nullptr && product->batched &&
                    product->bias == kNoOperand && !product->relu &&
                    step.outputs[0] != kNoLocal;
  return fits ? product : nullptr;
}

class AttentionPass {
 public:
  AttentionPass(const models::Graph& graph, Plan& plan)
      : graph_(graph),
        plan_(plan),
        uses_(plan),
        dropped_(plan.steps.size(), false) {}

  void Run() {
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      Match(static_cast<int>(i));
    }
    DropSteps(dropped_, plan_);
  }

 private:
  bool IsOverTheLast(const Step& softmax) const {
    const NodeArgs args(graph_.nodes[softmax.nodes[0]]);
    const auto dim = args.IntLiteral("dim");
    const int rank = plan_.locals[softmax.outputs[0]].rank;
    return dim && (*dim == -1 || *dim + 1 == rank);
  }

  // The operand of `chain` that is a product of its own of the scores' shape:
  // the step that computes it, or -1.
  int ScoresOf(int chain) const {
    const Step& step = plan_.steps[chain];
    int found = -1;
    for (int local : step.operands) {
      const int maker = uses_.OwnProducer(local, chain);
      if (maker >= 0 && BareBatchedProduct(plan_.steps[maker]) != nullptr &&
          SameShape(graph_, plan_, local, step.outputs[0])) {
        found = maker;
      }
    }
    return found;
  }

  void Match(int start) {
    const Step& weigh = plan_.steps[start];
    std::vector<int> members = {start};
    if (weigh.outputs.size() != 1 || weigh.outputs[0] == kNoLocal) return;
    const bool softmax = IsKernelOf(weigh, "aten.softmax.int") ||
                         IsKernelOf(weigh, "aten._softmax.default");
    // The chain between scores and softmax, if any, or instead of a softmax.
    int chain = ChainOf(weigh) != nullptr ? start : -1;
    int maker = -1;
    if (softmax) {
      if (!IsOverTheLast(weigh)) return;
      maker = uses_.OwnProducer(weigh.operands[0], start);
      if (maker < 0) return;
      if (ChainOf(plan_.steps[maker]) != nullptr) {
        chain = maker;
        if (plan_.steps[chain].outputs.size() != 1) return;
        members.push_back(chain);
        maker = ScoresOf(chain);
      }
    } else if (chain >= 0) {
      maker = ScoresOf(chain);
    }
    if (maker < 0) return;
    const MatMulOp* const scores = BareBatchedProduct(plan_.steps[maker]);
    if (scores == nullptr) return;
    members.push_back(maker);
    // Dropout that is off is a view of its operand.
    int weights = weigh.outputs[0];
    int last = uses_.OnlyReader(weights);
    while (last >= 0 && plan_.steps[last].view != nullptr &&
           plan_.steps[last].op == "aten.dropout.default" &&
           plan_.steps[last].outputs[0] != kNoLocal) {
      members.push_back(last);
      weights = plan_.steps[last].outputs[0];
      last = uses_.OnlyReader(weights);
    }
    if (last < 0) return;
    Step& step = plan_.steps[last];
    const MatMulOp* const values = BareBatchedProduct(step);
    // The weights must be the left operand, and only that.
    if (values == nullptr || step.operands[values->a] != weights ||
        step.operands[values->b] == weights) {
      return;
    }
    AttentionOp op;
    std::vector<int> operands = plan_.steps[maker].operands;
    op.scores = *scores;
    op.softmax = softmax;
    if (chain >= 0) {
      op.chain = ChainAfter(plan_.steps[chain], plan_.steps[maker].outputs[0],
                            operands, op.given);
    }
    op.values = *values;
    op.values.a = kNoOperand;
    op.values.b = static_cast<int>(operands.size());
    operands.push_back(step.operands[values->b]);
    for (int member : members) {
      TakeNodes(plan_.steps[member], step);
      dropped_[member] = true;
    }
    step.operands = std::move(operands);
    step.fused = std::move(op);
  }

  const models::Graph& graph_;
  Plan& plan_;
  const Uses uses_;
  std::vector<bool> dropped_;
};

}  // namespace

void FuseAttention(const models::Graph& graph, Plan& plan) {
  AttentionPass(graph, plan).Run();
}

}  // namespace refract::runtime
