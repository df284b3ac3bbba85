#include "runtime/wire/codec.h"

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
    sizes_known_ = sizes_known_ && !value.form.size_depends_on_data();
    values_.push_back(std::move(value));
  }
}

namespace {

base::TensorSpec Carried(base::TensorSpec spec, WireType type) {
  spec.dtype = CarrierOf(spec.dtype, type);
  if (type == WireType::kInt8) spec.dims.back() += models::kInt8RowExtra;
  return spec;
}

}  // namespace

std::vector<base::TensorSpec> Codec::MessageSpecs(
    absl::Span<const base::TensorSpec> values) const {
  std::vector<base::TensorSpec> specs;
  specs.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    specs.push_back(Carried(values[i], values_[i].form.type));
  }
  return specs;
}

size_t WireRowBytes(const base::TensorSpec& spec, WireType type) {
  const base::TensorSpec carried = Carried(spec, type);
  size_t bytes = base::SizeOf(carried.dtype);
  for (size_t d = 1; d < carried.dims.size(); ++d) bytes *= carried.dims[d];
  return bytes;
}

}  // namespace refract::runtime::wire
