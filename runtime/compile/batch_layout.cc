#include "runtime/compile/batch_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "models/rows/row_dependence.h"
#include "runtime/cpu/look_ups/ids.h"
#include "runtime/stable_inputs.h"

namespace refract::runtime {
namespace {

using base::TensorView;

// Inputs that are the same for all rows go into the key, by their digest where
// they are longer than this …
constexpr size_t kMostKeyBytes = 64;
// … and not at all beyond this: a digest of 1 MiB takes about 0.1 ms.
constexpr size_t kMostSameBytes = size_t{1} << 20;

// Entries that each row has in dimension 0; 0 unless dimension 0 counts rows
// and no other dimension has the batch.
int64_t EntriesPerRow(const models::Graph& graph,
                      const std::vector<models::IdInput>& uses,
                      models::ValueId id) {
  const models::Value& value = graph.value(id);
  if (value.kind != models::ValueKind::kTensor || !value.has_shape ||
      value.shape.empty() ||
      std::any_of(
          value.shape.begin() + 1, value.shape.end(), [&](const auto& dim) {
            return dim.is_unknown() || Mentions(dim, graph.batch_symbol);
          })) {
    return 0;
  }
  return models::EntriesPerItem(graph, uses, id, 0);
}

// Whether all rows of a request share the value: nothing of it counts rows.
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

// Number of rows of a tensor of offsets.
int64_t RowsOf(const TensorView& offsets, bool include_last) {
  return offsets.dims[0] - (include_last ? 1 : 0);
}

void AppendBytes(std::string& text, const void* data, size_t bytes) {
  if (bytes > 0) text.append(static_cast<const char*>(data), bytes);
}

}  // namespace

std::byte* RowBuffers::Get(size_t input, size_t bytes) {
  if (input >= buffers_.size()) buffers_.resize(input + 1);
  base::AlignedBuffer& buffer = buffers_[input];
  if (buffer.data() == nullptr || buffer.size() < bytes) {
    // Powers of two, so that sizes seen before need no allocation.
    buffer = base::AlignedBuffer(std::bit_ceil(std::max<size_t>(bytes, 64)));
  }
  return buffer.data();
}

BatchLayout::BatchLayout(const models::Graph& graph, const Part& part,
                         const models::RowDependence& rows) {
  const std::string& batch = graph.batch_symbol;
  if (batch.empty()) {
    why_not_ = "the model has no batch dimension";
    return;
  }
  FoundBags found = FindBagInputs(graph, part);
  bags_ = std::move(found.bags);
  // Bags of ids count as rows here: Gather() and Slice() move their offsets.
  // Other callers that ask whether requests may be split do not move them.
  if (rows.use != models::RowUse::kAlone ||
      (!rows.may_split && bags_.empty())) {
    why_not_ = rows.why.empty() ? "rows may depend on each other" : rows.why;
  } else {
    why_not_ = std::move(found.why_not);
  }
  // The result of a merged execution could not be divided again: a request does
  // not know how many of its elements are in it.
  if (why_not_.empty() && SizesDependOnData(graph, part)) {
    why_not_ = "sizes of some tensors depend on the contents of others";
  }
  if (!why_not_.empty()) return;
  const std::vector<models::IdInput> uses = models::FindIdInputs(graph);
  bool any_rows = !bags_.empty();
  for (size_t i = 0; i < part.inputs.size(); ++i) {
    const models::Value& value = graph.value(part.inputs[i]);
    entries_.push_back(EntriesPerRow(graph, uses, part.inputs[i]));
    const auto is_offsets = [i](const BagInputs& bag) {
      return bag.offsets == i;
    };
    const auto is_entry = [i](const BagInputs& bag) {
      return std::find(bag.entries.begin(), bag.entries.end(), i) !=
             bag.entries.end();
    };
    if (std::any_of(bags_.begin(), bags_.end(), is_offsets)) {
      inputs_.push_back(Rule::kOffsets);
    } else if (std::any_of(bags_.begin(), bags_.end(), is_entry)) {
      inputs_.push_back(Rule::kEntries);
    } else if (entries_[i] > 0) {
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
    // Callers cut results by the number of rows.
    if (EntriesPerRow(graph, uses, id) != 1) {
      why_not_ = absl::StrCat("output '", value.name,
                              "' does not have one entry per row");
      return;
    }
  }
}

std::optional<int64_t> BatchLayout::Rows(
    absl::Span<const TensorView> inputs) const {
  // Every input with rows must have the same number of them, and as many bytes
  // as its dims say: Gather() and Slice() copy without a further check.
  if (inputs.size() != inputs_.size()) return std::nullopt;
  std::optional<int64_t> rows;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs_[i] != Rule::kRows) continue;
    const base::Dims& dims = inputs[i].dims;
    if (!dims.empty() && dims[0] == kUnknownRows) continue;
    if (dims.empty() || dims[0] < 1 || dims[0] % entries_[i] != 0) {
      return std::nullopt;
    }
    const int64_t of_input = dims[0] / entries_[i];
    if (rows.has_value() && *rows != of_input) return std::nullopt;
    rows = of_input;
    const auto bytes = base::ByteSize(inputs[i].dtype, dims);
    if (!bytes.ok() || *bytes != inputs[i].bytes) return std::nullopt;
  }
  for (const BagInputs& bag : bags_) {
    const TensorView& offsets = inputs[bag.offsets];
    if (offsets.dims.size() != 1 || (offsets.dtype != base::DType::kInt64 &&
                                     offsets.dtype != base::DType::kInt32)) {
      return std::nullopt;
    }
    const int64_t of_bags = RowsOf(offsets, bag.include_last);
    if (of_bags < 1 || (rows.has_value() && *rows != of_bags)) {
      return std::nullopt;
    }
    rows = of_bags;
    const auto bytes = base::ByteSize(offsets.dtype, offsets.dims);
    if (!bytes.ok() || *bytes != offsets.bytes) return std::nullopt;
    for (const size_t i : bag.entries) {
      const TensorView& entries = inputs[i];
      if (entries.dims.size() != 1 ||
          entries.dims[0] != inputs[bag.entries[0]].dims[0]) {
        return std::nullopt;
      }
      const auto size = base::ByteSize(entries.dtype, entries.dims);
      if (!size.ok() || *size != entries.bytes) return std::nullopt;
    }
  }
  return rows;
}

std::string BatchLayout::MergeKey(absl::Span<const TensorView> inputs,
                                  std::string key) const {
  // Equal keys mean that the requests may be executed together. A request with
  // an empty key runs alone. The string is taken by value, so that its memory
  // is used again.
  key.clear();
  if (!Rows(inputs).has_value()) return key;
  const auto none = [&key] {
    key.clear();
    return std::move(key);
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorView& view = inputs[i];
    key.push_back(static_cast<char>(view.dtype));
    key.push_back(static_cast<char>(view.dims.size()));
    switch (inputs_[i]) {
      // Bags of other requests may have any number of ids.
      case Rule::kOffsets:
      case Rule::kEntries:
        break;
      // Dimensions behind the rows must agree, since rows are copied one behind
      // the other.
      case Rule::kRows:
        AppendBytes(key, view.dims.data() + 1,
                    (view.dims.size() - 1) * sizeof(view.dims[0]));
        break;
      case Rule::kCount:
        // Gather() writes the sum of the rows, so that the value itself is no
        // part of the key.
        if (view.dtype != base::DType::kInt64 ||
            view.bytes != sizeof(int64_t)) {
          return none();
        }
        break;
      case Rule::kSame: {
        const auto bytes = base::ByteSize(view.dtype, view.dims);
        if ((view.data == nullptr && view.bytes > 0) || !bytes.ok() ||
            *bytes != view.bytes || view.bytes > kMostSameBytes) {
          return none();
        }
        AppendBytes(key, view.dims.data(),
                    view.dims.size() * sizeof(view.dims[0]));
        // A peer may change the bytes after this call, so that Gather()
        // compares them again.
        if (view.bytes <= kMostKeyBytes) {
          AppendBytes(key, view.data, view.bytes);
        } else {
          const base::Digest digest = base::DigestOf({view.data, view.bytes});
          AppendBytes(key, &digest, sizeof(digest));
        }
        break;
      }
    }
  }
  return key;
}

absl::Status BatchLayout::GatherBags(
    const BagInputs& bag,
    absl::Span<const absl::Span<const TensorView>> requests,
    RowBuffers& buffers, std::vector<TensorView>& gathered) const {
  // Offsets of the requests are joined to one vector: each request's offsets
  // move by the number of entries before it. With a last offset per request, N
  // requests have N − 1 offsets fewer in the batch than apart.
  TensorView& offsets = gathered[bag.offsets];
  const size_t width = base::SizeOf(offsets.dtype);
  int64_t rows = 0;
  for (const auto& inputs : requests) {
    rows += RowsOf(inputs[bag.offsets], bag.include_last);
  }
  offsets.dims[0] = rows + (bag.include_last ? 1 : 0);
  offsets.bytes = static_cast<size_t>(offsets.dims[0]) * width;
  std::byte* place = buffers.Get(bag.offsets, offsets.bytes);
  offsets.data = place;
  int64_t before = 0;  // entries of the earlier requests
  for (const auto& inputs : requests) {
    const TensorView& own = inputs[bag.offsets];
    const int64_t own_rows = RowsOf(own, bag.include_last);
    const int64_t entries = inputs[bag.entries[0]].dims[0];
    // Copied first and checked in the copy, which no peer can write. The next
    // request's first offset takes the place of this request's last offset.
    std::memcpy(place, own.data, own.bytes);
    REFRACT_RETURN_IF_ERROR(CheckAndMove(own.dtype, place, own_rows,
                                         bag.include_last, 0, entries, before));
    place += static_cast<size_t>(own_rows) * width;
    before += entries;
  }
  for (const size_t i : bag.entries) {
    TensorView& view = gathered[i];
    view.dims[0] = before;
    view.bytes = static_cast<size_t>(before) * base::SizeOf(view.dtype);
    std::byte* next = buffers.Get(i, view.bytes);
    view.data = next;
    for (const auto& inputs : requests) {
      if (inputs[i].bytes == 0) continue;
      std::memcpy(next, inputs[i].data, inputs[i].bytes);
      next += inputs[i].bytes;
    }
  }
  return absl::OkStatus();
}

absl::Status BatchLayout::SliceBags(const BagInputs& bag, int64_t first,
                                    int64_t count, RowBuffers& buffers,
                                    std::vector<TensorView>& slice) const {
  TensorView& offsets = slice[bag.offsets];
  const size_t width = base::SizeOf(offsets.dtype);
  const int64_t rows = RowsOf(offsets, bag.include_last);
  const int64_t entries = slice[bag.entries[0]].dims[0];
  // These three offsets are checked before entries are addressed by them; the
  // offsets between them by CheckAndMove().
  const int64_t begin = cpu::IntAt(offsets, first);
  const int64_t end = first + count < rows || bag.include_last
                          ? cpu::IntAt(offsets, first + count)
                          : entries;
  if (begin < 0 || end < begin || end > entries || (first == 0 && begin != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("offsets of bags: rows ", first, " to ", first + count,
                     " have the entries ", begin, " to ", end,
                     ", but the bags have ", entries));
  }
  offsets.dims[0] = count + (bag.include_last ? 1 : 0);
  offsets.bytes = static_cast<size_t>(offsets.dims[0]) * width;
  std::byte* const place = buffers.Get(bag.offsets, offsets.bytes);
  std::memcpy(place, offsets.data + static_cast<size_t>(first) * width,
              offsets.bytes);
  offsets.data = place;
  REFRACT_RETURN_IF_ERROR(CheckAndMove(offsets.dtype, place, count,
                                       bag.include_last, begin, end, 0));
  for (const size_t i : bag.entries) {
    TensorView& view = slice[i];
    const size_t entry = base::SizeOf(view.dtype);
    view.data += static_cast<size_t>(begin) * entry;
    view.dims[0] = end - begin;
    view.bytes = static_cast<size_t>(end - begin) * entry;
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const TensorView>> BatchLayout::Gather(
    absl::Span<const absl::Span<const TensorView>> requests,
    RowBuffers& buffers) const {
  std::vector<TensorView>& gathered = buffers.views();
  gathered.assign(requests[0].begin(), requests[0].end());
  int64_t rows = 0;
  for (const auto& inputs : requests) rows += *Rows(inputs);
  for (size_t i = 0; i < gathered.size(); ++i) {
    TensorView& view = gathered[i];
    if (inputs_[i] == Rule::kOffsets || inputs_[i] == Rule::kEntries) continue;
    if (inputs_[i] == Rule::kSame) {
      // The keys were equal, but peers may have written since. One copy is
      // compared with every request and then used.
      std::byte* const place = buffers.Get(i, view.bytes);
      if (view.bytes > 0) std::memcpy(place, view.data, view.bytes);
      view.data = place;
      for (const auto& inputs : requests.subspan(1)) {
        if (inputs[i].bytes != view.bytes ||
            (view.bytes > 0 &&
             std::memcmp(place, inputs[i].data, view.bytes) != 0)) {
          return absl::InvalidArgumentError(
              "the requests differ in an input that all rows share");
        }
      }
      continue;
    }
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
    view.dims[0] = rows * entries_[i];
    for (const auto& inputs : requests) {
      if (inputs[i].bytes == 0) continue;
      std::memcpy(place, inputs[i].data, inputs[i].bytes);
      place += inputs[i].bytes;
    }
  }
  for (const BagInputs& bag : bags_) {
    REFRACT_RETURN_IF_ERROR(GatherBags(bag, requests, buffers, gathered));
  }
  return absl::MakeConstSpan(gathered);
}

absl::StatusOr<absl::Span<const TensorView>> BatchLayout::Slice(
    absl::Span<const TensorView> inputs, int64_t first, int64_t count,
    RowBuffers& buffers) const {
  std::vector<TensorView>& slice = buffers.views();
  slice.assign(inputs.begin(), inputs.end());
  for (size_t i = 0; i < slice.size(); ++i) {
    TensorView& view = slice[i];
    if (inputs_[i] == Rule::kCount) {
      std::byte* const place = buffers.Get(i, sizeof(count));
      std::memcpy(place, &count, sizeof(count));
      view.data = place;
    } else if (inputs_[i] == Rule::kRows) {
      const RowRange range =
          RangeOfRows(view, first * entries_[i], count * entries_[i]);
      view.data += range.offset;
      view.bytes = range.bytes;
      view.dims[0] = count * entries_[i];
    }
  }
  for (const BagInputs& bag : bags_) {
    REFRACT_RETURN_IF_ERROR(SliceBags(bag, first, count, buffers, slice));
  }
  return absl::MakeConstSpan(slice);
}

RowRange RangeOfRows(const TensorView& output, int64_t first, int64_t rows) {
  const size_t row_bytes = RowBytes(output);
  return {row_bytes * static_cast<size_t>(first),
          row_bytes * static_cast<size_t>(rows)};
}

}  // namespace refract::runtime
