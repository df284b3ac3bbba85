// Selected pairs of the products between an item's vectors: DLRM's dot
// interaction, in all forms. Matched backwards from the selection.

#include <numeric>
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

// Whether `places` are those of a count × count matrix that are below the
// diagonal, row by row, with or without the diagonal's.
bool IsLowerTriangle(const std::vector<int64_t>& places, int64_t count) {
  const bool diagonal = !places.empty() && places.front() == 0;
  size_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < i + (diagonal ? 1 : 0); ++j) {
      if (next == places.size() || places[next++] != i * count + j) {
        return false;
      }
    }
  }
  return next == places.size();
}

class PairMatcher {
 public:
  PairMatcher(const Graph& graph, Plan& plan, Target target)
      : graph_(graph),
        plan_(plan),
        target_(target),
        uses_(plan),
        dropped_(plan.steps.size(), false) {}

  void Run() {
    for (size_t i = 0; i < plan_.steps.size(); ++i) Match(static_cast<int>(i));
    DropSteps(dropped_, plan_);
  }

 private:
  // The selection of a step: columns of flattened products, or rows and
  // columns.
  struct Choice {
    int products;         // local
    std::vector<int> at;  // locals: places, or rows and columns
    bool wraps;           // whether negative indexes count from the end
  };

  std::optional<Choice> ChoiceOf(const Step& step) const {
    if (step.fused || step.outputs[0] == kNoLocal) {
      return std::nullopt;
    }
    const NodeArgs args(graph_.nodes[step.nodes[0]]);
    const int self = args.OperandOf("self");
    if (self == kNoOperand) return std::nullopt;
    const int rank = plan_.locals[step.operands[self]].rank;
    if (step.op == "aten.index_select.default") {
      const auto dim = args.IntLiteral("dim");
      const int index = args.OperandOf("index");
      if (rank != 2 || index == kNoOperand || (dim != 1 && dim != -1)) {
        return std::nullopt;
      }
      return Choice{step.operands[self], {step.operands[index]}, false};
    }
    if (step.op != "aten.index.Tensor") return std::nullopt;
    const auto indices = args.OperandsOf("indices");
    if (!indices || rank < 2 || static_cast<int>(indices->size()) != rank ||
        indices->front() != kNoOperand || rank > 3) {
      return std::nullopt;
    }
    Choice choice = {step.operands[self], {}, true};
    for (size_t i = 1; i < indices->size(); ++i) {
      if ((*indices)[i] == kNoOperand) return std::nullopt;
      choice.at.push_back(step.operands[(*indices)[i]]);
    }
    return choice;
  }

  // The selected indexes among `count` × `count` products; nullopt if a request
  // brings them, or they are out of range or broadcast.
  std::optional<std::vector<int64_t>> PlacesOf(const Choice& choice,
                                               int64_t count) const {
    std::vector<int64_t> places;
    const int64_t limit = choice.at.size() == 1 ? count * count : count;
    for (int local : choice.at) {
      const auto values = ConstantInts(plan_, local);
      const bool first = local == choice.at.front();
      if (!values || (!first && values->size() != places.size())) {
        return std::nullopt;
      }
      places.resize(values->size(), 0);
      for (size_t i = 0; i < values->size(); ++i) {
        int64_t value = (*values)[i];
        if (value < 0 && choice.wraps) value += limit;
        if (value < 0 || value >= limit) return std::nullopt;
        // Rows and columns combine to one row-major index.
        places[i] = places[i] * count + value;
      }
    }
    return places;
  }

  // Walks back from the selection `last`: [flatten ←] bmm of vectors with their
  // own transpose ← [view ←] cat or stack. Every result between must have no
  // other reader, because the fused step does not store it.
  void Match(int last) {
    Step& step = plan_.steps[last];
    const auto choice = ChoiceOf(step);
    if (!choice) return;
    std::vector<int> members;
    int products = choice->products;
    int reader = last;
    // Flattened products are selected by columns: the flatten goes, too.
    if (plan_.locals[products].rank == 2) {
      const int flatten = uses_.OwnProducer(products, last);
      if (flatten < 0 || plan_.steps[flatten].view == nullptr) return;
      members.push_back(flatten);
      products = plan_.steps[flatten].operands[0];
      reader = flatten;
    }
    if (plan_.locals[products].rank != 3) return;
    const int bmm = uses_.OwnProducer(products, reader);
    if (bmm < 0 || !plan_.steps[bmm].fused) return;
    const auto* matmul = std::get_if<MatMulOp>(&*plan_.steps[bmm].fused);
    if (matmul == nullptr || !matmul->batched || !matmul->b_transposed ||
        matmul->relu || matmul->bias != kNoOperand) {
      return;
    }
    const int vectors = plan_.steps[bmm].operands[matmul->a];
    if (plan_.steps[bmm].operands[matmul->b] != vectors) return;
    const auto count = SizeAt(vectors, 1);
    if (!count || *count < 1) return;
    if (reader != last && SizeAt(choice->products, 1) != *count * *count) {
      return;  // another view
    }
    auto places = PlacesOf(*choice, *count);
    if (!places) return;
    members.push_back(bmm);

    InteractionOp op;
    std::vector<int> operands;
    const bool joined = TakeParts(vectors, bmm, *count, op, operands, members);
    // The form of the CUDA runtime's kernel; see InteractionOp.
    if (target_ != Target::kCpu &&
        (!joined || step.op != "aten.index_select.default" ||
         plan_.steps[members.back()].op != "aten.stack.default" || *count < 2 ||
         *count > 2048 || !IsLowerTriangle(*places, *count))) {
      return;
    }
    if (!joined) {
      op.vectors = {*count};
      operands = {vectors};
    }
    op.places = *std::move(places);
    for (int member : members) {
      TakeNodes(plan_.steps[member], step);
      dropped_[member] = true;
    }
    // The selection becomes the fused step: it has the last place in the order
    // and keeps its output's local.
    step.operands = std::move(operands);
    step.caller = nullptr;
    step.guard.reset();
    step.fused = std::move(op);
  }

  // Size of a dimension if the graph shows it as a constant; nullopt otherwise.
  std::optional<int64_t> SizeAt(int local, size_t d) const {
    const models::ValueId id = plan_.locals[local].id;
    if (id == models::kNoValue) return std::nullopt;
    const models::Value& value = graph_.value(id);
    if (!value.has_shape || d >= value.shape.size()) return std::nullopt;
    return value.shape[d].constant();
  }

  // If `vectors` are joined for `bmm` alone, takes the joined parts as features
  // instead. False: not joined, or read elsewhere.
  bool TakeParts(int vectors, int bmm, int64_t count, InteractionOp& op,
                 std::vector<int>& operands, std::vector<int>& members) const {
    int maker = uses_.OwnProducer(vectors, bmm);
    std::vector<int> taken;
    std::vector<int64_t> parts;
    // cat of flat vectors → view
    if (maker >= 0 && plan_.steps[maker].view != nullptr) {
      const int flat = plan_.steps[maker].operands[0];
      if (plan_.locals[flat].rank != 2) return false;
      taken.push_back(maker);
      maker = uses_.OwnProducer(flat, maker);
    }
    if (maker < 0) return false;
    const Step& join = plan_.steps[maker];
    const bool stack = IsKernelOf(join, "aten.stack.default");
    if (!stack && !IsKernelOf(join, "aten.cat.default")) return false;
    const int rank = plan_.locals[join.outputs[0]].rank;
    const NodeArgs args(graph_.nodes[join.nodes[0]]);
    const auto dim =
        args.Has("dim") ? args.IntLiteral("dim") : std::optional<int64_t>(0);
    if (!dim || (*dim != 1 && *dim + rank != 1) || (stack && rank != 3)) {
      return false;
    }
    taken.push_back(maker);
    // Flat vectors are counted by their width.
    const int64_t unit = rank == 3 ? 1 : SizeAt(vectors, 2).value_or(0);
    for (int local : join.operands) {
      const auto size = stack ? std::optional<int64_t>(1) : SizeAt(local, 1);
      if (!size || *size == 0 || unit == 0 || *size % unit != 0 ||
          plan_.locals[local].dtype != base::DType::kFloat32) {
        return false;
      }
      parts.push_back(*size / unit);
    }
    if (std::accumulate(parts.begin(), parts.end(), int64_t{0}) != count) {
      return false;  // another view
    }
    op.vectors = std::move(parts);
    operands = join.operands;
    members.insert(members.end(), taken.begin(), taken.end());
    return true;
  }

  const Graph& graph_;
  Plan& plan_;
  const Target target_;
  const Uses uses_;
  std::vector<bool> dropped_;
};

}  // namespace

void FusePairs(const Graph& graph, Plan& plan, Target target) {
  PairMatcher(graph, plan, target).Run();
}

}  // namespace refract::runtime
