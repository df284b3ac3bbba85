// Operators that move entries without arithmetic, to the same places for every
// row.

#include <algorithm>

#include "models/rows/flow.h"

namespace refract::models::rows {
namespace {

// Concatenates operands along `axis`; all have their rows at one place.
Flow Join(const NodeView& view, const std::vector<ValueId>& operands, int axis,
          bool stack) {
  std::optional<Flow> rows;
  bool bags = false;
  bool ragged = false;
  bool request = false;
  int64_t outer = 0;
  for (const ValueId id : operands) {
    const Flow flow = view.FlowOf(id);
    if (flow.kind == Kind::kBags || flow.kind == Kind::kRowIndex) bags = true;
    if (flow.kind == Kind::kRagged) ragged = true;
    if (flow.kind == Kind::kRequest) request = true;
    if (!flow.rows()) continue;
    // Concatenated along the rows' dimension, blocks of rows add up.
    outer += flow.outer;
    if (!rows) rows = flow;
    if (rows->axis != flow.axis || rows->inner != flow.inner) {
      return Flow::Mixed();
    }
    if (rows->outer != flow.outer && (stack || axis != flow.axis)) {
      return Flow::Mixed();
    }
  }
  if (ragged) return rows || bags ? Flow::Mixed() : Flow::Ragged();
  if (bags) {
    return view.IsInteger(view.first_output()) ? Flow::Bags() : Flow::Mixed();
  }
  if (!rows) return request ? Flow::Request() : Flow::Constant();
  const bool all = std::all_of(operands.begin(), operands.end(),
                               [&](auto id) { return view.FlowOf(id).rows(); });
  // Shared entries beside the rows: one entry per row number.
  if (!all) return Flow::Unproven();
  if (stack) return rows->At(rows->axis + (axis <= rows->axis ? 1 : 0));
  if (axis != rows->axis) return *rows;
  if (operands.size() == 1) return *rows;
  // Blocks of rows follow each other.
  return rows->inner == 1 ? Flow::Rows(axis, outer) : Flow::Mixed();
}

// Moves entries within dimensions other than the rows'.
Flow Within(const NodeView& view, const Flow& flow) {
  const ValueId self = view.Ref("self");
  const auto from = view.ShapeOf(self);
  const auto to = view.ShapeOf(view.first_output());
  if (!flow.rows() || !from || !to || from->size() != to->size()) {
    return Flow::Unproven();
  }
  const int rank = static_cast<int>(from->size());
  const absl::string_view name = view.name;
  if (name == "roll" || name == "flip") {
    const auto dims = view.Dims("dims", rank);
    if (!dims || dims->empty()) return Flow::Mixed();
    return std::count(dims->begin(), dims->end(), flow.axis) ? Flow::Mixed()
                                                             : flow;
  }
  if (name == "fliplr") return flow.axis == 1 ? Flow::Mixed() : flow;
  if (name == "flipud") return flow.axis == 0 ? Flow::Mixed() : flow;
  if (name == "tril" || name == "triu") {
    return flow.axis >= rank - 2 ? Flow::Mixed() : flow;
  }
  // Padding: dimensions that grow.
  return (*from)[flow.axis] == (*to)[flow.axis] ? flow : Flow::Mixed();
}

}  // namespace

Flow JoinTensors(const NodeView& view) {
  const std::vector<ValueId> operands = view.List("tensors");
  const absl::string_view name = view.name;
  if (operands.empty()) return Flow::Unproven();
  const int rank = view.Rank(operands[0]);
  if (rank < 0) return Flow::Unproven();
  if (name == "stack") {
    const auto dims = view.Dims("dim", rank + 1).value_or(std::vector<int>{0});
    return Join(view, operands, dims[0], true);
  }
  if (name == "hstack") return Join(view, operands, rank > 1 ? 1 : 0, false);
  if (name == "column_stack") return Join(view, operands, 1, rank < 2);
  if (name == "vstack" || name == "row_stack") {
    return Join(view, operands, 0, rank < 2);
  }
  const auto dims = view.Dims("dim", rank).value_or(std::vector<int>{0});
  return Join(view, operands, dims[0], false);
}

// repeat, tile: whole copies of each dimension, side by side.
Flow Repeat(const NodeView& view) {
  const Flow flow = view.FlowOf("self");
  const ValueId output = view.first_output();
  if (flow.shared()) return Spread(flow, view, output);
  if (!flow.rows()) return Flow::Mixed();
  const auto from = view.ShapeOf(view.Ref("self"));
  const auto to = view.ShapeOf(output);
  if (!from || !to || to->size() < from->size()) return Flow::Unproven();
  Flow result =
      flow.At(flow.axis + static_cast<int>(to->size() - from->size()));
  for (int i = 0; i < static_cast<int>(to->size()); ++i) {
    if (i != result.axis && view.sizes.HasBatch((*to)[i])) return Flow::Mixed();
  }
  // Whole copies follow each other, so there are `copies` times the blocks.
  const int64_t copies = (*to)[result.axis] / (*from)[flow.axis];
  if (view.sizes.HasBatch(copies)) return Flow::Mixed();
  result.outer *= copies;
  return result;
}

Flow RepeatInterleave(const NodeView& view) {
  Flow flow = view.FlowOf("self");
  if (view.overload != "self_int") return Flow::Unproven();
  const ValueId self = view.Ref("self");
  const ValueId output = view.first_output();
  auto from = view.ShapeOf(self);
  const auto to = view.ShapeOf(output);
  if (!flow.rows() || !from || !to) return Flow::Unproven();
  const auto dims = view.Dims("dim", view.Rank(self));
  if (!dims) {  // flattened first
    int64_t count = 1;
    for (const int64_t size : *from) count *= size;
    flow = Reshape(flow, *from, {count}, view.sizes);
    if (!flow.rows()) return flow;
    from = Shape{count};
  }
  const int dim = dims ? dims->front() : 0;
  const int64_t copies = (*from)[dim] == 0 ? 1 : (*to)[dim] / (*from)[dim];
  if (view.sizes.HasBatch(copies)) return Flow::Mixed();
  // Each entry is repeated in place, so the copies belong to its row.
  if (dim == flow.axis) flow.inner *= copies;
  return flow;
}

Flow MoveWithin(const NodeView& view) {
  const Flow self = view.FlowOf("self");
  // Offsets with a zero in front are offsets.
  return self.kind == Kind::kBags ? self : Within(view, self);
}

Flow DiagEmbed(const NodeView& view) {
  const Flow self = view.FlowOf("self");
  const int rank = view.Rank(view.Ref("self"));
  const bool last = view.Int("dim1", -2) == -2 && view.Int("dim2", -1) == -1;
  return self.rows() && last && self.axis < rank - 1 ? self : Flow::Unproven();
}

}  // namespace refract::models::rows
