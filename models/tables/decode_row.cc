#include "models/tables/decode_row.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace refract::models {
namespace {

template <typename T>
T Read(const std::byte* from) {
  T value;
  // Rows of odd sizes leave parameters unaligned.
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// IEEE binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits.
float Half(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  float value;
  if (exponent == 0x1f) {
    value = mantissa == 0 ? std::numeric_limits<float>::infinity()
                          : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    value = std::ldexp(static_cast<float>(mantissa | 0x400), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

float BrainFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace

void DecodeRow(const RowLayout& layout, const std::byte* row,
               absl::Span<float> values) {
  const std::byte* const payload = row + layout.payload;
  float scale = 1;
  float bias = 0;
  if (layout.format.is_quantised()) {
    const std::byte* const parameters = row + layout.parameters;
    if (layout.format.parameter_dtype == base::DType::kFloat16) {
      scale = Half(Read<uint16_t>(parameters));
      bias = Half(Read<uint16_t>(parameters + 2));
    } else {
      scale = Read<float>(parameters);
      bias = Read<float>(parameters + 4);
    }
  }
  const int bits = BitsOf(layout.format.element);
  for (size_t d = 0; d < values.size(); ++d) {
    switch (layout.format.element) {
      case RowElement::kFloat32:
        values[d] = Read<float>(payload + 4 * d);
        break;
      case RowElement::kFloat16:
        values[d] = Half(Read<uint16_t>(payload + 2 * d));
        break;
      case RowElement::kBFloat16:
        values[d] = BrainFloat(Read<uint16_t>(payload + 2 * d));
        break;
      default: {
        // Elements of 2, 4 or 8 bits; the lowest bits of a byte hold its first
        // element.
        const size_t bit = d * static_cast<size_t>(bits);
        const int byte = std::to_integer<int>(payload[bit / 8]);
        const int q = (byte >> (bit % 8)) & layout.format.levels();
        // One rounding per operation, as the row readers of
        // runtime/cpu/look_ups round.
        const float product = scale * static_cast<float>(q);
        values[d] = product + bias;
      }
    }
  }
}

}  // namespace refract::models
