// Matches DLRM's dot interaction backwards from its last step: index_select ←
// flatten ← bmm ← transpose ← stack.

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/compile/node_args.h"
#include "runtime/fusion/passes.h"
#include "runtime/fusion/uses.h"

namespace refract::runtime {
namespace {

using models::Graph;

// Whether `step` is a transpose or permute that swaps the last two of at least
// two dimensions.
bool SwapsLastTwo(const Graph& graph, const Plan& plan, const Step& step) {
  if (step.kernel == nullptr || step.fused || step.operands.empty()) {
    return false;
  }
  const models::Node& node = graph.nodes[step.nodes[0]];
  const NodeArgs args(node);
  const int rank = plan.locals[step.operands[0]].rank;
  if (rank < 2) return false;
  if (node.op == "aten.transpose.int") {
    auto a = args.IntLiteral("dim0");
    auto b = args.IntLiteral("dim1");
    if (!a || !b) return false;
    if (*a < 0) *a += rank;
    if (*b < 0) *b += rank;
    return std::min(*a, *b) == rank - 2 && std::max(*a, *b) == rank - 1;
  }
  if (node.op != "aten.permute.default") return false;
  const auto dims = args.Ints("dims");
  if (!dims || dims->size() != static_cast<size_t>(rank)) return false;
  for (int d = 0; d < rank; ++d) {
    if (!(*dims)[d].is_literal()) return false;
    int64_t from = (*dims)[d].literal;
    if (from < 0) from += rank;
    // All dimensions but the last two stay in place.
    const int wanted = d + 2 < rank ? d : (d + 1 == rank ? rank - 2 : rank - 1);
    if (from != wanted) return false;
  }
  return true;
}

class InteractionMatcher {
 public:
  InteractionMatcher(const Graph& graph, Plan& plan)
      : graph_(graph), plan_(plan), uses_(plan) {}

  std::vector<bool> Run() {
    std::vector<bool> dropped(plan_.steps.size(), false);
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      Match(static_cast<int>(i), dropped);
    }
    return dropped;
  }

 private:
  // Matches from `last`, which selects columns of flattened products.
  void Match(int last, std::vector<bool>& dropped) {
    const Step& select = plan_.steps[last];
    // select may stand for several equal nodes.
    if (select.op != "aten.index_select.default" || select.fused ||
        select.outputs[0] == kNoLocal) {
      return;
    }
    const NodeArgs args(graph_.nodes[select.nodes[0]]);
    const int self = args.OperandOf("self");
    const int index = args.OperandOf("index");
    if (self == kNoOperand || index == kNoOperand) return;
    if (plan_.locals[select.operands[self]].rank != 2) return;
    const auto dim = args.IntLiteral("dim");
    if (!dim || (*dim != 1 && *dim != -1)) return;
    auto places = ConstantInts(plan_, select.operands[index]);
    if (!places) return;

    const int flatten = uses_.OwnProducer(select.operands[self], last);
    if (flatten < 0 || plan_.steps[flatten].view == nullptr) return;
    const int bmm =
        uses_.OwnProducer(plan_.steps[flatten].operands[0], flatten);
    if (bmm < 0 || !plan_.steps[bmm].fused) return;
    const auto* matmul = std::get_if<MatMulOp>(&*plan_.steps[bmm].fused);
    if (matmul == nullptr || !matmul->batched || matmul->b_transposed ||
        matmul->relu || matmul->bias != kNoOperand) {
      return;
    }
    const int vectors = plan_.steps[bmm].operands[matmul->a];
    const int turned = plan_.steps[bmm].operands[matmul->b];
    const int turn = uses_.OwnProducer(turned, bmm);
    if (turn < 0 || !SwapsLastTwo(graph_, plan_, plan_.steps[turn]) ||
        plan_.steps[turn].operands[0] != vectors) {
      return;
    }
    // Only the transpose and the bmm may read the stack.
    const int stack = uses_.producer(vectors);
    if (stack < 0 || plan_.steps[stack].op != "aten.stack.default" ||
        plan_.steps[stack].kernel == nullptr || uses_.is_output(vectors) ||
        uses_.readers(vectors) != std::vector<int>{turn, bmm}) {
      return;
    }
    const NodeArgs stack_args(graph_.nodes[plan_.steps[stack].nodes[0]]);
    const auto stack_dim = stack_args.Has("dim") ? stack_args.IntLiteral("dim")
                                                 : std::optional<int64_t>(0);
    if (!stack_dim || (*stack_dim != 1 && *stack_dim != -2)) return;
    const std::vector<int> features = plan_.steps[stack].operands;
    for (int local : features) {
      if (plan_.locals[local].dtype != base::DType::kFloat32 ||
          plan_.locals[local].rank != 2) {
        return;
      }
    }
    const auto count = static_cast<int64_t>(features.size());
    for (int64_t place : *places) {
      // Out of range: the unfused operators report it.
      if (place < 0 || place >= count * count) return;
    }
    // The view must be the flattened products and nothing else.
    const models::Value& flat =
        graph_.value(plan_.locals[select.operands[self]].id);
    if (!flat.has_shape || flat.shape[1].constant() != count * count) return;

    InteractionOp op;
    for (int64_t f = 0; f < count; ++f) {
      op.features.push_back(static_cast<int>(f));
    }
    op.places = *std::move(places);
    Step& step = plan_.steps[last];
    for (int member : {stack, turn, bmm, flatten}) {
      TakeNodes(plan_.steps[member], step);
      dropped[member] = true;
    }
    step.operands = features;
    step.caller = nullptr;
    step.guard.reset();
    step.fused = std::move(op);
  }

  const Graph& graph_;
  Plan& plan_;
  const Uses uses_;
};

}  // namespace

void FuseInteractions(const Graph& graph, Plan& plan) {
  DropSteps(InteractionMatcher(graph, plan).Run(), plan);
}

void FuseTransposes(const Graph& graph, Plan& plan) {
  const Uses uses(plan);
  std::vector<bool> dropped(plan.steps.size(), false);
  // The product of `reader` if it reads `turned` as its right operand only;
  // null otherwise.
  const auto product_of = [&](int reader, int turned) -> MatMulOp* {
    Step& step = plan.steps[reader];
    auto* const matmul =
        step.fused ? std::get_if<MatMulOp>(&*step.fused) : nullptr;
    const bool fits =
        matmul != nullptr && !matmul->b_transposed &&
        step.operands[matmul->b] == turned &&
        step.operands[matmul->a] != turned &&
        (matmul->bias == kNoOperand || step.operands[matmul->bias] != turned);
    return fits ? matmul : nullptr;
  };
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& turn = plan.steps[i];
    if (!SwapsLastTwo(graph, plan, turn) || turn.outputs[0] == kNoLocal) {
      continue;
    }
    const int turned = turn.outputs[0];
    const std::vector<int>& readers = uses.readers(turned);
    if (uses.is_output(turned) || readers.empty() ||
        !std::all_of(readers.begin(), readers.end(), [&](int reader) {
          return product_of(reader, turned) != nullptr;
        })) {
      continue;
    }
    // With several readers, the last reader takes over the transpose's nodes.
    for (const int reader : readers) {
      MatMulOp* const matmul = product_of(reader, turned);
      matmul->b_transposed = true;
      plan.steps[reader].operands[matmul->b] = turn.operands[0];
    }
    TakeNodes(turn, plan.steps[readers.back()]);
    dropped[i] = true;
  }
  DropSteps(dropped, plan);
}

}  // namespace refract::runtime
