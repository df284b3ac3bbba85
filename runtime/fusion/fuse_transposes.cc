// Products read their right operand as it lies in memory, transposed or not.

#include <algorithm>
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

}  // namespace

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
