// Operators that read or write at indices from other tensors.

#include <algorithm>

#include "models/rows/flow.h"

namespace refract::models::rows {
namespace {

// self[indices]: place of its rows, and its shape.
struct Indexed {
  Flow flow;
  int rank = 0;
};

Indexed Fail(const Flow& flow) { return {.flow = flow}; }

// NumPy's indexing: the index tensors broadcast to one shape, which takes the
// place of the dimensions that they index. A mask of rank r indexes r
// dimensions with one result dimension, whose size depends on data. An index on
// the rows' dimension is the row's number (arange(B)) or mixes rows.
Indexed IndexFlow(const NodeView& view) {
  const ValueId self = view.Ref("self");
  const Flow source = view.FlowOf(self);
  const std::vector<ValueId> indices = view.List("indices");
  const int rank = view.Rank(self);
  if (rank < 0) return Fail(Flow::Unproven());
  // Broadcasts the indices; records which dimensions of `self` they replace.
  std::vector<Operand> operands;
  std::vector<int> replaced;
  int index_rank = 0;
  bool at_rows = false;
  Flow row_number;
  int dim = 0;
  for (const ValueId id : indices) {
    if (id == kNoValue) {
      ++dim;
      continue;
    }
    const Value& index = view.graph.value(id);
    const int this_rank = view.Rank(id);
    if (this_rank < 0) return Fail(Flow::Unproven());
    const bool mask =
        index.dtype == base::DType::kBool || index.dtype == base::DType::kUInt8;
    const Flow flow = view.FlowOf(id);
    // A mask that differs by row selects a different number of entries in each.
    if (mask && !flow.shared()) return Fail(Flow::Mixed());
    const int width = mask ? this_rank : 1;
    const bool on_rows =
        source.has_axis() && source.axis >= dim && source.axis < dim + width;
    for (int i = 0; i < width; ++i) replaced.push_back(dim + i);
    dim += width;
    index_rank = std::max(index_rank, mask ? 1 : this_rank);
    if (on_rows) {
      // Any other index on the rows' dimension reads rows of other numbers.
      if (flow.kind != Kind::kRowIndex) return Fail(Flow::Mixed());
      at_rows = true;
      row_number = flow;
      row_number.kind = Kind::kRows;
      operands.push_back({row_number, this_rank});
    } else {
      // A row's number elsewhere becomes a value of the row, and merging
      // changes it.
      if (flow.kind == Kind::kRowIndex) return Fail(Flow::Mixed());
      std::optional<Shape> shape;
      if (!mask) shape = view.ShapeOf(id);
      operands.push_back({flow, mask ? 1 : this_rank, shape});
    }
  }
  if (replaced.empty()) return {source, rank};
  const Flow joined = Broadcast(operands, index_rank);
  if (joined.mixed() || joined.kind == Kind::kBags) return Fail(Flow::Mixed());
  // Index dimensions are at the place of the first index, or in front if they
  // are not adjacent.
  const bool adjacent = replaced.back() - replaced.front() + 1 ==
                        static_cast<int>(replaced.size());
  const int place = adjacent ? replaced.front() : 0;
  const int result_rank = rank - static_cast<int>(replaced.size()) + index_rank;
  if (joined.kind == Kind::kRagged) {
    return {source.shared() && place == 0 ? joined : Flow::Mixed(),
            result_rank};
  }
  if (source.shared()) {
    if (joined.rows()) return {joined.At(place + joined.axis), result_rank};
    const bool request =
        source.kind == Kind::kRequest || joined.kind == Kind::kRequest;
    return {request ? Flow::Request() : Flow::Constant(), result_rank};
  }
  if (!source.rows()) return Fail(Flow::Mixed());
  // x[arange(B), i]: entry b of the result comes from row b.
  if (at_rows) {
    if (source.outer != 1 || source.inner != 1 || !joined.rows()) {
      return Fail(Flow::Mixed());
    }
    return {joined.At(place + joined.axis), result_rank};
  }
  if (joined.rows()) return Fail(Flow::Mixed());  // every row for every row
  // The indexed dimensions vanish. The index dimensions appear at `place`, and
  // move the rows' axis if they come before it.
  int axis = AxisWithout(source.axis, replaced);
  if (place <= axis && (!adjacent || replaced.front() < source.axis)) {
    axis += index_rank;
  }
  return {source.At(axis), result_rank};
}

bool IsMaskOfRows(const NodeView& view) {
  const std::vector<ValueId> indices = view.List("indices");
  return indices.size() == 1 && indices[0] != kNoValue &&
         view.graph.value(indices[0]).dtype == base::DType::kBool &&
         view.FlowOf(indices[0]).rows();
}

// Along `dim`; every operand has its rows in the same other dimension.
Flow Along(const NodeView& view, std::vector<ValueId> operands) {
  const int rank = view.Rank(operands[0]);
  const auto dims = view.Dims("dim", rank);
  if (!dims) return Flow::Unproven();
  std::optional<Flow> rows;
  bool request = false;
  std::vector<Shape> shared;
  for (const ValueId id : operands) {
    const Flow flow = view.FlowOf(id);
    if (flow.shared()) {
      request |= flow.kind == Kind::kRequest;
      const auto shape = view.ShapeOf(id);
      if (!shape) return Flow::Unproven();
      shared.push_back(*shape);
      continue;
    }
    if (!flow.rows()) return Flow::Mixed();
    if (!rows) rows = flow;
    if (rows->axis != flow.axis || rows->outer != flow.outer ||
        rows->inner != flow.inner) {
      return Flow::Mixed();
    }
  }
  if (!rows) return request ? Flow::Request() : Flow::Constant();
  // Entry by entry beside the rows: a row meets the entry of its number.
  for (const Shape& shape : shared) {
    if (static_cast<int>(shape.size()) == rank && rank > 0 &&
        shape[rows->axis] != 1) {
      return Flow::Mixed();
    }
  }
  return rows->axis == dims->front() ? Flow::Mixed() : *rows;
}

}  // namespace

Flow Index(const NodeView& view) { return IndexFlow(view).flow; }

Flow IndexPut(const NodeView& view) {
  const Flow self = view.FlowOf("self");
  const Flow values = view.FlowOf("values");
  const int value_rank = view.Rank(view.Ref("values"));
  if (!self.rows()) return Flow::Unproven();
  // x[mask] = number: each entry is replaced or kept by its own row's mask.
  if (IsMaskOfRows(view)) {
    const Flow mask = view.FlowOf(view.List("indices")[0]);
    const bool fits = mask.axis == self.axis && mask.outer == self.outer &&
                      mask.inner == self.inner;
    return fits && values.shared() && value_rank == 0 ? self : Flow::Mixed();
  }
  const Indexed place = IndexFlow(view);
  if (!place.flow.rows()) {
    return place.flow.mixed() ? place.flow : Flow::Mixed();
  }
  const Flow written =
      Broadcast({{place.flow, place.rank},
                 {values, value_rank, view.ShapeOf(view.Ref("values"))}},
                place.rank);
  return written.rows() ? self : Flow::Mixed();
}

Flow Gather(const NodeView& view) {
  const Flow self = view.FlowOf("self");
  const ValueId index_id =
      view.Ref(view.node.FindArg("indices") ? "indices" : "index");
  const Flow index = view.FlowOf(index_id);
  const auto dims = view.Dims("dim", view.Rank(index_id));
  if (!dims) return Flow::Unproven();
  // Any row may ask for each row of a shared table's dimension.
  if (self.shared() && index.rows() && index.axis == dims->front()) {
    return index;
  }
  if (self.shared() && index.kind == Kind::kRagged && dims->front() == 0) {
    return index;
  }
  return Along(view, {view.Ref("self"), index_id});
}

Flow IndexSelect(const NodeView& view) {
  const Flow self = view.FlowOf("self");
  const Flow index = view.FlowOf("index");
  const auto dims = view.Dims("dim", view.Rank(view.Ref("self")));
  if (!dims) return Flow::Unproven();
  if (self.shared()) {
    if (index.rows()) return index.At(dims->front());
    return index.kind == Kind::kRagged && dims->front() == 0 ? index
                                                             : Flow::Mixed();
  }
  if (!index.shared() || !self.rows()) return Flow::Mixed();
  return self.axis == dims->front() ? Flow::Mixed() : self;
}

// Writes at constant places along `dim`.
Flow IndexWrite(const NodeView& view) {
  if (!view.FlowOf("index").shared()) return Flow::Mixed();
  std::vector<ValueId> operands = {view.Ref("self")};
  if (const ValueId source = view.Ref("source"); source != kNoValue) {
    operands.push_back(source);
  }
  if (!view.FlowOf("value").shared()) return Flow::Mixed();
  return Along(view, operands);
}

Flow ViewScatter(const NodeView& view) {
  const Flow self = view.FlowOf("self");
  const ValueId src = view.Ref("src");
  const int rank = view.Rank(view.Ref("self"));
  const auto dims = view.Dims("dim", rank).value_or(std::vector<int>{0});
  const bool select = view.name == "select_scatter";
  Flow source = view.FlowOf(src);
  if (!self.rows() || rank < 0) return Flow::Mixed();
  if (self.axis == dims[0]) {  // all rows, or some
    const auto whole = view.ShapeOf(view.Ref("self"));
    const auto part = view.ShapeOf(src);
    const bool all = !select && whole && part &&
                     part->size() == whole->size() &&
                     (*part)[self.axis] == (*whole)[self.axis];
    if (!all) return Flow::Mixed();
  }
  if (source.shared()) {
    const auto shape = view.ShapeOf(src);
    const int dim = self.axis - (select && self.axis > dims[0] ? 1 : 0);
    if (!shape) return Flow::Unproven();
    const bool one =
        static_cast<int>(shape->size()) < rank - (select ? 1 : 0) ||
        dim >= static_cast<int>(shape->size()) || (*shape)[dim] == 1;
    return one ? self : Flow::Unproven();
  }
  if (select) source.axis += source.axis >= dims[0] ? 1 : 0;
  return source.rows() && source.axis == self.axis &&
                 source.outer == self.outer && source.inner == self.inner
             ? self
             : Flow::Mixed();
}

// A row's ids select table rows for that row alone.
Flow Embedding(const NodeView& view) {
  const Flow ids = view.FlowOf("indices");
  if (!view.FlowOf("weight").shared()) return Flow::Mixed();
  return ids.rows() || ids.kind == Kind::kRagged ? ids : Flow::Mixed();
}

std::vector<Flow> EmbeddingBag(const NodeView& view) {
  std::vector<Flow> flows = ForAll(view, Flow::Unproven());
  const ValueId output =
      view.node.outputs.empty() ? kNoValue : view.node.outputs[0];
  const auto shape = view.ShapeOf(output);
  const Flow ids = view.FlowOf("indices");
  const Flow offsets = view.FlowOf("offsets");
  const Flow weights = view.FlowOf("per_sample_weights");
  if (!view.FlowOf("weight").shared() || !shape || shape->empty() ||
      ids.kind == Kind::kBags) {
    return flows;
  }
  const bool fits = weights.shared() || weights.kind == ids.kind;
  const int64_t bags = (*shape)[0];
  if (!fits || !view.sizes.HasBatch(bags)) {
    flows[0] = Flow::Mixed();
    return flows;
  }
  const int64_t per_row = bags / view.sizes.batch();
  // One bag per row, in order.
  if (per_row == 1) {
    flows[0] = Flow::Rows(0);
  // Several bags per row: the layout of offsets or of ids says whether the bags
  // of a row follow each other or lie feature by feature.
  } else if (offsets.rows()) {
    flows[0] = offsets;
  } else if (ids.rows() && ids.outer == 1) {
    flows[0] = Flow::Rows(0, 1, per_row);
  } else if (ids.rows() && per_row % ids.outer == 0) {
    flows[0] = Flow::Rows(0, ids.outer, per_row / ids.outer);
  }
  return flows;
}

// Bounds of rank 1 serve all values. Bounds of a higher rank have the values'
// leading dimensions, and their last dimension is searched.
Flow Buckets(const NodeView& view) {
  const ValueId bounds =
      view.Ref(view.name == "searchsorted" ? "sorted_sequence" : "boundaries");
  const Flow flow = view.FlowOf(bounds);
  const int rank = view.Rank(bounds);
  if (flow.has_axis() && flow.axis == rank - 1) return Flow::Mixed();
  const Flow values = view.FlowOf("self");
  if (rank == 1 && flow.shared() && values.rows()) return values;
  return BroadcastInputs(view);
}

Flow Take(const NodeView& view) {
  const Flow index = view.FlowOf("index");
  return view.FlowOf("self").shared() && index.rows() ? index : Flow::Mixed();
}

Flow Scatter(const NodeView& view) {
  std::vector<ValueId> operands = {view.Ref("self"), view.Ref("index")};
  if (const ValueId src = view.Ref("src"); src != kNoValue) {
    operands.push_back(src);
  }
  if (!view.FlowOf("value").shared()) return Flow::Mixed();
  return Along(view, operands);
}

}  // namespace refract::models::rows
