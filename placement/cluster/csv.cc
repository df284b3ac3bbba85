#include "placement/cluster/csv.h"

#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/process/files.h"

namespace refract::placement {
namespace {

// Fields are shown in errors; a binary file must not fill the screen.
std::string Shown(absl::string_view field) {
  constexpr size_t kMost = 40;
  return absl::StrCat("\"", absl::CHexEscape(field.substr(0, kMost)),
                      field.size() > kMost ? "…" : "", "\"");
}

}  // namespace

absl::StatusOr<CsvTable> CsvTable::Read(const std::string& path) {
  absl::StatusOr<std::string> text = base::ReadText(path);
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  return Parse(path, *std::move(text));
}

absl::StatusOr<CsvTable> CsvTable::Parse(std::string path, std::string text) {
  CsvTable table;
  table.path_ = std::move(path);
  table.text_ = std::move(text);
  const absl::string_view all = table.text_;
  // One pass over the text. Fields are ranges of it, so no field is copied.
  size_t begin = 0;
  if (all.substr(0, 3) == "\xef\xbb\xbf") begin = 3;  // byte order mark
  for (int line = 1; begin < all.size(); ++line) {
    size_t end = all.find('\n', begin);
    if (end == absl::string_view::npos) end = all.size();
    const size_t next = end + 1;
    if (end > begin && all[end - 1] == '\r') --end;
    if (end == begin) {  // blank lines are skipped
      begin = next;
      continue;
    }
    if (table.names_.empty()) {
      for (const absl::string_view name :
           absl::StrSplit(all.substr(begin, end - begin), ',')) {
        const std::string column(absl::StripAsciiWhitespace(name));
        if (!table.columns_.emplace(column, table.names_.size()).second) {
          return absl::InvalidArgumentError(
              absl::StrCat(table.path_, ":", line, ": column ", Shown(column),
                           " is there twice"));
        }
        table.names_.push_back(column);
      }
    } else {
      size_t count = 0;
      // `field == end` is an empty last field.
      for (size_t field = begin; field <= end;) {
        size_t comma = all.find(',', field);
        if (comma == absl::string_view::npos || comma > end) comma = end;
        table.fields_.push_back({field, comma - field});
        // Quotes are refused: a comma within them would not end a column.
        if (all[field] == '"' && field < comma) {
          return absl::InvalidArgumentError(absl::StrCat(
              table.path_, ":", line, ", column ",
              count < table.names_.size() ? table.names_[count]
                                          : absl::StrCat(count + 1),
              ": begins with a quote; fields are written without quotes"));
        }
        ++count;
        field = comma + 1;
      }
      if (count != table.names_.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            table.path_, ":", line, ", column ",
            count < table.names_.size()
                ? absl::StrCat(table.names_[count], ": is missing")
                : absl::StrCat(count, ": is beyond the header's last column"),
            " (", count, " fields, the header has ", table.names_.size(), ")"));
      }
      table.lines_.push_back(line);
    }
    begin = next;
  }
  if (table.names_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(table.path_,
                     ":1: is empty: the first line "
                     "of a list names its columns"));
  }
  return table;
}

std::optional<int> CsvTable::Column(absl::string_view name) const {
  const auto found = columns_.find(name);
  if (found == columns_.end()) return std::nullopt;
  return found->second;
}

bool CsvTable::HasColumns(
    std::initializer_list<absl::string_view> names) const {
  for (const absl::string_view name : names) {
    if (!columns_.contains(name)) return false;
  }
  return true;
}

absl::string_view CsvTable::Text(int row, int column) const {
  const Range& range = fields_[row * names_.size() + column];
  return absl::StripAsciiWhitespace(
      absl::string_view(text_).substr(range.begin, range.size));
}

absl::StatusOr<int64_t> CsvTable::Int(int row, int column, int64_t least,
                                      int64_t most) const {
  // Traces write whole numbers as 12.0, too.
  auto value = Number(row, column, static_cast<double>(least),
                      static_cast<double>(most));
  if (!value.ok()) return value.status();
  if (*value != std::floor(*value)) {
    return Wrong(row, column,
                 absl::StrCat(Shown(Text(row, column)), " is no whole number"));
  }
  return static_cast<int64_t>(*value);
}

absl::StatusOr<double> CsvTable::Number(int row, int column, double least,
                                        double most) const {
  const absl::string_view text = Text(row, column);
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
    return Wrong(row, column, absl::StrCat(Shown(text), " is no number"));
  }
  if (value < least || value > most) {
    return Wrong(row, column,
                 absl::StrCat(text, " is outside ", least, "..", most));
  }
  return value;
}

absl::Status CsvTable::Wrong(int row, int column,
                             absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(
      path_, ":", lines_[row], ", column ", names_[column], ": ", what));
}

absl::Status CsvTable::Wrong(int row, absl::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ":", lines_[row], ": ", what));
}

std::string CsvField(absl::string_view text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return std::string(text);
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

}  // namespace refract::placement
