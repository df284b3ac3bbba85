#include "base/dtype.h"

#include <array>

namespace refract::base {
namespace {

struct Names {
  absl::string_view torch;
  absl::string_view kserve;
  absl::string_view safetensors;
};

// Indexed by the DType's number.
constexpr std::array<Names, kNumDTypes> kNames = {{
    {"unknown", "", ""},
    {"bool", "BOOL", "BOOL"},
    {"uint8", "UINT8", "U8"},
    {"int8", "INT8", "I8"},
    {"int16", "INT16", "I16"},
    {"int32", "INT32", "I32"},
    {"int64", "INT64", "I64"},
    {"float16", "FP16", "F16"},
    {"bfloat16", "BF16", "BF16"},
    {"float32", "FP32", "F32"},
    {"float64", "FP64", "F64"},
}};

std::optional<DType> Find(absl::string_view Names::*column,
                          absl::string_view name) {
  for (int i = 1; i < kNumDTypes; ++i) {
    if (kNames[i].*column == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

const Names& Row(DType dtype) { return kNames[static_cast<uint8_t>(dtype)]; }

}  // namespace

absl::string_view Name(DType dtype) { return Row(dtype).torch; }
std::optional<DType> DTypeFromName(absl::string_view name) {
  return Find(&Names::torch, name);
}
absl::string_view KServeName(DType dtype) { return Row(dtype).kserve; }
std::optional<DType> DTypeFromKServeName(absl::string_view name) {
  return Find(&Names::kserve, name);
}
absl::string_view SafetensorsName(DType dtype) {
  return Row(dtype).safetensors;
}
std::optional<DType> DTypeFromSafetensorsName(absl::string_view name) {
  return Find(&Names::safetensors, name);
}

}  // namespace refract::base
