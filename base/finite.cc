#include "base/finite.h"

#include <cstdint>
#include <cstring>

namespace refract::base {
namespace {

// Whether the bits of an element's magnitude, as a number, are above `limit`.
template <typename Word>
bool AnyAbove(const TensorView& tensor, Word limit) {
  constexpr Word kMost = static_cast<Word>(~Word{0}) >> 1;
  const Word rest = static_cast<Word>(kMost - limit);
  const size_t count = tensor.bytes / sizeof(Word);
  // The sum reaches the sign's bit where the magnitude is above the limit:
  // three instructions for as many words as a register holds.
  Word found = 0;
  for (size_t i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, tensor.data + i * sizeof(Word), sizeof(Word));
    found |= static_cast<Word>((word & kMost) + rest);
  }
  return found > kMost;
}

// In every IEEE format, and in bfloat16, infinity has an exponent of ones and
// nothing else, and the magnitude of a NaN is above it. `below`: 1 to find
// infinities, too.
bool AnyAboveInfinity(const TensorView& tensor, unsigned below) {
  switch (tensor.dtype) {
    case DType::kFloat16:
      return AnyAbove<uint16_t>(tensor, static_cast<uint16_t>(0x7c00 - below));
    case DType::kBFloat16:
      return AnyAbove<uint16_t>(tensor, static_cast<uint16_t>(0x7f80 - below));
    case DType::kFloat32:
      return AnyAbove<uint32_t>(tensor, 0x7f800000u - below);
    case DType::kFloat64:
      return AnyAbove<uint64_t>(tensor, 0x7ff0000000000000u - below);
    default:
      return false;
  }
}

}  // namespace

bool HasNonFinite(const TensorView& tensor) {
  return AnyAboveInfinity(tensor, 1);
}

bool HasNaN(const TensorView& tensor) { return AnyAboveInfinity(tensor, 0); }

}  // namespace refract::base
