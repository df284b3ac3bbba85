// Shapes of messages and of the values in them. Encoder and Decoder convert the
// contents.

#include "runtime/wire/codec.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/wire/elements.h"

namespace refract::runtime::wire {

using models::WireForm;
using models::WireType;

Codec::Codec(const models::Graph& graph, absl::Span<const models::ValueId> ids,
             absl::Span<const WireForm> forms) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const models::Value& crossing = graph.value(ids[i]);
    Value value;
    value.name = crossing.name;
    value.dtype = crossing.kind == models::ValueKind::kTensor
                      ? crossing.dtype
                      : base::DType::kInt64;
    if (!forms.empty()) value.form = forms[i];
    value.tensor = num_tensors_;
    num_tensors_ += value.form.unique_rows ? 2 : 1;
    plain_ = plain_ && value.form.is_plain();
    // An int32 that may not fit, and unique rows, depend on data.
    sizes_known_ = sizes_known_ && !value.form.size_depends_on_data();
    values_.push_back(std::move(value));
  }
}

namespace {

base::TensorSpec Carried(base::TensorSpec spec, WireType type) {
  spec.dtype = CarrierOf(spec.dtype, type);
  const int64_t extra = models::RecordOf(type).row_extra;
  if (extra > 0) spec.dims.back() += extra;
  return spec;
}

}  // namespace

std::vector<base::TensorSpec> Codec::MessageSpecs(
    absl::Span<const base::TensorSpec> values,
    std::vector<base::TensorSpec> specs) const {
  specs.clear();
  specs.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    specs.push_back(Carried(values[i], values_[i].form.type));
  }
  return specs;
}

namespace {

// Number of rows of a value with an index; -1 where only the payload shows it
// and the payload is absent.
int64_t RowsOfIndex(const base::TensorView& index) {
  if (index.dims.size() == 1) return index.dims[0];
  if (index.data == nullptr || index.dtype != base::DType::kInt32) return -1;
  int64_t rows = 0;
  for (size_t run = 0; (run + 1) * 2 * sizeof(int32_t) <= index.bytes; ++run) {
    int32_t length;
    std::memcpy(&length, index.data + (2 * run + 1) * sizeof(length),
                sizeof(length));
    rows += std::max(length, 0);
  }
  return rows;
}

}  // namespace

std::vector<base::TensorView> Codec::Peek(
    absl::Span<const base::TensorView> message,
    std::vector<base::TensorView> views) const {
  views.clear();
  if (message.size() != num_tensors_) return views;
  views.reserve(values_.size());
  for (const Value& value : values_) {
    base::TensorView& view = views.emplace_back(message[value.tensor]);
    if (value.form.is_plain()) continue;
    view.dtype = value.dtype;
    view.data = nullptr;
    if (!view.dims.empty()) {
      view.dims.back() -= models::RecordOf(value.form.type).row_extra;
    }
    if (value.form.unique_rows && !view.dims.empty()) {
      const base::TensorView& index = message[value.tensor + 1];
      // An empty index means that every row was sent.
      if (index.dims != base::Dims{0}) view.dims[0] = RowsOfIndex(index);
    }
    // Dims may be hostile or unknown (-1): then no bytes.
    const auto bytes = base::ByteSize(view.dtype, view.dims);
    view.bytes = bytes.ok() ? *bytes : 0;
  }
  return views;
}

size_t WireRowBytes(const base::TensorSpec& spec, WireType type) {
  const base::TensorSpec carried = Carried(spec, type);
  size_t bytes = base::SizeOf(carried.dtype);
  for (size_t d = 1; d < carried.dims.size(); ++d) bytes *= carried.dims[d];
  return bytes;
}

}  // namespace refract::runtime::wire
