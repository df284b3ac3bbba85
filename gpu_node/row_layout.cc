#include "gpu_node/row_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/stable_inputs.h"

namespace refract::gpu_node {
namespace {

using base::TensorView;

// Inputs that are the same for all rows are compared byte by byte.
constexpr size_t kMostSameBytes = 4096;

bool Mentions(const models::SymExpr& expr, const std::string& symbol) {
  const std::vector<std::string> symbols = expr.Symbols();
  return std::find(symbols.begin(), symbols.end(), symbol) != symbols.end();
}

// Whether dimension 0 is the batch and no other has it.
bool HasRows(const models::Value& value, const std::string& batch) {
  if (value.kind != models::ValueKind::kTensor || !value.has_shape ||
      value.shape.empty() || value.shape[0].symbol() != batch) {
    return false;
  }
  return std::none_of(value.shape.begin() + 1, value.shape.end(),
                      [&](const auto& dim) {
                        return dim.is_unknown() || Mentions(dim, batch);
                      });
}

bool IsSame(const models::Value& value, const std::string& batch) {
  if (value.kind != models::ValueKind::kTensor) {
    return !value.sym_value.is_unknown() && !Mentions(value.sym_value, batch);
  }
  return value.has_shape && std::none_of(value.shape.begin(), value.shape.end(),
                                         [&](const auto& dim) {
                                           return dim.is_unknown() ||
                                                  Mentions(dim, batch);
                                         });
}

size_t RowBytes(const TensorView& view) {
  return view.dims.empty() || view.dims[0] <= 0
             ? 0
             : view.bytes / static_cast<size_t>(view.dims[0]);
}

void AppendBytes(std::string& text, const void* data, size_t bytes) {
  if (bytes > 0) text.append(static_cast<const char*>(data), bytes);
}

}  // namespace

std::byte* RowBuffers::Get(size_t input, size_t bytes) {
  if (input >= buffers_.size()) buffers_.resize(input + 1);
  base::AlignedBuffer& buffer = buffers_[input];
  if (buffer.data() == nullptr || buffer.size() < bytes) {
    buffer = base::AlignedBuffer(std::bit_ceil(std::max<size_t>(bytes, 64)));
  }
  return buffer.data();
}

RowLayout::RowLayout(const models::Graph& graph, const runtime::Part& part,
                     const models::RowDependence& rows) {
  const std::string& batch = graph.batch_symbol;
  if (batch.empty()) {
    why_not_ = "the model has no batch dimension";
    return;
  }
  if (rows.use != models::RowUse::kAlone || !rows.may_split) {
    why_not_ =
        rows.why.empty() ? "its rows may depend on each other" : rows.why;
  }
  if (why_not_.empty() && runtime::SizesDependOnData(graph, part)) {
    why_not_ = "sizes depend on data";
  }
  if (!why_not_.empty()) return;
  bool any_rows = false;
  for (const models::ValueId id : part.inputs) {
    const models::Value& value = graph.value(id);
    if (HasRows(value, batch)) {
      inputs_.push_back(Rule::kRows);
      any_rows = true;
    } else if (value.kind == models::ValueKind::kSymInt &&
               value.sym_value.symbol() == batch) {
      inputs_.push_back(Rule::kCount);
    } else if (IsSame(value, batch)) {
      inputs_.push_back(Rule::kSame);
    } else {
      why_not_ = absl::StrCat("input '", value.name,
                              "' does not have one entry per row");
      return;
    }
  }
  if (!any_rows) {
    why_not_ = "no input has one entry per row";
    return;
  }
  for (const models::ValueId id : part.outputs) {
    const models::Value& value = graph.value(id);
    if (!HasRows(value, batch)) {
      why_not_ = absl::StrCat("output '", value.name,
                              "' does not have one entry per row");
      return;
    }
  }
}

std::optional<int64_t> RowLayout::Rows(
    absl::Span<const TensorView> inputs) const {
  if (inputs.size() != inputs_.size()) return std::nullopt;
  std::optional<int64_t> rows;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs_[i] != Rule::kRows) continue;
    const base::Dims& dims = inputs[i].dims;
    if (!dims.empty() && dims[0] == kUnknownRows) continue;
    if (dims.empty() || dims[0] < 1) return std::nullopt;
    if (rows.has_value() && *rows != dims[0]) return std::nullopt;
    rows = dims[0];
    const auto bytes = base::ByteSize(inputs[i].dtype, dims);
    if (!bytes.ok() || *bytes != inputs[i].bytes) return std::nullopt;
  }
  return rows;
}

std::string RowLayout::MergeKey(absl::Span<const TensorView> inputs,
                                bool settled) const {
  if (!Rows(inputs).has_value()) return "";
  std::string key;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorView& view = inputs[i];
    key.push_back(static_cast<char>(view.dtype));
    key.push_back(static_cast<char>(view.dims.size()));
    switch (inputs_[i]) {
      case Rule::kRows:
        AppendBytes(key, view.dims.data() + 1,
                    (view.dims.size() - 1) * sizeof(view.dims[0]));
        break;
      case Rule::kCount:
        // The rows' own number is what a merged request is given.
        if (view.dtype != base::DType::kInt64 ||
            view.bytes != sizeof(int64_t)) {
          return "";
        }
        break;
      case Rule::kSame: {
        const auto bytes = base::ByteSize(view.dtype, view.dims);
        if (!settled || (view.data == nullptr && view.bytes > 0) ||
            !bytes.ok() || *bytes != view.bytes ||
            view.bytes > kMostSameBytes) {
          return "";
        }
        AppendBytes(key, view.dims.data(),
                    view.dims.size() * sizeof(view.dims[0]));
        AppendBytes(key, view.data, view.bytes);
        break;
      }
    }
  }
  return key;
}

bool RowLayout::SameButForRows(absl::Span<const TensorView> a,
                               absl::Span<const TensorView> b) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (a[i].dtype != b[i].dtype || a[i].dims.size() != b[i].dims.size()) {
      return false;
    }
    const size_t first = inputs_[i] == Rule::kRows ? 1 : 0;
    if (!std::equal(a[i].dims.begin() + first, a[i].dims.end(),
                    b[i].dims.begin() + first)) {
      return false;
    }
  }
  return true;
}

std::vector<TensorView> RowLayout::Gather(
    absl::Span<const absl::Span<const TensorView>> requests,
    RowBuffers& buffers) const {
  std::vector<TensorView> gathered(requests[0].begin(), requests[0].end());
  int64_t rows = 0;
  for (const auto& inputs : requests) rows += *Rows(inputs);
  for (size_t i = 0; i < gathered.size(); ++i) {
    TensorView& view = gathered[i];
    if (inputs_[i] == Rule::kSame) continue;
    if (inputs_[i] == Rule::kCount) {
      std::byte* const place = buffers.Get(i, sizeof(rows));
      std::memcpy(place, &rows, sizeof(rows));
      view.data = place;
      continue;
    }
    size_t bytes = 0;
    for (const auto& inputs : requests) bytes += inputs[i].bytes;
    std::byte* place = buffers.Get(i, bytes);
    view.data = place;
    view.bytes = bytes;
    view.dims[0] = rows;
    for (const auto& inputs : requests) {
      if (inputs[i].bytes == 0) continue;
      std::memcpy(place, inputs[i].data, inputs[i].bytes);
      place += inputs[i].bytes;
    }
  }
  return gathered;
}

std::vector<TensorView> RowLayout::Slice(absl::Span<const TensorView> inputs,
                                         int64_t first, int64_t count,
                                         RowBuffers& buffers) const {
  std::vector<TensorView> slice(inputs.begin(), inputs.end());
  for (size_t i = 0; i < slice.size(); ++i) {
    TensorView& view = slice[i];
    if (inputs_[i] == Rule::kCount) {
      std::byte* const place = buffers.Get(i, sizeof(count));
      std::memcpy(place, &count, sizeof(count));
      view.data = place;
    } else if (inputs_[i] == Rule::kRows) {
      const RowRange range = RangeOfRows(view, first, count);
      view.data += range.offset;
      view.bytes = range.bytes;
      view.dims[0] = count;
    }
  }
  return slice;
}

RowRange RangeOfRows(const TensorView& output, int64_t first, int64_t rows) {
  const size_t row_bytes = RowBytes(output);
  return {row_bytes * static_cast<size_t>(first),
          row_bytes * static_cast<size_t>(rows)};
}

}  // namespace refract::gpu_node
