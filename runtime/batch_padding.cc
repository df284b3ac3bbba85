#include "runtime/batch_padding.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/integers.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "models/rows/row_dependence.h"
#include "runtime/compile/bag_inputs.h"

namespace refract::runtime {
namespace {

using base::TensorView;
using models::Graph;
using models::ValueId;

// Indices among the graph's inputs of the ids that belong to the offsets
// `offsets`: one, or one for each row if `rows` ≥ 0. Empty if some ids are not
// a whole input or a whole row of a matrix.
std::vector<int> IdsOf(const Graph& graph,
                       const std::vector<models::IdInput>& uses,
                       ValueId offsets, int64_t rows) {
  using Extent = models::IdInput::Extent;
  std::vector<int> found(rows < 0 ? 1 : static_cast<size_t>(rows), -1);
  for (const models::IdInput& use : uses) {
    if (use.input != offsets || !use.is_offsets || use.column >= 0 ||
        (use.row >= 0) != (rows >= 0)) {
      continue;
    }
    const auto input =
        std::find(graph.inputs.begin(), graph.inputs.end(), use.ids);
    if (input == graph.inputs.end()) continue;
    // Each row of a matrix of offsets needs a row of ids, or a list of its own.
    const bool list = graph.value(use.ids).shape.size() == 1;
    const bool whole =
        use.ids_extent == Extent::kAll
            ? rows < 0 || list
            : rows >= 0 && use.ids_extent == Extent::kRow;
    const auto row = static_cast<size_t>(std::max<int64_t>(use.row, 0));
    if (whole && row < found.size()) {
      found[row] = static_cast<int>(input - graph.inputs.begin());
    }
  }
  if (std::count(found.begin(), found.end(), -1) > 0) return {};
  return found;
}

// Bytes of one entry of dimension `dim`; nullopt if the view is invalid.
std::optional<size_t> EntryBytes(const TensorView& view, size_t dim) {
  if (view.dims.size() <= dim || view.dims[dim] <= 0 || view.data == nullptr) {
    return std::nullopt;
  }
  const auto bytes = base::ByteSize(view.dtype, view.dims);
  if (!bytes.ok() || *bytes != view.bytes) return std::nullopt;
  size_t entry = base::SizeOf(view.dtype);
  for (size_t d = dim + 1; d < view.dims.size(); ++d) {
    entry *= static_cast<size_t>(view.dims[d]);
  }
  return entry;
}

}  // namespace

int64_t SmallestBatch(const Graph& graph) {
  if (graph.batch_symbol.empty() || graph.min_batch <= 1) return 1;
  return models::RowDependenceOf(graph).use == models::RowUse::kAlone
             ? 1
             : graph.min_batch;
}

BatchPadding::Input BatchPadding::Classify(
    const Graph& graph, const std::vector<models::IdInput>& uses, ValueId id) {
  bool is_offsets = false;
  int64_t pieces = 0;
  for (const models::IdInput& use : uses) {
    is_offsets |= use.input == id && use.is_offsets;
    if (use.lengths == id) pieces = use.pieces;
  }
  const models::Value& value = graph.value(id);
  Input input;
  input.name = value.name;
  if (value.kind != models::ValueKind::kTensor || !value.has_shape) {
    return input;
  }
  // One dimension can be extended by copies. B + 1 offsets get copies of the
  // last offset, which make empty bags. B offsets get the number of ids, where
  // the added bags begin. A matrix of offsets has the bags of a table in each
  // row. B lengths get zeros.
  const std::string& batch = graph.batch_symbol;
  const int64_t rows =
      value.shape.size() == 2 ? value.shape[0].constant().value_or(-1) : -1;
  for (size_t d = 0; d < value.shape.size(); ++d) {
    if (!Mentions(value.shape[d], batch)) continue;
    if (input.rule != Rule::kKeep || (is_offsets && d > 0 && rows < 0)) {
      input.rule = Rule::kImpossible;
      break;
    }
    input.rule = pieces > 0 ? Rule::kAppendZero : Rule::kRepeatLast;
    input.dim = d;
    // A list has the lengths of piece after piece, a matrix has them in rows.
    if (pieces > 0 && value.shape.size() == 1) input.pieces = pieces;
    if (input.pieces > 1) {
      if (value.shape[d] != models::SymExpr::Symbol(batch) * input.pieces) {
        input.rule = Rule::kImpossible;
      }
      continue;
    }
    const int64_t entries = models::EntriesPerItem(graph, uses, id, d);
    if (entries > 1) {
      input.entries = entries;
      continue;
    }
    const auto extra =
        (value.shape[d] - models::SymExpr::Symbol(batch)).constant();
    if (extra == 0 && is_offsets) {
      input.ids = IdsOf(graph, uses, id, rows);
      const bool counts =
          !input.ids.empty() && base::IsInt32OrInt64(value.dtype);
      input.rule = counts ? Rule::kAppendCount : Rule::kImpossible;
    } else if (extra == 1 && is_offsets) {
      input.extra = 1;
    } else if (extra != 0) {
      input.rule = Rule::kImpossible;
    }
  }
  return input;
}

BatchPadding::BatchPadding(const Graph& graph)
    : signature_(graph, graph.inputs, {}),
      min_batch_(graph.batch_symbol.empty() ? 1 : graph.min_batch) {
  if (min_batch_ <= 1) return;
  const models::RowDependence rows = models::RowDependenceOf(graph);
  may_pad_ = rows.use == models::RowUse::kAlone;
  why_not_ = rows.why;
  const std::vector<models::IdInput> uses = models::FindIdInputs(graph);
  for (ValueId id : graph.inputs) {
    inputs_.push_back(Classify(graph, uses, id));
  }
  for (ValueId id : graph.outputs) {
    const models::Value& value = graph.value(id);
    output_has_rows_.push_back(value.has_shape && !value.shape.empty() &&
                               value.shape[0].symbol() == graph.batch_symbol);
    for (size_t d = output_has_rows_.back() ? 1 : 0; d < value.shape.size();
         ++d) {
      if (Mentions(value.shape[d], graph.batch_symbol)) uncut_ = value.name;
    }
  }
}

int64_t BatchPadding::CountOfIds(absl::Span<const TensorView> inputs,
                                 const Input& offsets, size_t row) {
  if (offsets.dim == 0) return inputs[offsets.ids[0]].num_elements();
  // A request with another number of rows is refused by Signature::Bind().
  const size_t known = std::min(row, offsets.ids.size() - 1);
  const base::Dims& dims = inputs[offsets.ids[known]].dims;
  return dims.empty() ? 0 : dims.back();
}

absl::Status BatchPadding::Pad(absl::Span<const TensorView> inputs,
                               PaddedBatch& batch) const {
  batch.inputs_.assign(inputs.begin(), inputs.end());
  batch.rows_.reset();
  if (min_batch_ <= 1 || inputs.size() != inputs_.size()) {
    return absl::OkStatus();
  }
  const auto rows = signature_.Batch(inputs);
  if (!rows || *rows <= 0 || *rows >= min_batch_) return absl::OkStatus();
  // The message names an input that has the request's rows, so that its client
  // sees where the batch comes from.
  if (!may_pad_) {
    const auto input = std::find_if(
        inputs_.begin(), inputs_.end(),
        [](const Input& each) { return each.rule != Rule::kKeep; });
    return absl::InvalidArgumentError(absl::StrCat(
        "input '", input == inputs_.end() ? "" : input->name,
        "': the batch is ", *rows, "; the model needs ", min_batch_,
        " rows or more, and rows added to fill the batch could change the "
        "results of the others",
        why_not_.empty() ? "" : ": ", why_not_));
  }
  if (!uncut_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "result '", uncut_, "': the batch is ", *rows, "; the model needs ",
        min_batch_, " rows, and this result cannot be cut to the batch"));
  }
  const int64_t added = min_batch_ - *rows;
  batch.memory_.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& rule = inputs_[i];
    if (rule.rule == Rule::kKeep) continue;
    if (rule.rule == Rule::kImpossible) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input '", rule.name, "': the batch is ", *rows, "; the model needs ",
          min_batch_, " rows, and this input cannot be padded to that"));
    }
    const TensorView& view = inputs[i];
    const auto entry = EntryBytes(view, rule.dim);
    // An invalid input stays as it is: Signature::Bind() refuses it with its
    // own message.
    if (!entry || view.dims[rule.dim] !=
                      *rows * rule.pieces * rule.entries + rule.extra) {
      continue;
    }
    // A run of items for each piece, and for each row of a feature-major
    // matrix.
    const size_t run =
        static_cast<size_t>(view.dims[rule.dim] / rule.pieces) * *entry;
    const size_t runs = run == 0 ? 0 : view.bytes / run;
    const size_t item = static_cast<size_t>(rule.entries) * *entry;
    const size_t padded_run = run + static_cast<size_t>(added) * item;
    const size_t bytes = runs * padded_run;
    base::AlignedBuffer& memory = batch.memory_[i];
    // Copied into memory of the batch, since the request's memory ends with its
    // last row.
    if (bytes > memory.size())
      memory = base::AlignedBuffer(std::bit_ceil(bytes));
    for (size_t k = 0; k < runs; ++k) {
      const std::byte* const from = view.data + k * run;
      std::byte* const to = memory.data() + k * padded_run;
      std::memcpy(to, from, run);
      for (size_t at = run; at < padded_run; at += item) {
        if (rule.rule == Rule::kAppendCount) {
          base::SetInt(view.dtype, to + at, 0, CountOfIds(inputs, rule, k));
        } else if (rule.rule == Rule::kAppendZero) {
          std::memset(to + at, 0, item);
        } else {
          std::memcpy(to + at, from + run - item, item);
        }
      }
    }
    TensorView& padded = batch.inputs_[i];
    padded.dims[rule.dim] += added * rule.pieces * rule.entries;
    padded.data = memory.data();
    padded.bytes = bytes;
  }
  batch.rows_ = rows;
  return absl::OkStatus();
}

void BatchPadding::Trim(const PaddedBatch& batch,
                        absl::Span<TensorView> outputs) const {
  if (!batch.rows_) return;
  for (size_t i = 0; i < outputs.size() && i < output_has_rows_.size(); ++i) {
    TensorView& view = outputs[i];
    if (!output_has_rows_[i] || view.dims.empty() ||
        view.dims[0] < *batch.rows_) {
      continue;
    }
    // The added rows are the last ones of a dense row-major tensor, so that a
    // smaller view of the same memory drops them.
    const size_t entry = view.bytes / static_cast<size_t>(view.dims[0]);
    view.dims[0] = *batch.rows_;
    view.bytes = entry * static_cast<size_t>(*batch.rows_);
  }
}

}  // namespace refract::runtime
