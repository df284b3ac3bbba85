#include "runtime/cpu/look_ups/encode_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/cpu/half.h"

namespace refract::runtime::cpu {
namespace {

using models::RowElement;
using models::RowLayout;

struct Range {
  float min;
  float max;
};

Range RangeOf(absl::Span<const float> values) {
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  return {*min, *max};
}

template <typename T>
absl::Status EncodePlain(absl::Span<const float> values, std::byte* out) {
  for (size_t d = 0; d < values.size(); ++d) {
    T element;
    FromFloat(values[d], element);
    if (!std::isfinite(ToFloat(element))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "column ", d, ": ", values[d], " overflows the format's elements"));
    }
    std::memcpy(out + d * sizeof(T), &element, sizeof(T));
  }
  return absl::OkStatus();
}

struct Parameters {
  float scale;
  float bias;
  // Multiplies x − bias. FBGEMM computes it apart from the scale, and its
  // rounding decides the last bit of some elements.
  float inverse_scale;
};

// FBGEMM's formulas for rows of 8 bits with float32 parameters. The 1e-8 avoids
// a division by zero where all elements are equal.
Parameters Fp32Parameters(const Range& range) {
  const float span = range.max - range.min;
  return {span / 255.0f, range.min, 255.0f / (span + 1e-8f)};
}

// Rounds scale and bias to fp16 as well, into `halves`.
absl::StatusOr<Parameters> Fp16Parameters(const Range& range, int levels,
                                          Float16 halves[2]) {
  Parameters result;
  FromFloat(range.min, halves[1]);
  result.bias = ToFloat(halves[1]);
  // The span begins at the rounded minimum, which decoding adds.
  const float span = range.max - result.bias;
  FromFloat(span == 0 ? 1.0f : span / static_cast<float>(levels), halves[0]);
  result.scale = ToFloat(halves[0]);
  // FBGEMM's rule for a scale that rounds to 0 in fp16, or has no finite
  // inverse.
  if (result.scale == 0) result.scale = 1;
  result.inverse_scale = 1 / result.scale;
  if (std::isinf(result.inverse_scale)) {
    result.scale = 1;
    result.inverse_scale = 1;
  }
  FromFloat(result.scale, halves[0]);
  if (!std::isfinite(result.bias) || !std::isfinite(result.scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the range [", range.min, ", ", range.max,
                     "] of the row overflows the fp16 scale or bias"));
  }
  return result;
}

absl::Status EncodeQuantised(absl::Span<const float> values,
                             const RowLayout& layout, std::byte* out) {
  const Range range = RangeOf(values);
  const int levels = layout.format.levels();
  Parameters parameters;
  if (layout.format.parameter_dtype == base::DType::kFloat32) {
    parameters = Fp32Parameters(range);
    if (!std::isfinite(parameters.scale)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the range [", range.min, ", ", range.max,
                       "] of the row overflows the fp32 scale"));
    }
    const float stored[2] = {parameters.scale, parameters.bias};
    std::memcpy(out + layout.parameters, stored, sizeof(stored));
  } else {
    Float16 halves[2];
    REFRACT_ASSIGN_OR_RETURN(parameters, Fp16Parameters(range, levels, halves));
    std::memcpy(out + layout.parameters, halves, sizeof(halves));
  }
  const int bits = models::BitsOf(layout.format.element);
  // Elements of 2 and 4 bits are packed from the lowest bits of a byte upwards.
  const auto per_byte = static_cast<size_t>(8 / bits);
  auto* const payload = reinterpret_cast<uint8_t*>(out + layout.payload);
  for (size_t d = 0; d < values.size(); ++d) {
    const float scaled =
        (values[d] - parameters.bias) * parameters.inverse_scale;
    // A product beyond the integers is clamped before it is rounded. Elements
    // below the rounded minimum become 0.
    const auto q = static_cast<unsigned>(
        std::lrintf(std::clamp(scaled, 0.0f, static_cast<float>(levels))));
    const unsigned shifted = q << (d % per_byte * static_cast<size_t>(bits));
    payload[d / per_byte] =
        static_cast<uint8_t>(payload[d / per_byte] | shifted);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status EncodeRow(absl::Span<const float> values, const RowLayout& layout,
                       std::byte* out) {
  for (size_t d = 0; d < values.size(); ++d) {
    if (!std::isfinite(values[d])) {
      return absl::InvalidArgumentError(
          absl::StrCat("column ", d, ": ", values[d], " is not finite"));
    }
  }
  std::memset(out, 0, static_cast<size_t>(layout.stride));
  switch (layout.format.element) {
    case RowElement::kFloat32:
      return EncodePlain<float>(values, out);
    case RowElement::kFloat16:
      return EncodePlain<Float16>(values, out);
    case RowElement::kBFloat16:
      return EncodePlain<BFloat16>(values, out);
    default:
      return EncodeQuantised(values, layout, out);
  }
}

float RowErrorBound(absl::Span<const float> values,
                    const models::RowFormat& format) {
  const Range range = RangeOf(values);
  const double largest =
      std::max(std::abs(double{range.min}), std::abs(double{range.max}));
  switch (format.element) {
    case RowElement::kFloat32:
      return 0;
    case RowElement::kFloat16:
      return static_cast<float>(largest * 0x1p-11 + 0x1p-25);
    case RowElement::kBFloat16:
      return static_cast<float>(largest * 0x1p-8 + 0x1p-133);
    default:
      break;
  }
  const double span = double{range.max} - double{range.min};
  const double arithmetic = 0x1p-21 * (span + std::abs(double{range.min}) +
                                       std::abs(double{range.max}));
  // Half a step for the rounding to a level, and two smaller errors: of the
  // 1e-8 in the inverse scale, and of the arithmetic's rounding.
  const double levels = format.levels();
  if (format.parameter_dtype == base::DType::kFloat32) {
    return static_cast<float>(span / levels / 2 + std::min(span, 1e-8) +
                              arithmetic);
  }
  const double bias = std::abs(double{range.min}) * 0x1p-11 + 0x1p-25;
  // The bias may have been rounded down, which widens the range.
  const double scale = (span + bias) / levels;
  const double scale_error = scale * 0x1p-11 + 0x1p-25;
  return static_cast<float>(
      std::max((scale + scale_error) / 2, levels * scale_error + bias) +
      arithmetic);
}

}  // namespace refract::runtime::cpu
