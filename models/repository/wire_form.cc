#include "models/repository/wire_form.h"

#include <array>

#include "absl/strings/str_cat.h"

namespace refract::models {
namespace {

constexpr std::array<absl::string_view, kNumWireTypes> kNames = {
    "fp32", "fp16", "bf16", "int8", "int32"};

bool Fits(base::DType dtype, WireType type) {
  switch (type) {
    case WireType::kAsIs:
      return true;
    case WireType::kFloat16:
    case WireType::kBFloat16:
      return dtype == base::DType::kFloat32 || dtype == base::DType::kFloat64;
    case WireType::kInt8:
      return base::IsFloatingPoint(dtype);
    case WireType::kInt32:
      return dtype == base::DType::kInt64;
  }
  return false;
}

}  // namespace

absl::string_view Name(WireType type) {
  return kNames[static_cast<size_t>(type)];
}

std::optional<WireType> WireTypeFromName(absl::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<WireType>(i);
  }
  return std::nullopt;
}

absl::Status CheckWireForm(const Value& value, WireForm form) {
  if (form.is_plain()) return absl::OkStatus();
  const auto refusal = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("value ", value.name, " cannot cross as ", Name(form.type),
                     form.unique_rows ? " with unique rows" : "", ": ", why));
  };
  if (value.kind != ValueKind::kTensor) return refusal("it is no tensor");
  if (!Fits(value.dtype, form.type)) {
    return refusal(absl::StrCat("it is ", base::Name(value.dtype)));
  }
  const bool has_rows = form.unique_rows || form.type == WireType::kInt8;
  if (has_rows && (!value.has_shape || value.shape.empty())) {
    return refusal("it has no known rows");
  }
  if (form.unique_rows && form.type == WireType::kInt8 &&
      value.shape.size() < 2) {
    return refusal("its rows are single elements");
  }
  return absl::OkStatus();
}

}  // namespace refract::models
