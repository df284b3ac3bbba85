#include "base/finite.h"

#include <cstring>

namespace refract::base {
namespace {

// In every IEEE format, and in bfloat16, an exponent of ones means NaN or
// infinity.
template <typename Word>
bool AnyWithExponent(const TensorView& tensor, Word exponent) {
  const size_t count = tensor.bytes / sizeof(Word);
  // No branch, so that the loop vectorises.
  Word found = 0;
  for (size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, tensor.data + i * sizeof(Word), sizeof(Word));
    found |= static_cast<Word>((word & exponent) == exponent);
  }
  return found != 0;
}

}  // namespace

bool HasNonFinite(const TensorView& tensor) {
  switch (tensor.dtype) {
    case DType::kFloat16:
      return AnyWithExponent<uint16_t>(tensor, 0x7c00);
    case DType::kBFloat16:
      return AnyWithExponent<uint16_t>(tensor, 0x7f80);
    case DType::kFloat32:
      return AnyWithExponent<uint32_t>(tensor, 0x7f800000u);
    case DType::kFloat64:
      return AnyWithExponent<uint64_t>(tensor, 0x7ff0000000000000u);
    default:
      return false;
  }
}

}  // namespace refract::base
