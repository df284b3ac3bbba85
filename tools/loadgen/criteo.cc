#include "tools/loadgen/criteo.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace refract::loadgen {
namespace {

constexpr size_t kFields = 1 + kCriteoIntegers + kCriteoCategories;
constexpr size_t kMaxCategoryDigits = 8;
// The longest valid line of 40 fields has about 550 bytes; a file of another
// kind may have no line end for gigabytes.
constexpr size_t kMaxLineBytes = 4095;
// A field that is quoted in an error is cut here.
constexpr size_t kQuoted = 32;

// `index` counts from 0. The names are Kaggle's: Label, I1 … I13, C1 … C26.
std::string FieldName(size_t index) {
  std::string name = "Label";
  if (index > kCriteoIntegers) {
    name = absl::StrCat("C", index - kCriteoIntegers);
  } else if (index > 0) {
    name = absl::StrCat("I", index);
  }
  return absl::StrCat("field ", index + 1, " (", name, ")");
}

absl::Status BadField(size_t index, absl::string_view text,
                      absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(
      FieldName(index), ": '", absl::CHexEscape(text.substr(0, kQuoted)),
      "' is no ", wanted));
}

}  // namespace

absl::StatusOr<CriteoRow> ParseCriteoLine(absl::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const std::vector<absl::string_view> fields = absl::StrSplit(line, '\t');
  if (fields.size() != kFields) {
    return absl::InvalidArgumentError(absl::StrCat(
        fields.size() < kFields
            ? absl::StrCat(FieldName(fields.size()), " is missing")
            : absl::StrCat("field ", kFields + 1, " is one too many"),
        ": the line has ", fields.size(), " fields between tabs, not ",
        kFields));
  }

  CriteoRow row;
  if (fields[0] != "0" && fields[0] != "1") {
    return BadField(0, fields[0], "label (0 or 1)");
  }
  for (int i = 0; i < kCriteoIntegers; ++i) {
    const absl::string_view text = fields[1 + i];
    if (text.empty()) continue;
    int64_t value = 0;
    if (!absl::SimpleAtoi(text, &value)) {
      return BadField(1 + i, text, "integer");
    }
    // log(1 + x), the usual preparation of Criteo's counts; negative values
    // count as 0. An empty field stays 0.
    row.dense[i] = static_cast<float>(
        std::log1p(static_cast<double>(std::max<int64_t>(value, 0))));
  }
  for (int i = 0; i < kCriteoCategories; ++i) {
    const size_t index = 1 + kCriteoIntegers + i;
    const absl::string_view text = fields[index];
    if (text.empty()) continue;
    uint32_t value = 0;
    // SimpleHexAtoi accepts a sign, blanks and 0x, which are damage here.
    if (text.size() > kMaxCategoryDigits ||
        !std::all_of(text.begin(), text.end(), absl::ascii_isxdigit) ||
        !absl::SimpleHexAtoi(text, &value)) {
      return BadField(index, text, "category of 1 to 8 hexadecimal digits");
    }
    row.categories[i] = value;
  }
  return row;
}

absl::StatusOr<std::vector<CriteoRow>> ReadCriteo(const std::string& path,
                                                  size_t max_rows, size_t part,
                                                  size_t parts) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be opened"));
  }
  std::vector<CriteoRow> rows;
  std::array<char, kMaxLineBytes + 1> line;
  size_t lines = 0;
  for (; rows.size() < max_rows; ++lines) {
    const std::string where = absl::StrCat(path, ":", lines + 1);
    if (!file.getline(line.data(), line.size())) {
      // getline() fails at the end of the file, too; only a full buffer is a
      // long line.
      if (file.gcount() != kMaxLineBytes) break;
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": the line is longer than ", kMaxLineBytes, " bytes"));
    }
    if (lines % parts != part) continue;
    absl::StatusOr<CriteoRow> row = ParseCriteoLine(line.data());
    if (!row.ok()) return base::Annotate(row.status(), where);
    rows.push_back(*row);
  }
  // A folder opens well and fails at the first read.
  if (file.bad() || rows.empty()) {
    return absl::InvalidArgumentError(
        lines == 0 ? absl::StrCat(path, ": no line could be read")
                   : absl::StrCat(path, ": has ", lines,
                                  " rows only for --processes ", parts));
  }
  return rows;
}

}  // namespace refract::loadgen
