// Sizes, tensors made of sizes, and the places of bags.

#include "absl/container/flat_hash_set.h"
#include "models/rows/flow.h"

namespace refract::models::rows {
namespace {

using NameSet = absl::flat_hash_set<absl::string_view>;

bool AllNumbers(const NodeView& view) {
  bool any = false;
  for (const ValueId id : view.node.outputs) {
    if (id == kNoValue) continue;
    any = true;
    if (view.graph.value(id).kind == ValueKind::kTensor) return false;
  }
  return any;
}

Flow NumberFlow(const NodeView& view, ValueId id) {
  const SymExpr& size = view.graph.value(id).sym_value;
  if (!size.is_unknown() && view.sizes.MentionsBatch(size)) {
    return Flow::Bags();
  }
  // Read back from a tensor, or made of numbers that were.
  Flow result = Flow::Constant();
  for (const ValueId input : view.inputs()) {
    const Flow flow = view.FlowOf(input);
    if (flow.kind == Kind::kBags || flow.kind == Kind::kRagged) {
      result = Flow::Bags();
    } else if (flow.has_axis()) {
      // Sizes of other dimensions are the request's; values are rows'.
      if (view.name != "sym_size" && view.name != "size") return Flow::Mixed();
      if (result.kind == Kind::kConstant) result = Flow::Request();
    } else if (flow.kind == Kind::kRequest && result.kind == Kind::kConstant) {
      result = Flow::Request();
    }
  }
  return result;
}

Flow Arange(const NodeView& view) {
  const ValueId output = view.first_output();
  const Value& value = view.graph.value(output);
  if (!value.has_shape || value.shape.size() != 1) return Flow::Unproven();
  const bool integers = view.IsInteger(output);
  if (!view.sizes.MentionsBatch(value.shape[0])) {
    bool bags = false;
    for (const ValueId id : view.inputs()) {
      bags |= view.FlowOf(id).kind == Kind::kBags;
    }
    if (!bags) return Flow::Request();
    return integers ? Flow::Bags() : Flow::Mixed();
  }
  if (!integers) return Flow::Mixed();
  if (view.sizes.Of(value.shape[0]) == view.sizes.batch() &&
      view.Int("start", 0) == 0 && view.Int("step", 1) == 1) {
    return {.kind = Kind::kRowIndex};
  }
  return Flow::Bags();
}

}  // namespace

MaybeFlows ApplySizeRules(const NodeView& view) {
  if (AllNumbers(view)) {
    std::vector<Flow> flows;
    for (const ValueId id : view.node.outputs) {
      flows.push_back(id == kNoValue ? Flow::Constant() : NumberFlow(view, id));
    }
    return flows;
  }
  if (view.space != "aten") return std::nullopt;
  if (view.name == "arange") return ForAll(view, Arange(view));
  static const auto& made = *new NameSet{
      "zeros",         "ones",          "full",           "empty",
      "new_zeros",     "new_ones",      "new_full",       "new_empty",
      "empty_strided", "scalar_tensor", "empty_permuted", "new_empty_strided"};
  static const auto& alike =
      *new NameSet{"zeros_like", "ones_like", "full_like", "empty_like"};
  const bool is_made = made.contains(view.name);
  if (!is_made && !alike.contains(view.name)) return std::nullopt;
  const Flow fill =
      view.FlowOf(view.name == "scalar_tensor" ? "s" : "fill_value");
  const ValueId output = view.first_output();
  if (fill.kind == Kind::kBags) {
    return ForAll(view, view.IsInteger(output) ? Flow::Bags() : Flow::Mixed());
  }
  if (!fill.shared()) return ForAll(view, Flow::Unproven());
  if (is_made) return ForAll(view, Spread(fill, view, output));
  Flow self = view.FlowOf("self");
  if (self.kind == Kind::kRowIndex) self.kind = Kind::kRows;
  return ForAll(view, self);
}

}  // namespace refract::models::rows
