// Sizes, tensors made of sizes, and the places of bags.

#include "models/rows/flow.h"

namespace refract::models::rows {
namespace {

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
  // Read back from a tensor, or made of such numbers.
  Flow result = Flow::Constant();
  for (const ValueId input : view.inputs()) {
    const Flow flow = view.FlowOf(input);
    if (flow.kind == Kind::kBags || flow.kind == Kind::kRagged) {
      result = Flow::Bags();
    } else if (flow.has_axis()) {
      // Sizes of other dimensions belong to the request; values belong to rows.
      if (view.name != "sym_size" && view.name != "size") return Flow::Mixed();
      if (result.kind == Kind::kConstant) result = Flow::Request();
    } else if (flow.kind == Kind::kRequest && result.kind == Kind::kConstant) {
      result = Flow::Request();
    }
  }
  return result;
}

// A tensor that all rows share, or that is filled with `fill`.
// nullopt: `fill` is shared, and the shape decides.
std::optional<Flow> Fill(const NodeView& view, const Flow& fill) {
  if (fill.kind == Kind::kBags) {
    return view.IsInteger(view.first_output()) ? Flow::Bags() : Flow::Mixed();
  }
  if (!fill.shared()) return Flow::Unproven();
  return std::nullopt;
}

}  // namespace

std::optional<std::vector<Flow>> NumberRows(const NodeView& view) {
  if (!AllNumbers(view)) return std::nullopt;
  std::vector<Flow> flows;
  for (const ValueId id : view.node.outputs) {
    flows.push_back(id == kNoValue ? Flow::Constant() : NumberFlow(view, id));
  }
  return flows;
}

Flow Arange(const NodeView& view) {
  const ValueId output = view.first_output();
  const Value& value = view.graph.value(output);
  if (!value.has_shape || value.shape.size() != 1) return Flow::Unproven();
  const bool integers = view.IsInteger(output);
  // A length that counts ids or bags gives places of ids; any other length is
  // the same for all rows.
  if (!view.sizes.MentionsBatch(value.shape[0])) {
    bool bags = false;
    for (const ValueId id : view.inputs()) {
      bags |= view.FlowOf(id).kind == Kind::kBags;
    }
    if (!bags) return Flow::Request();
    return integers ? Flow::Bags() : Flow::Mixed();
  }
  if (!integers) return Flow::Mixed();
  // arange(B): entry b is the number of row b.
  if (view.sizes.Of(value.shape[0]) == view.sizes.batch() &&
      view.Int("start", 0) == 0 && view.Int("step", 1) == 1) {
    return {.kind = Kind::kRowIndex};
  }
  return Flow::Bags();
}

Flow Made(const NodeView& view) {
  const Flow fill = view.FlowOf(view.node.FindArg("s") ? "s" : "fill_value");
  if (const auto flow = Fill(view, fill)) return *flow;
  return Spread(fill, view, view.first_output());
}

Flow MadeLike(const NodeView& view) {
  if (const auto flow = Fill(view, view.FlowOf("fill_value"))) return *flow;
  Flow self = view.FlowOf("self");
  // The contents are the same for all rows; the shape is the operand's.
  if (self.kind == Kind::kRowIndex) self.kind = Kind::kRows;
  return self;
}

}  // namespace refract::models::rows
