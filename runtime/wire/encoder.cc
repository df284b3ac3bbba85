// Encoding of messages in two steps: Prepare() chooses the form of each value
// for this request, so that the message can be allocated; Write() fills it.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
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

absl::Status Encoder::CheckForm(const Codec::Value& value,
                                const base::TensorView& view) const {
  const bool needs_rows =
      value.form.unique_rows || models::RecordOf(value.form.type).row_extra > 0;
  if ((value.form.is_plain() || view.dtype == value.dtype) &&
      !(needs_rows && view.dims.empty())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("value '", value.name, "' is ", base::Name(view.dtype),
                   base::DimsToString(view.dims),
                   ", which its planned wire form cannot encode"));
}

void Encoder::AddSpecs(const Codec::Value& value, const base::TensorView& view,
                       const Choice& choice) {
  base::TensorSpec spec{CarrierOf(view.dtype, choice.type), view.dims};
  const int64_t extra = models::RecordOf(choice.type).row_extra;
  if (extra > 0) spec.dims.back() += extra;
  if (choice.index != nullptr) {
    spec.dims[0] = static_cast<int64_t>(choice.index->first.size());
  }
  specs_.push_back(std::move(spec));
  if (!value.form.unique_rows) return;
  specs_.push_back(choice.index != nullptr
                       ? choice.index->index_spec()
                       : base::TensorSpec{base::DType::kUInt8, {0}});
}

absl::StatusOr<absl::Span<const base::TensorSpec>> Encoder::Prepare(
    absl::Span<const base::TensorView> values) {
  if (values.size() != codec_.values().size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        values.size(), " values to encode, wanted ", codec_.values().size()));
  }
  SetValues(values);
  choices_.resize(values.size());  // each keeps the memory of its rows
  specs_.clear();
  size_t expanded = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const base::TensorView& view = values[i];
    const Codec::Value& value = codec_.values()[i];
    REFRACT_RETURN_IF_ERROR(CheckForm(value, view));
    Choice& choice = choices_[i];
    choice.type = value.form.type;
    choice.index = nullptr;
    choice.all_rows = true;
    // Decided per request: one element that does not fit keeps the dtype.
    if (!Fit(choice.type, view.data, view.num_elements())) {
      choice.type = WireType::kAsIs;
    }
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
      if (choice.rows.Shortens(
              WireRowBytes({view.dtype, view.dims}, choice.type))) {
        choice.index = &choice.rows;
        expanded += grown;
      }
    }
    AddSpecs(value, view, choice);
  }
  return absl::MakeConstSpan(specs_);
}

absl::StatusOr<absl::Span<const base::TensorSpec>> Encoder::Prepare(
    absl::Span<const base::TensorView> values,
    absl::Span<const UniqueRows* const> indexes) {
  if (values.size() != codec_.values().size() ||
      indexes.size() != values.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(values.size(), " values with ", indexes.size(),
                     " indexes to encode, wanted ", codec_.values().size()));
  }
  SetValues(values);
  choices_.resize(values.size());
  specs_.clear();
  for (size_t i = 0; i < values.size(); ++i) {
    const Codec::Value& value = codec_.values()[i];
    REFRACT_RETURN_IF_ERROR(CheckForm(value, values[i]));
    Choice& choice = choices_[i];
    choice.type = value.form.type;
    choice.index = indexes[i];
    choice.all_rows = indexes[i] == nullptr;
    AddSpecs(value, values[i], choice);
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
  if (choice.index == nullptr || !choice.all_rows) {
    return EncodeElements(value.dtype, choice.type, value.data,
                          value.num_elements(), columns, to, floats_);
  }
  const size_t rows = value.dims[0];
  const size_t row_bytes = value.bytes / rows;
  const size_t sent_bytes =
      WireRowBytes({value.dtype, value.dims}, choice.type);
  for (const int32_t row : choice.index->first) {
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
    if (choice.index == nullptr) continue;
    const absl::Span<const int32_t> index = choice.index->index;
    std::byte* to = tensors[value.tensor + 1];
    switch (choice.index->index_spec().dtype) {
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
