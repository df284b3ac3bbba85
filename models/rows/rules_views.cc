// Operators that only change the view of a tensor.

#include <algorithm>

#include "models/rows/flow.h"

namespace refract::models::rows {
namespace {

// Pieces of offsets are offsets, pieces of bags are bags; a piece of a tensor
// that all rows share is shared, unless its size counts rows.
std::vector<Flow> WithoutAxis(const NodeView& view, const Flow& flow) {
  if (!flow.shared()) return ForAll(view, flow);
  std::vector<Flow> flows;
  for (const ValueId id : view.node.outputs) {
    const bool counts =
        id != kNoValue && !view.sizes.BatchAxes(view.graph.value(id)).empty();
    flows.push_back(counts ? Flow::Mixed() : flow);
  }
  return flows;
}

// Shared values may get rows by a reshape whose size names the batch, as in
// x.view(B, -1) of a request's table: Spread() looks at the result's shape.
Flow ReshapeNode(const NodeView& view, const Flow& flow) {
  const ValueId output = view.first_output();
  if (flow.shared()) return Spread(flow, view, output);
  const auto from = view.ShapeOf(view.Ref("self"));
  const auto to = view.ShapeOf(output);
  if (!from || !to) return Flow::Unproven();
  return Reshape(flow, *from, *to, view.sizes);
}

// The new place of dimension `axis`.
Flow Permute(const NodeView& view, const Flow& flow, int rank) {
  std::vector<int> order;  // result dimension → source dimension
  for (int i = 0; i < rank; ++i) order.push_back(i);
  const absl::string_view name = view.name;
  const auto swap = [&](absl::string_view a, absl::string_view b) {
    const auto first = view.Dims(a, rank);
    const auto second = view.Dims(b, rank);
    if (!first || !second || first->size() != 1 || second->size() != 1) {
      return false;
    }
    std::swap(order[first->front()], order[second->front()]);
    return true;
  };
  if (name == "permute" || name == "permute_copy") {
    const auto dims = view.Dims("dims", rank);
    if (!dims || static_cast<int>(dims->size()) != rank) {
      return Flow::Unproven();
    }
    order = *dims;
  } else if (name == "transpose" || name == "transpose_copy" ||
             name == "swapdims") {
    if (!swap("dim0", "dim1")) return Flow::Unproven();
  } else if (name == "swapaxes") {
    if (!swap("axis0", "axis1")) return Flow::Unproven();
  } else if (name == "t" || name == "t_copy" || name == "numpy_T") {
    std::reverse(order.begin(), order.end());
  } else if (name == "mT" || name == "adjoint" || name == "mH") {
    if (rank < 2) return Flow::Unproven();
    std::swap(order[rank - 1], order[rank - 2]);
  } else {  // movedim, moveaxis
    const auto source = view.Dims("source", rank);
    const auto target = view.Dims("destination", rank);
    if (!source || !target || source->size() != target->size()) {
      return Flow::Unproven();
    }
    std::vector<int> rest;
    for (int i = 0; i < rank; ++i) {
      if (std::find(source->begin(), source->end(), i) == source->end()) {
        rest.push_back(i);
      }
    }
    std::vector<int> moved(rank, -1);
    for (size_t i = 0; i < source->size(); ++i) {
      moved[(*target)[i]] = (*source)[i];
    }
    auto next = rest.begin();
    for (int& dim : moved) {
      if (dim < 0) dim = *next++;
    }
    order = moved;
  }
  const auto it = std::find(order.begin(), order.end(), flow.axis);
  return flow.At(static_cast<int>(it - order.begin()));
}

Flow Expand(const NodeView& view, const Flow& flow, ValueId self,
            ValueId output) {
  if (flow.shared()) return Spread(flow, view, output);
  if (!flow.has_axis()) return flow;
  const auto from = view.ShapeOf(self);
  const auto to = view.ShapeOf(output);
  if (!from || !to || to->size() < from->size()) return Flow::Unproven();
  const int axis =
      flow.axis + static_cast<int>(to->size()) - static_cast<int>(from->size());
  // Other dimensions than the rows' may grow, but not to a multiple of the
  // batch, which would pair each row with each.
  for (int i = 0; i < static_cast<int>(to->size()); ++i) {
    const bool same = (*to)[i] == (i == axis ? (*from)[flow.axis] : (*to)[i]);
    if (!same || (i != axis && view.sizes.HasBatch((*to)[i]))) {
      return Flow::Mixed();
    }
  }
  return flow.At(axis);
}

// A range of dimension 0 of rows laid out feature after feature.
Flow Stretch(const NodeView& view, const Flow& flow,
             std::optional<int64_t> start, ValueId output, int axis) {
  const auto shape = view.ShapeOf(output);
  if (!shape || !start || flow.inner != 1 || flow.kind != Kind::kRows) {
    return Flow::Mixed();
  }
  const int64_t size = (*shape)[axis];
  // Each feature has a row block of the batch's size, so the range must begin
  // and end at whole blocks.
  if (*start % view.sizes.batch() != 0 || !view.sizes.HasBatch(size)) {
    return Flow::Mixed();
  }
  return Flow::Rows(axis, size / view.sizes.batch());
}

Flow Slice(const NodeView& view, const Flow& flow, int rank) {
  const bool narrow = view.name == "narrow" || view.name == "narrow_copy";
  auto dims = view.Dims("dim", rank);
  if (!dims) dims = std::vector<int>{0};
  if (flow.axis != dims->front()) return flow;
  const ValueId output = view.first_output();
  const auto from = view.ShapeOf(view.Ref("self"));
  const auto to = view.ShapeOf(output);
  if (from && to && (*from)[flow.axis] == (*to)[flow.axis]) return flow;
  // A part of the rows' numbers: places of rows, no longer one per row.
  if (flow.kind == Kind::kRowIndex) return Flow::Bags();
  if (!narrow && view.Int("step", 1) != 1) return Flow::Mixed();
  return Stretch(view, flow, view.Int("start", 0), output, flow.axis);
}

Flow Drop(const NodeView& view, const Flow& flow, int rank) {  // select, unbind
  auto dims = view.Dims("dim", rank);
  if (!dims) dims = std::vector<int>{0};
  if (flow.axis == dims->front()) return Flow::Mixed();
  return flow.At(AxisWithout(flow.axis, *dims));
}

std::vector<Flow> Split(const NodeView& view, const Flow& flow, int rank) {
  auto dims = view.Dims("dim", rank);
  if (!dims) dims = std::vector<int>{0};
  if (flow.axis != dims->front()) return ForAll(view, flow);
  std::vector<Flow> flows;
  std::optional<int64_t> start = 0;
  for (const ValueId id : view.node.outputs) {
    if (id == kNoValue) {  // of unknown size
      flows.push_back(Flow::Constant());
      start.reset();
      continue;
    }
    const auto shape = view.ShapeOf(id);
    flows.push_back(Stretch(view, flow, start, id, flow.axis));
    if (!shape) start.reset();
    if (start) *start += (*shape)[flow.axis];
  }
  // Equal parts: where one starts is known although others are not used.
  return flows;
}

Flow Unfold(const NodeView& view, const Flow& flow, int rank) {
  const auto dims = view.Dims("dimension", rank);
  if (!dims || dims->front() == flow.axis) return Flow::Mixed();
  return flow;
}

Flow Diagonal(const NodeView& view, const Flow& flow, int rank) {
  const auto first = view.Dims("dim1", rank).value_or(std::vector<int>{0});
  const auto second = view.Dims("dim2", rank).value_or(std::vector<int>{1});
  if (first[0] == flow.axis || second[0] == flow.axis) return Flow::Mixed();
  return flow.At(AxisWithout(flow.axis, {first[0], second[0]}));
}

}  // namespace

std::vector<Flow> ViewRows(const NodeView& view) {
  const ValueId self = view.Ref("self");
  const Flow flow = view.FlowOf(self);
  const int rank = view.Rank(self);
  const RowRule rule = view.op.rows;
  if (rule == RowRule::kReshape) return ForAll(view, ReshapeNode(view, flow));
  if (rule == RowRule::kExpand) {
    return ForAll(view, Expand(view, flow, self, view.first_output()));
  }
  if (!flow.has_axis()) return WithoutAxis(view, flow);
  if (rank < 0) return ForAll(view, Flow::Unproven());
  switch (rule) {
    case RowRule::kPermute:
      return ForAll(view, Permute(view, flow, rank));
    case RowRule::kSlice:
      return ForAll(view, Slice(view, flow, rank));
    case RowRule::kDrop:
      return ForAll(view, Drop(view, flow, rank));
    case RowRule::kSplit:
      return Split(view, flow, rank);
    case RowRule::kUnfold:
      return ForAll(view, Unfold(view, flow, rank));
    default:
      return ForAll(view, Diagonal(view, flow, rank));
  }
}

std::vector<Flow> BroadcastTensorsRows(const NodeView& view) {
  std::vector<Flow> flows;
  const std::vector<ValueId> operands = view.List("tensors");
  for (size_t i = 0; i < view.node.outputs.size(); ++i) {
    flows.push_back(i < operands.size()
                        ? Expand(view, view.FlowOf(operands[i]), operands[i],
                                 view.node.outputs[i])
                        : Flow::Unproven());
  }
  return flows;
}

}  // namespace refract::models::rows
