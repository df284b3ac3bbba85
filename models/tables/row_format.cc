#include "models/tables/row_format.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace refract::models {
namespace {

using base::DType;

struct NamedFormat {
  absl::string_view name;
  RowFormat format;
};

constexpr auto kFirst = RowParameters::kFirst;
constexpr auto kLast = RowParameters::kLast;
constexpr std::array<NamedFormat, 9> kFormats = {{
    {"fp32", {RowElement::kFloat32}},
    {"fp16", {RowElement::kFloat16}},
    {"bf16", {RowElement::kBFloat16}},
    {"tbe-int8", {RowElement::kInt8, kFirst, DType::kFloat16}},
    {"tbe-int4", {RowElement::kInt4, kFirst, DType::kFloat16}},
    {"tbe-int2", {RowElement::kInt2, kFirst, DType::kFloat16}},
    {"fused-8bit", {RowElement::kInt8, kLast, DType::kFloat32}},
    {"fused-4bit", {RowElement::kInt4, kLast, DType::kFloat16}},
    {"fused-2bit", {RowElement::kInt2, kLast, DType::kFloat16}},
}};

struct Refused {
  absl::string_view name;
  absl::string_view why;
};
// Formats that resemble the formats above and would be read wrongly.
constexpr std::array<Refused, 5> kRefused = {{
    {"tbe-fp8",
     "FBGEMM's 8-bit floats have an exponent width and bias per table, unlike "
     "e4m3 and e5m2"},
    {"tbe-nfp8", "FBGEMM's scaled 8-bit floats are not read"},
    {"tbe-mx4", "FBGEMM's mx4 groups share exponents, which are not read"},
    {"tbe-pruned",
     "ids of a table with pruned rows pass an index that is not read; write "
     "the table with all its rows"},
    {"nve-int8", "NVE's symmetric rows have no bias and are not read"},
}};

// Most bytes of padding at the end of a row; a larger stride is an error.
constexpr int64_t kMaxPadding = 4096;

}  // namespace

absl::StatusOr<RowFormat> RowFormatNamed(absl::string_view name) {
  for (const NamedFormat& known : kFormats) {
    if (known.name == name) return known.format;
  }
  for (const Refused& refused : kRefused) {
    if (refused.name != name) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("row format ", name, " is not served: ", refused.why));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "row format '", name, "' is unknown; known are ", RowFormatNames()));
}

absl::string_view NameOf(const RowFormat& format) {
  for (const NamedFormat& known : kFormats) {
    if (known.format == format) return known.name;
  }
  return "";
}

std::string RowFormatNames() {
  std::string text;
  for (const NamedFormat& known : kFormats) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", known.name);
  }
  return text;
}

int64_t AlignmentOf(const RowFormat& format) {
  return std::max(1, BitsOf(format.element) / 8);
}

int64_t RowBytes(const RowFormat& format, int64_t dim) {
  const int64_t payload = (dim * BitsOf(format.element) + 7) / 8;
  const auto parameter =
      static_cast<int64_t>(base::SizeOf(format.parameter_dtype));
  return payload + 2 * parameter;
}

absl::StatusOr<RowLayout> LayoutOf(const RowFormat& format, int64_t dim,
                                   int64_t stride, int64_t alignment) {
  const absl::string_view name = NameOf(format);
  if (dim <= 0 || dim >= int64_t{1} << 31) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of ", name, ": ", dim, " elements"));
  }
  const int bits = BitsOf(format.element);
  if (dim * bits % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rows of ", name, ": ", dim, " elements, which is no multiple of the ",
        8 / bits, " in a byte"));
  }
  const int64_t bytes = RowBytes(format, dim);
  if (stride == 0) {
    if (alignment < 1 || alignment > kMaxPadding ||
        (alignment & (alignment - 1)) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("rows of ", name, ": the alignment ", alignment,
                       " is no power of two up to ", kMaxPadding));
    }
    stride = (bytes + alignment - 1) / alignment * alignment;
  }
  if (stride < bytes || stride > bytes + kMaxPadding) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of ", name, ": ", dim, " elements take ", bytes,
                     " bytes, the table's rows have ", stride));
  }
  // Elements are read in place.
  if (stride % AlignmentOf(format) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of ", name, ": a stride of ", stride,
                     " bytes is no multiple of ", bits / 8));
  }
  RowLayout layout = {format, dim, stride, 0, 0};
  if (format.parameters == RowParameters::kFirst) {
    layout.payload =
        2 * static_cast<int64_t>(base::SizeOf(format.parameter_dtype));
  } else if (format.parameters == RowParameters::kLast) {
    // Directly behind the payload, before any padding.
    layout.parameters = dim * bits / 8;
  }
  return layout;
}

std::string RowsText(const RowLayout& layout) {
  return absl::StrCat(NameOf(layout.format), " dim=", layout.dim);
}

absl::StatusOr<RowLayout> ParseRowsText(absl::string_view text,
                                        int64_t stride) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  absl::string_view number = words.size() == 2 ? words[1] : "";
  int64_t dim = 0;
  if (!absl::ConsumePrefix(&number, "dim=") ||
      !absl::SimpleAtoi(number, &dim)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows '", text, "' are not of the form 'FORMAT dim=N'"));
  }
  REFRACT_ASSIGN_OR_RETURN(const RowFormat format, RowFormatNamed(words[0]));
  if (stride <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows '", text, "' of ", stride, " bytes"));
  }
  return LayoutOf(format, dim, stride);
}

}  // namespace refract::models
