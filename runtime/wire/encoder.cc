// Encoding of messages in two steps: Prepare() chooses the form of each value
// for this request, so that the message can be allocated; Write() fills it.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/wire/codec.h"
#include "runtime/wire/elements.h"

namespace refract::runtime::wire {
namespace {

using models::WireType;

// Elements of a row of the last dimension.
size_t ColumnsOf(const base::TensorView& value, WireType type) {
  const bool in_rows = models::RecordOf(type).row_extra > 0;
  return in_rows ? static_cast<size_t>(value.dims.back()) : 1;
}

template <typename T>
void WriteIndex(absl::Span<const int32_t> index, std::byte* to) {
  auto* entries = reinterpret_cast<T*>(to);
  for (size_t i = 0; i < index.size(); ++i) {
    entries[i] = static_cast<T>(index[i]);
  }
}

}  // namespace

absl::StatusOr<absl::Span<const base::TensorSpec>> Encoder::Prepare(
    absl::Span<const base::TensorView> values) {
  if (values.size() != codec_.values().size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        values.size(), " values to encode, wanted ", codec_.values().size()));
  }
  values_.assign(values.begin(), values.end());
  choices_.resize(values.size());  // each keeps the memory of its rows
  specs_.clear();
  size_t expanded = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const base::TensorView& view = values[i];
    const Codec::Value& value = codec_.values()[i];
    const bool needs_rows = value.form.unique_rows ||
                            models::RecordOf(value.form.type).row_extra > 0;
    if ((!value.form.is_plain() && view.dtype != value.dtype) ||
        (needs_rows && view.dims.empty())) {
      return absl::InvalidArgumentError(
          absl::StrCat("value '", value.name, "' is ", base::Name(view.dtype),
                       base::DimsToString(view.dims),
                       ", which its planned wire form cannot encode"));
    }
    Choice& choice = choices_[i];
    choice.type = value.form.type;
    choice.unique = false;
    // Decided per request: one element that does not fit keeps the dtype.
    if (!Fit(choice.type, view.data, view.num_elements())) {
      choice.type = WireType::kAsIs;
    }
    base::TensorSpec spec{CarrierOf(view.dtype, choice.type), view.dims};
    const int64_t extra = models::RecordOf(choice.type).row_extra;
    if (extra > 0) spec.dims.back() += extra;
    base::TensorSpec index{base::DType::kUInt8, {0}};
    // Counts against the receiver's limit, so that it never refuses a message.
    const size_t grown =
        value.form.unique_rows
            ? view.bytes + static_cast<size_t>(view.dims[0]) * kExpandedRowExtra
            : 0;
    if (value.form.unique_rows && view.bytes > 0 && view.dims[0] > 1 &&
        view.dims[0] <= INT32_MAX && expanded + grown <= kMaxExpandedBytes) {
      // Whether rows repeat depends on the request, so that each request
      // decides.
      finder_.Find(view, choice.rows);
      const UniqueRows& rows = choice.rows;
      const size_t row_bytes =
          WireRowBytes({view.dtype, view.dims}, choice.type);
      const base::TensorSpec index_spec = rows.index_spec();
      const size_t index_bytes =
          rows.index.size() * base::SizeOf(index_spec.dtype);
      // An index is used only where rows and index, both padded, are shorter
      // than all rows.
      if (RoundUp(rows.first.size() * row_bytes) + RoundUp(index_bytes) <
          RoundUp(view.dims[0] * row_bytes)) {
        choice.unique = true;
        expanded += grown;
        spec.dims[0] = static_cast<int64_t>(rows.first.size());
        index = index_spec;
      }
    }
    specs_.push_back(std::move(spec));
    if (value.form.unique_rows) specs_.push_back(std::move(index));
  }
  return absl::MakeConstSpan(specs_);
}

void Encoder::WriteValue(const base::TensorView& value, const Choice& choice,
                         std::byte* to) {
  if (value.bytes == 0) {
    // Rows without elements still have a scale and an offset.
    if (const int64_t extra = models::RecordOf(choice.type).row_extra) {
      size_t rows = 1;
      for (size_t d = 0; d + 1 < value.dims.size(); ++d) rows *= value.dims[d];
      std::memset(to, 0, rows * static_cast<size_t>(extra));
    }
    return;
  }
  const size_t columns = ColumnsOf(value, choice.type);
  if (!choice.unique) {
    return EncodeElements(value.dtype, choice.type, value.data,
                          value.num_elements(), columns, to, floats_);
  }
  const size_t rows = value.dims[0];
  const size_t row_bytes = value.bytes / rows;
  const size_t sent_bytes =
      WireRowBytes({value.dtype, value.dims}, choice.type);
  for (const int32_t row : choice.rows.first) {
    EncodeElements(value.dtype, choice.type, value.data + row * row_bytes,
                   value.num_elements() / rows, columns, to, floats_);
    to += sent_bytes;
  }
}

void Encoder::Write(absl::Span<std::byte* const> tensors) {
  for (size_t i = 0; i < values_.size(); ++i) {
    const Codec::Value& value = codec_.values()[i];
    const Choice& choice = choices_[i];
    // A plain value may have been computed in the message itself.
    if (tensors[value.tensor] != values_[i].data) {
      WriteValue(values_[i], choice, tensors[value.tensor]);
    }
    if (!choice.unique) continue;
    const absl::Span<const int32_t> index = choice.rows.index;
    std::byte* to = tensors[value.tensor + 1];
    switch (choice.rows.index_spec().dtype) {
      case base::DType::kUInt8:
        WriteIndex<uint8_t>(index, to);
        break;
      case base::DType::kInt16:
        WriteIndex<int16_t>(index, to);
        break;
      default:
        WriteIndex<int32_t>(index, to);
    }
  }
}

}  // namespace refract::runtime::wire
