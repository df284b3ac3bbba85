#include "models/repository/wire_form.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace refract::models {
namespace {

constexpr WireTypeRecord kRecords[] = {
    {.name = "fp32"},
    {.name = "fp16", .lossy = true},
    {.name = "bf16", .lossy = true},
    {.name = "int8", .lossy = true, .row_extra = kInt8RowExtra},
    {.name = "int32", .may_not_fit = true},
};
static_assert(std::size(kRecords) == kNumWireTypes);

bool Fits(base::DType dtype, WireType type) {
  switch (type) {
    case WireType::kAsIs:
      return true;
    case WireType::kFloat16:
    case WireType::kBFloat16:
      return dtype == base::DType::kFloat32 || dtype == base::DType::kFloat64;
    // Rows of int8 have a scale and a bias of their own, from any float type.
    case WireType::kInt8:
      return base::IsFloatingPoint(dtype);
    case WireType::kInt32:
      return dtype == base::DType::kInt64;
  }
  return false;
}

}  // namespace

const WireTypeRecord& RecordOf(WireType type) {
  return kRecords[static_cast<size_t>(type)];
}

std::optional<WireType> WireTypeFromName(absl::string_view name) {
  for (size_t i = 0; i < std::size(kRecords); ++i) {
    if (kRecords[i].name == name) return static_cast<WireType>(i);
  }
  return std::nullopt;
}

std::vector<WireType> LossyWireTypes() {
  std::vector<WireType> lossy;
  for (size_t i = 0; i < std::size(kRecords); ++i) {
    if (kRecords[i].lossy) lossy.push_back(static_cast<WireType>(i));
  }
  return lossy;
}

std::vector<absl::string_view> LossyWireNames() {
  std::vector<absl::string_view> names;
  for (const WireTypeRecord& record : kRecords) {
    if (record.lossy) names.push_back(record.name);
  }
  return names;
}

absl::Status CheckWireForm(const Value& value, WireForm form) {
  if (form.is_plain()) return absl::OkStatus();
  const auto refusal = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("value ", value.name, " cannot cross as ", Name(form.type),
                     form.unique_rows ? " with unique rows" : "", ": ", why));
  };
  if (value.kind != ValueKind::kTensor)
    return refusal("it is a number, not a tensor");
  if (!Fits(value.dtype, form.type)) {
    return refusal(absl::StrCat("it is ", base::Name(value.dtype)));
  }
  // Scale and bias belong to a row, so the value needs a first dimension.
  const bool in_rows = RecordOf(form.type).row_extra > 0;
  const bool has_rows = form.unique_rows || in_rows;
  if (has_rows && (!value.has_shape || value.shape.empty())) {
    return refusal("its shape is not known or has no dimension of rows");
  }
  if (form.unique_rows && in_rows && value.shape.size() < 2) {
    return refusal("its rows are single elements");
  }
  return absl::OkStatus();
}

}  // namespace refract::models
