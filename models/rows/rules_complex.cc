// Operators of complex numbers, which are pairs in a last dimension.

#include <algorithm>
#include <optional>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "models/passes/complex_numbers.h"
#include "models/rows/flow.h"

namespace refract::models::rows {
namespace {

const BoolList* Flags(const NodeView& view, absl::string_view name) {
  const Argument* arg = view.node.FindArg(name);
  return arg == nullptr ? nullptr : std::get_if<BoolList>(arg);
}

// Every entry of the result is one of an operand's.
bool KeepsPlaces(absl::string_view name) {
  static const auto& names = *new absl::flat_hash_set<absl::string_view>{
      "abs",          "angle",           "real",          "imag",
      "conj",         "_conj",           "conj_physical", "_conj_physical",
      "resolve_conj", "resolve_neg",     "clone",         "contiguous",
      "detach",       "alias",           "neg",           "exp",
      "sgn",          "view_as_complex", "view_as_real",  "to",
      "_to_copy",     "_neg_view",
  };
  return names.contains(name);
}

bool IsPointwise(absl::string_view name) {
  return name == "add" || name == "sub" || name == "mul" || name == "div" ||
         name == "complex" || name == "polar" || name == "where";
}

// Pointwise: all operands are pairs, or none is; an operand that is no pair
// applies to both parts.
Flow Pointwise(const NodeView& view) {
  const std::vector<ValueId> inputs = view.inputs();
  const BoolList* complex = Flags(view, kComplexOperandsArg);
  if (complex == nullptr || complex->size() != inputs.size()) {
    return Flow::Unproven();
  }
  const bool pairs = std::count(complex->begin(), complex->end(), true) > 0;
  std::vector<Operand> operands;
  int rank = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Operand operand = {view.FlowOf(inputs[i]), view.Rank(inputs[i]),
                       view.ShapeOf(inputs[i])};
    if (operand.rank < 0) return Flow::Unproven();
    if (pairs && !(*complex)[i]) {
      // A real operand applies to both numbers of each pair.
      ++operand.rank;
      if (operand.shape) operand.shape->push_back(1);
    }
    rank = std::max(rank, operand.rank);
    operands.push_back(std::move(operand));
  }
  return Broadcast(operands, rank);
}

// Transforms along other dimensions than the rows'.
Flow Transform(const NodeView& view) {
  const ValueId self = view.Ref("self");
  const Flow flow = view.FlowOf(self);
  const BoolList* complex = Flags(view, kComplexOperandsArg);
  if (!flow.rows() || complex == nullptr || complex->empty()) {
    return flow.shared() ? flow : Flow::Unproven();
  }
  // Dimensions are those of the complex tensor, without the pairs'.
  const int rank = view.Rank(self) - ((*complex)[0] ? 1 : 0);
  if (rank <= 0) return Flow::Unproven();
  std::optional<std::vector<int>> dims = view.Dims("dim", rank);
  if (!dims && view.node.FindArg("dim") == nullptr) {
    // The default: the last dimension, or the last two; of a shift all.
    if (absl::EndsWith(view.name, "shift")) return Flow::Mixed();
    dims = std::vector<int>{rank - 1};
    if (absl::EndsWith(view.name, "2")) dims->push_back(rank - 2);
    if (absl::EndsWith(view.name, "n")) return Flow::Unproven();
  }
  if (!dims) return Flow::Unproven();
  const bool across =
      std::find(dims->begin(), dims->end(), flow.axis) != dims->end();
  return across ? Flow::Mixed() : flow;
}

}  // namespace

std::vector<Flow> ApplyComplexRules(const NodeView& view) {
  if (KeepsPlaces(view.name)) return ForAll(view, view.FlowOf("self"));
  if (IsPointwise(view.name)) return ForAll(view, Pointwise(view));
  if (absl::StartsWith(view.name, "fft_") ||
      absl::StartsWith(view.name, "_fft_")) {
    return ForAll(view, Transform(view));
  }
  return ForAll(view, Flow::Unproven());
}

}  // namespace refract::models::rows
