#ifndef REFRACT_BASE_DTYPE_H_
#define REFRACT_BASE_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace refract::base {

// Element types. The numbers are part of the message format
// (docs/design/wire_format.md) and of graph.proto: never renumber.
enum class DType : uint8_t {
  kUnknown = 0,
  kBool = 1,  // one byte, 0 or 1
  kUInt8 = 2,
  kInt8 = 3,
  kInt16 = 4,
  kInt32 = 5,
  kInt64 = 6,
  kFloat16 = 7,
  kBFloat16 = 8,
  kFloat32 = 9,
  kFloat64 = 10,
};
inline constexpr int kNumDTypes = 11;

// Bytes per element; 0 for kUnknown.
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUInt8:
    case DType::kInt8:
      return 1;
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kInt32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
    case DType::kFloat64:
      return 8;
    case DType::kUnknown:
      return 0;
  }
  return 0;
}

constexpr bool IsFloatingPoint(DType dtype) {
  return dtype >= DType::kFloat16;
}
constexpr bool IsInteger(DType dtype) {
  return dtype >= DType::kUInt8 && dtype <= DType::kInt64;
}

// True for numbers of a dtype other than kUnknown; for numbers that a peer
// sent.
constexpr bool IsKnownDType(uint8_t code) {
  return code > 0 && code < kNumDTypes;
}

// "float32", "int64", … as PyTorch spells them.
absl::string_view Name(DType dtype);
std::optional<DType> DTypeFromName(absl::string_view name);

// "FP32", "INT64", … as KServe v2 spells them.
absl::string_view KServeName(DType dtype);
std::optional<DType> DTypeFromKServeName(absl::string_view name);

// "F32", "I64", … as safetensors headers spell them.
absl::string_view SafetensorsName(DType dtype);
std::optional<DType> DTypeFromSafetensorsName(absl::string_view name);

}  // namespace refract::base

#endif  // REFRACT_BASE_DTYPE_H_
