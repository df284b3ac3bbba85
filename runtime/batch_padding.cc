#include "runtime/batch_padding.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/op_traits.h"
#include "models/rows/row_dependence.h"
#include "runtime/compile/bag_inputs.h"
#include "runtime/cpu/look_ups/ids.h"

namespace refract::runtime {
namespace {

using base::TensorView;
using models::Graph;
using models::ValueId;

// Number of elements; unknown if the shape is unknown.
models::SymExpr ElementsOf(const models::Value& value) {
  if (!value.has_shape) return {};
  models::SymExpr count = 1;
  for (const models::SymExpr& dim : value.shape) count = count * dim;
  return count;
}

// Index among the graph's inputs of the ids that belong to the offsets
// `offsets`; -1 if the ids are not a whole input.
int IdsOf(const Graph& graph, ValueId offsets) {
  for (const models::Node& node : graph.nodes) {
    const models::EmbeddingArgs names = models::EmbeddingArgsOf(node.op);
    if (names.offsets.empty()) continue;
    const ValueId read = node.ValueArg(names.offsets);
    const ValueId ids = node.ValueArg(names.indices);
    if (read == models::kNoValue || ids == models::kNoValue ||
        cpu::SourceOf(graph, read) != offsets) {
      continue;
    }
    const ValueId source = cpu::SourceOf(graph, ids);
    const auto input =
        std::find(graph.inputs.begin(), graph.inputs.end(), source);
    if (input != graph.inputs.end() &&
        ElementsOf(graph.value(source)) == ElementsOf(graph.value(ids))) {
      return static_cast<int>(input - graph.inputs.begin());
    }
  }
  return -1;
}

// Bytes of one entry of dimension 0; nullopt if the view is invalid.
std::optional<size_t> EntryBytes(const TensorView& view) {
  if (view.dims.empty() || view.dims[0] <= 0 || view.data == nullptr) {
    return std::nullopt;
  }
  const auto bytes = base::ByteSize(view.dtype, view.dims);
  if (!bytes.ok() || *bytes != view.bytes) return std::nullopt;
  return *bytes / static_cast<size_t>(view.dims[0]);
}

void StoreInt(base::DType dtype, int64_t value, std::byte* to) {
  if (dtype == base::DType::kInt32) {
    const auto narrow = static_cast<int32_t>(value);
    std::memcpy(to, &narrow, sizeof(narrow));
  } else {
    std::memcpy(to, &value, sizeof(value));
  }
}

}  // namespace

int64_t SmallestBatch(const Graph& graph) {
  if (graph.batch_symbol.empty() || graph.min_batch <= 1) return 1;
  return models::RowDependenceOf(graph).use == models::RowUse::kAlone
             ? 1
             : graph.min_batch;
}

BatchPadding::Input BatchPadding::Classify(const Graph& graph, ValueId id,
                                           bool is_offsets) {
  const models::Value& value = graph.value(id);
  Input input;
  input.name = value.name;
  if (value.kind != models::ValueKind::kTensor || !value.has_shape) {
    return input;
  }
  // Only dimension 0 can be extended by copies. B + 1 offsets get copies of the
  // last offset, which make empty bags. B offsets get the number of ids, where
  // the added bags begin.
  const std::string& batch = graph.batch_symbol;
  for (size_t d = 0; d < value.shape.size(); ++d) {
    if (!Mentions(value.shape[d], batch)) continue;
    input.rule = Rule::kRepeatLast;
    if (d > 0) {
      input.rule = Rule::kImpossible;
      break;
    }
    const auto extra =
        (value.shape[d] - models::SymExpr::Symbol(batch)).constant();
    if (extra == 0 && is_offsets) {
      input.ids = IdsOf(graph, id);
      input.rule = input.ids < 0 ? Rule::kImpossible : Rule::kAppendCount;
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
  const std::vector<models::IdInput> id_inputs = models::FindIdInputs(graph);
  for (ValueId id : graph.inputs) {
    const bool is_offsets = std::any_of(
        id_inputs.begin(), id_inputs.end(),
        [&](const auto& use) { return use.input == id && use.is_offsets; });
    inputs_.push_back(Classify(graph, id, is_offsets));
  }
  for (ValueId id : graph.outputs) {
    const models::Value& value = graph.value(id);
    output_has_rows_.push_back(value.has_shape && !value.shape.empty() &&
                               value.shape[0].symbol() == graph.batch_symbol);
  }
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
    const auto entry = EntryBytes(view);
    // An invalid input stays as it is: Signature::Bind() refuses it with its
    // own message.
    if (!entry || view.dims[0] != *rows + rule.extra) continue;
    const size_t bytes = view.bytes + static_cast<size_t>(added) * *entry;
    base::AlignedBuffer& memory = batch.memory_[i];
    // Copied into memory of the batch, since the request's memory ends with its
    // last row.
    if (bytes > memory.size())
      memory = base::AlignedBuffer(std::bit_ceil(bytes));
    std::memcpy(memory.data(), view.data, view.bytes);
    for (int64_t row = 0; row < added; ++row) {
      std::byte* const to =
          memory.data() + view.bytes + static_cast<size_t>(row) * *entry;
      if (rule.rule == Rule::kAppendCount) {
        StoreInt(view.dtype, inputs[rule.ids].num_elements(), to);
      } else {
        std::memcpy(to, view.data + view.bytes - *entry, *entry);
      }
    }
    TensorView& padded = batch.inputs_[i];
    padded.dims[0] += added;
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
