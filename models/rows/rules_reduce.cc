// Reductions, scans, orders and normalisations along dimensions.

#include <algorithm>

#include "models/rows/flow.h"

namespace refract::models::rows {
namespace {

// Reduces along dimensions, which then vanish (or have size 1).
Flow Reduce(const NodeView& view, const Flow& flow, int rank, ValueId output) {
  const bool integers = output != kNoValue &&
                        view.graph.value(output).dtype == base::DType::kInt64 &&
                        view.IsInteger(view.Ref("self"));
  // Integers made of offsets and counts may be offsets again; as floats they
  // would be values.
  if (flow.kind == Kind::kBags) return integers ? flow : Flow::Mixed();
  if (flow.kind == Kind::kRagged) {
    // Over the contents of each entry, not over the entries.
    const auto dims = view.Dims("dim", rank);
    const bool inside =
        dims && !dims->empty() && !std::count(dims->begin(), dims->end(), 0);
    if (inside) return flow;
    return integers ? Flow::Bags() : Flow::Mixed();
  }
  const std::optional<std::vector<int>> dims = view.Dims("dim", rank);
  const bool none = !dims || dims->empty();
  if (none || std::count(dims->begin(), dims->end(), flow.axis) > 0) {
    // Counts: the total number of ids.
    return integers ? Flow::Bags() : Flow::Mixed();
  }
  Flow result = flow;
  if (!view.Bool("keepdim", false)) result.axis = AxisWithout(flow.axis, *dims);
  return result;
}

// Along one dimension that stays; `last`: the default is the last dimension.
Flow ScanDim(const NodeView& view, const Flow& flow, int rank, bool last) {
  auto dims = view.Dims("dim", rank);
  if (!dims && last) dims = std::vector<int>{std::max(rank - 1, 0)};
  if (flow.kind == Kind::kRagged) {
    if (dims && dims->front() != 0) return flow;
    return view.IsInteger(view.first_output()) ? Flow::Bags() : Flow::Mixed();
  }
  if (flow.kind == Kind::kBags) return flow;
  if (!dims) return Flow::Unproven();
  // Along another dimension each row is scanned by itself.
  if (dims->front() != flow.axis) return flow;
  return view.name == "cumsum" && view.IsInteger(view.Ref("self"))
             ? Flow::Bags()
             : Flow::Mixed();
}

// Over the last dimensions, by the length of "normalized_shape".
Flow NormalizeLast(const NodeView& view, const Flow& flow, int rank) {
  const Argument* arg = view.node.FindArg("normalized_shape");
  const auto* shape = arg ? std::get_if<IntList>(arg) : nullptr;
  if (shape == nullptr) return Flow::Unproven();
  if (!view.FlowOf("weight").shared() || !view.FlowOf("bias").shared()) {
    return Flow::Unproven();
  }
  if (flow.kind == Kind::kRagged) {
    return static_cast<int>(shape->size()) < rank ? flow : Flow::Mixed();
  }
  return flow.axis < rank - static_cast<int>(shape->size()) ? flow
                                                            : Flow::Mixed();
}

// The last `count` dimensions are pooled; rows are in front of them.
Flow Pool(const NodeView& view, int count) {
  const Flow flow = view.FlowOf("self");
  const int rank = view.Rank(view.Ref("self"));
  return flow.rows() && flow.axis < rank - count ? flow : Flow::Mixed();
}

// For operators along dimensions of "self"; Unproven for row numbers.
Flow Checked(const NodeView& view, bool& known) {
  const Flow flow = view.FlowOf("self");
  known = view.Rank(view.Ref("self")) >= 0 && flow.kind != Kind::kRowIndex;
  return flow;
}

Flow ScanAlong(const NodeView& view, bool last) {
  bool known;
  const Flow flow = Checked(view, known);
  if (!known) return Flow::Unproven();
  return ScanDim(view, flow, view.Rank(view.Ref("self")), last);
}

}  // namespace

Flow Scan(const NodeView& view) { return ScanAlong(view, false); }
Flow Order(const NodeView& view) { return ScanAlong(view, true); }

std::vector<Flow> ReduceAll(const NodeView& view) {
  bool known;
  const Flow flow = Checked(view, known);
  if (!known) return ForAll(view, Flow::Unproven());
  std::vector<Flow> flows;
  for (const ValueId id : view.node.outputs) {
    flows.push_back(Reduce(view, flow, view.Rank(view.Ref("self")), id));
  }
  return flows;
}

Flow SortFirst(const NodeView& view) {
  bool known;
  const Flow flow = Checked(view, known);
  if (!known) return Flow::Unproven();
  return flow.rows() && flow.axis != 0 ? flow : Flow::Mixed();
}

std::vector<Flow> KthValue(const NodeView& view) {
  bool known;
  const Flow flow = Checked(view, known);
  if (!known || view.node.FindArg("dim") != nullptr) return ReduceAll(view);
  // The default is the last dimension.
  const bool mixes =
      !flow.rows() || flow.axis == view.Rank(view.Ref("self")) - 1;
  return ForAll(view, mixes ? Flow::Mixed() : flow);
}

Flow Pool1d(const NodeView& view) { return Pool(view, 1); }
Flow Pool2d(const NodeView& view) { return Pool(view, 2); }

Flow NormalizeLast(const NodeView& view) {
  const ValueId input = view.Ref("input");
  return NormalizeLast(view, view.FlowOf(input), view.Rank(input));
}

Flow GroupNorm(const NodeView& view) {
  const Flow input = view.FlowOf("input");
  return input.rows() && input.axis == 0 ? input : Flow::Mixed();
}

// For the batch's own statistics Apply() has given kMixed (MixesRows()).
Flow BatchNorm(const NodeView& view) {  // by stored statistics
  const Flow input = view.FlowOf("input");
  return input.rows() ? input : Flow::Unproven();
}

Flow Distance(const NodeView& view) {
  const ValueId a = view.Ref("x1");
  const ValueId b = view.Ref("x2");
  const int joint = std::max(view.Rank(a), view.Rank(b));
  if (view.Rank(a) < 0 || view.Rank(b) < 0) return Flow::Unproven();
  const Flow both = Broadcast({{view.FlowOf(a), view.Rank(a), view.ShapeOf(a)},
                               {view.FlowOf(b), view.Rank(b), view.ShapeOf(b)}},
                              joint);
  if (!both.rows()) return Flow::Mixed();
  const int dim =
      view.name == "pairwise_distance"
          ? joint - 1
          : view.Dims("dim", joint).value_or(std::vector<int>{1}).front();
  // The distance sums over `dim`.
  if (dim == both.axis) return Flow::Mixed();
  return view.Bool("keepdim", false) ? both
                                     : both.At(AxisWithout(both.axis, {dim}));
}

}  // namespace refract::models::rows
