// Fuses a product with constant weights with its neighbours, in four passes:
// columns become rows, chains read the inputs of expansions, products absorb
// cats, products absorb the following chain. Each pass builds its own Uses,
// because the pass before changed readers.

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

const models::Value* ValueOf(const Graph& graph, const Plan& plan, int local) {
  const models::ValueId id = plan.locals[local].id;
  if (id == models::kNoValue || !graph.value(id).has_shape) return nullptr;
  return &graph.value(id);
}

bool IsExpansion(const Step& step) {
  return IsKernelOf(step, "aten.expand.default") ||
         IsKernelOf(step, "aten.expand_as.default");
}

// A product for DenseOp: the right operand is one constant matrix; null
// otherwise.
const MatMulOp* ConstantProduct(const Plan& plan, const Step& step) {
  if (!step.fused || step.outputs[0] == kNoLocal) return nullptr;
  const MatMulOp* const product = ProductOf(*step.fused);
  if (product == nullptr || product->batched) return nullptr;
  const int b = step.operands[product->b];
  const bool constant = plan.locals[b].is_constant &&
                        plan.constants[b].kind == Operand::Kind::kTensor;
  return constant ? product : nullptr;
}

class DensePass {
 public:
  DensePass(const Graph& graph, Plan& plan)
      : graph_(graph),
        plan_(plan),
        uses_(plan),
        dropped_(plan.steps.size(), false),
        absorber_(plan.steps.size(), -1) {}

  void TurnColumns() {
    for (Step& step : plan_.steps) TurnColumn(step);
  }
  void ReadBeforeExpansions() {
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      ReadBeforeExpansions(static_cast<int>(i));
    }
    Finish();
  }
  void JoinColumns() {
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      JoinColumns(static_cast<int>(i));
    }
    Finish();
  }
  void GoOnAfterProducts() {
    // From the back: when one chain reads two products, the later product's
    // operands are all available at the chain.
    for (size_t i = plan_.steps.size(); i-- > 0;) {
      GoOnAfterProduct(static_cast<int>(i));
    }
    Finish();
  }

 private:
  // The input of the expansion that computes `local`; `local` itself if it is
  // not expanded.
  int BeforeExpansion(int local) const {
    const int step = uses_.producer(local);
    if (step < 0 || !IsExpansion(plan_.steps[step])) return local;
    const int from = plan_.steps[step].operands[0];
    return plan_.locals[from].rank <= plan_.locals[local].rank ? from : local;
  }

  // Chains broadcast their inputs, so a chain may read the input of an
  // expansion if another operand has the full shape.
  void ReadBeforeExpansions(int index) {
    Step& step = plan_.steps[index];
    ElementChainOp* const chain =
        step.fused ? std::get_if<ElementChainOp>(&*step.fused) : nullptr;
    if (chain == nullptr || step.outputs[0] == kNoLocal) return;
    int like = -1;
    for (size_t i = 0; i < step.operands.size() && like < 0; ++i) {
      const int local = step.operands[i];
      if (BeforeExpansion(local) == local &&
          SameShape(graph_, plan_, local, step.outputs[0])) {
        like = static_cast<int>(i);
      }
    }
    // Without an operand of the full shape the chain would have the smaller
    // shape of the expansion's input.
    if (like < 0) return;
    for (int& local : step.operands) {
      const int before = BeforeExpansion(local);
      if (before == local) continue;
      absorber_[uses_.producer(local)] = index;
      local = before;
      chain->like = like;
    }
  }

  // Turns a constant matrix times columns, [n, k] × […, k, 1], into the
  // equivalent product of rows.
  void TurnColumn(Step& step) {
    if (!IsKernelOf(step, "aten.matmul.default") ||
        step.outputs[0] == kNoLocal) {
      return;
    }
    const NodeArgs args(graph_.nodes[step.nodes[0]]);
    DenseOp op;
    op.product.a = args.OperandOf("other");
    op.product.b = args.OperandOf("self");
    op.product.b_transposed = true;
    op.column = true;
    const int matrix = step.operands[op.product.b];
    const models::Value* const columns =
        ValueOf(graph_, plan_, step.operands[op.product.a]);
    if (plan_.locals[matrix].is_constant && plan_.locals[matrix].rank == 2 &&
        plan_.constants[matrix].kind == Operand::Kind::kTensor &&
        columns != nullptr && columns->shape.size() > 2 &&
        columns->shape.back().constant() == 1) {
      step.fused = std::move(op);
    }
  }

  // Whether the graph shows the same size of the last dimension.
  bool SameWidth(int a, int b) const {
    const models::Value* const x = ValueOf(graph_, plan_, a);
    const models::Value* const y = ValueOf(graph_, plan_, b);
    return x != nullptr && y != nullptr && !x->shape.empty() &&
           !y->shape.empty() && x->shape.back() == y->shape.back();
  }

  // cat along the last dimension → product.
  void JoinColumns(int index) {
    Step& step = plan_.steps[index];
    const MatMulOp* const product = ConstantProduct(plan_, step);
    if (product == nullptr || std::holds_alternative<DenseOp>(*step.fused)) {
      return;
    }
    const int left = step.operands[product->a];
    const int cat = uses_.producer(left);
    if (cat < 0 || uses_.OnlyReader(left) != index ||
        !IsKernelOf(plan_.steps[cat], "aten.cat.default")) {
      return;
    }
    const Step& joined = plan_.steps[cat];
    const NodeArgs args(graph_.nodes[joined.nodes[0]]);
    const auto dim =
        args.Has("dim") ? args.IntLiteral("dim") : std::optional<int64_t>(0);
    const int rank = plan_.locals[left].rank;
    if (!dim || rank < 2 || (*dim != -1 && *dim != rank - 1) ||
        joined.operands.size() < 2 ||
        joined.operands.size() > kMaxDensePieces) {
      return;
    }
    DenseOp op;
    std::vector<int> operands;
    bool keeps_rows = false;
    int num_chains = 0;
    std::vector<int> inside;  // steps merged into this one
    for (int local : joined.operands) {
      DenseColumns& piece = op.pieces.emplace_back();
      const int maker = uses_.producer(local);
      const int before = BeforeExpansion(local);
      if (before != local && SameWidth(before, local)) {
        piece.operand = static_cast<int>(operands.size());
        piece.expands = true;
        operands.push_back(before);
        expanded_.emplace_back(maker, index);
        continue;
      }
      keeps_rows = true;
      const ElementChainOp* const chain =
          maker < 0 ? nullptr : ChainOf(plan_.steps[maker]);
      if (chain != nullptr && chain->outputs.size() == 1 &&
          !chain->outputs[0].is_bool && num_chains < kMaxDenseChains &&
          uses_.OnlyReader(local) == cat &&
          std::count(joined.operands.begin(), joined.operands.end(), local) ==
              1) {
        ++num_chains;
        piece.chain = Moved(*chain, static_cast<int>(operands.size()));
        const std::vector<int>& own = plan_.steps[maker].operands;
        operands.insert(operands.end(), own.begin(), own.end());
        inside.push_back(maker);
        continue;
      }
      piece.operand = static_cast<int>(operands.size());
      operands.push_back(local);
    }
    // If all pieces are expanded, no operand has the number of rows.
    if (!keeps_rows) {
      expanded_.clear();
      return;
    }
    for (const auto& [from, into] : expanded_) absorber_[from] = into;
    expanded_.clear();
    inside.push_back(cat);
    op.product = *product;
    op.product.a = kNoOperand;
    TakeOperands(step, operands, op.product);
    for (int member : inside) {
      TakeNodes(plan_.steps[member], step);
      dropped_[member] = true;
    }
    step.operands = std::move(operands);
    step.fused = std::move(op);
  }

  // product → chain of its shape that is its only reader.
  void GoOnAfterProduct(int index) {
    Step& step = plan_.steps[index];
    const MatMulOp* const product = ConstantProduct(plan_, step);
    if (product == nullptr || step.outputs.size() != 1) return;
    const int result = step.outputs[0];
    const int reader = uses_.OnlyReader(result);
    if (reader < 0) return;
    Step& last = plan_.steps[reader];
    const ElementChainOp* const chain = ChainOf(last);
    if (chain == nullptr || last.outputs[0] == kNoLocal ||
        !SameShape(graph_, plan_, result, last.outputs[0])) {
      return;
    }
    DenseOp op;
    if (const auto* dense = std::get_if<DenseOp>(&*step.fused)) {
      if (dense->after) return;
      op = *dense;
    } else {
      op.product = *product;
    }
    // The product's operands come first, so that their indexes stay.
    std::vector<int> operands = step.operands;
    op.after = ChainAfter(last, result, operands, op.given);
    TakeNodes(step, last);
    dropped_[index] = true;
    last.operands = std::move(operands);
    last.fused = std::move(op);
  }

  // `chain` with operands that begin at `first`.
  static ElementChainOp Moved(ElementChainOp chain, int first) {
    for (ElementInput& input : chain.inputs) {
      if (input.operand != kNoOperand) input.operand += first;
    }
    if (chain.like != kNoOperand) chain.like += first;
    return chain;
  }

  // Appends the operands of `step`'s product except its left operand.
  static void TakeOperands(const Step& step, std::vector<int>& operands,
                           MatMulOp& product) {
    for (int* operand : {&product.b, &product.bias}) {
      if (*operand == kNoOperand) continue;
      operands.push_back(step.operands[*operand]);
      *operand = static_cast<int>(operands.size()) - 1;
    }
  }

  // Removes merged steps, and expansions without remaining readers.
  void Finish() {
    std::vector<bool> read(plan_.locals.size(), false);
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      if (dropped_[i]) continue;
      for (int local : plan_.steps[i].operands) read[local] = true;
    }
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      if (absorber_[i] < 0) continue;
      const int local = plan_.steps[i].outputs[0];
      if (read[local] || uses_.is_output(local)) continue;
      TakeNodes(plan_.steps[i], plan_.steps[absorber_[i]]);
      dropped_[i] = true;
    }
    DropSteps(dropped_, plan_);
  }

  const Graph& graph_;
  Plan& plan_;
  const Uses uses_;
  std::vector<bool> dropped_;
  // Per expansion: a step that reads its input instead; -1: none.
  std::vector<int> absorber_;
  std::vector<std::pair<int, int>> expanded_;
};

}  // namespace

void FuseDense(const Graph& graph, Plan& plan) {
  DensePass(graph, plan).TurnColumns();
  DensePass(graph, plan).ReadBeforeExpansions();
  DensePass(graph, plan).JoinColumns();
  DensePass(graph, plan).GoOnAfterProducts();
}

}  // namespace refract::runtime
