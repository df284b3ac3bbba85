// Look-ups: rows of tables, and places along a dimension.

#include <utility>

#include "base/status_macros.h"
#include "runtime/cuda_plan/emitter.h"

namespace refract::runtime::cuda_plan {
namespace {

using cuda::Rows;

// A look-up of whole table rows whose ids lie in at most two steps, one of them
// the batch's: several tables of this form are read by one launch. The result
// has the dimensions (ids…, columns); dimensions of ids that adjoin in the ids
// and in the result count as one.
std::optional<cuda::TakesOp> AsTakes(const cuda::LookUpOp& op) {
  const auto is_one = [](const Rows& rows) { return rows == cuda::kOneRow; };
  const size_t rank = op.dims.size();
  if (rank == 0) return std::nullopt;
  const Rows& cols = op.dims[rank - 1];
  // The index must not change along the columns, which are of fixed number: one
  // id selects a whole row.
  const bool of_rows = op.index.strides[rank - 1] == Rows{0, 0} &&
                       cols.per_item == 0 && op.table_rows > 0 &&
                       op.row_stride.per_item == 0;
  if (!of_rows) return std::nullopt;
  for (const cuda::TensorRef* ref : {&op.table, &op.out}) {
    if (!is_one(cols) && !is_one(ref->strides[rank - 1])) return std::nullopt;
  }
  struct Dim {
    Rows size, id_stride, out_stride;
  };
  std::optional<Dim> batch;
  std::vector<Dim> others;
  for (size_t d = 0; d + 1 < rank; ++d) {
    // A table that changes along another dimension (gather, index_select of an
    // inner dimension) has no rows to copy.
    if (op.table.strides[d] != Rows{0, 0}) return std::nullopt;
    const Dim dim = {op.dims[d], op.index.strides[d], op.out.strides[d]};
    if (is_one(dim.size)) continue;
    if (dim.size.per_item != 0) {
      if (batch) return std::nullopt;
      batch = dim;
      continue;
    }
    // Two dimensions that lie behind each other count as one.
    const auto adjoins = [&](const Rows& outer, const Rows& inner) {
      return outer.per_item == inner.per_item * dim.size.fixed &&
             outer.fixed == inner.fixed * dim.size.fixed;
    };
    if (!others.empty() && adjoins(others.back().id_stride, dim.id_stride) &&
        adjoins(others.back().out_stride, dim.out_stride)) {
      const int64_t count = others.back().size.fixed;
      others.back() = dim;
      others.back().size.fixed *= count;
    } else {
      others.push_back(dim);
    }
  }
  if (others.size() > (batch ? 1 : 2)) return std::nullopt;
  const Dim one = {cuda::kOneRow, {0, 0}, {0, 0}};
  if (!batch && others.size() == 2) batch = others.front();
  const Dim outer = batch.value_or(one);
  const Dim inner = others.empty() ? one : others.back();
  cuda::Take take;
  take.table = op.table;
  take.table.strides = {op.row_stride, op.table.strides[rank - 1]};
  take.ids = op.index;
  take.ids.strides = {outer.id_stride, inner.id_stride};
  take.out = op.out;
  take.out.strides = {outer.out_stride, inner.out_stride,
                      op.out.strides[rank - 1]};
  take.table_rows = op.table_rows;
  take.inner = inner.size.fixed;
  take.dim = cols.fixed;
  take.outside = op.outside;
  return cuda::TakesOp{.rows = outer.size, .takes = {std::move(take)}};
}

}  // namespace

absl::Status Emitter::LookUp(const Tensor& table, size_t dim, int64_t rows,
                             const Tensor& index, size_t index_rank,
                             cuda::Outside outside, const Tensor& out) {
  cuda::LookUpOp op;
  const std::string& name = builder_.value(out.value).name;
  REFRACT_ASSIGN_OR_RETURN(op.dims, RowsOf(out.dims, name));
  REFRACT_ASSIGN_OR_RETURN(const std::vector<Rows> stride,
                           RowsOf({table.strides[dim]}, name));
  op.row_stride = stride[0];
  op.table_rows = rows;
  op.outside = outside;
  // `kept`: the table's dimensions without the one that is indexed.
  Tensor kept = table;
  kept.dims = out.dims;
  kept.strides.assign(out.rank(), 0);
  for (size_t d = 0; d < table.rank(); ++d) {
    if (d == dim) continue;
    // In the result the dimensions of the index stand in place of dimension
    // `dim`, so that later dimensions move by index_rank − 1. Dimensions of the
    // index do not move in the table: stride 0.
    kept.strides[d < dim ? d : d - 1 + index_rank] = table.strides[d];
  }
  // `ids`: the index, repeated along all other dimensions.
  Tensor ids = index;
  while (ids.rank() < out.rank()) ids = Unsqueezed(ids, ids.rank());
  const std::optional<Tensor> whole = Expanded(ids, out.dims);
  if (!whole)
    return absl::UnimplementedError(
        "the shape of its indices does not match its result");
  REFRACT_ASSIGN_OR_RETURN(op.table, RefTo(kept));
  REFRACT_ASSIGN_OR_RETURN(op.index, RefTo(*whole));
  REFRACT_ASSIGN_OR_RETURN(op.out, RefTo(out));
  if (std::optional<cuda::TakesOp> takes = AsTakes(op)) {
    builder_.Takes(*std::move(takes));
  } else {
    builder_.LookUp(std::move(op));
  }
  return absl::OkStatus();
}

absl::Status Emitter::Gather(const Tensor& table, size_t dim, int64_t rows,
                             const Tensor& index, cuda::Outside outside,
                             const Tensor& out) {
  cuda::LookUpOp op;
  const std::string& name = builder_.value(out.value).name;
  REFRACT_ASSIGN_OR_RETURN(op.dims, RowsOf(out.dims, name));
  REFRACT_ASSIGN_OR_RETURN(const std::vector<Rows> stride,
                           RowsOf({table.strides[dim]}, name));
  op.row_stride = stride[0];
  op.table_rows = rows;
  op.outside = outside;
  Tensor kept = table;
  // The index selects the place along `dim`; the kernel adds index ×
  // row_stride.
  kept.strides[dim] = 0;
  REFRACT_ASSIGN_OR_RETURN(op.table, RefTo(kept));
  REFRACT_ASSIGN_OR_RETURN(op.index, RefTo(index));
  REFRACT_ASSIGN_OR_RETURN(op.out, RefTo(out));
  builder_.LookUp(std::move(op));
  return absl::OkStatus();
}

}  // namespace refract::runtime::cuda_plan
