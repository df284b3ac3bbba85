// Slurm's lists of hosts.

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "placement/fabric/fabric_file.h"

namespace refract::placement {
namespace {

constexpr size_t kMaxHosts = 65536;

absl::Status BadList(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no list of hosts such as n[01-16],m"));
}

// Appends to each of `names` each number of "01-16,20".
absl::Status AppendRanges(absl::string_view ranges, absl::string_view text,
                          std::vector<std::string>* names) {
  std::vector<std::string> numbers;
  for (const absl::string_view range : absl::StrSplit(ranges, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
    uint32_t first = 0;
    uint32_t last = 0;
    const auto is_number = [](absl::string_view end) {
      return !end.empty() && end.size() <= 9 &&
             std::all_of(end.begin(), end.end(), absl::ascii_isdigit);
    };
    if (ends.size() > 2 || !is_number(ends.front()) ||
        !is_number(ends.back()) || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || last < first ||
        last - first >= kMaxHosts) {
      return BadList(text);
    }
    // "01-16" keeps its zeros.
    const int width = static_cast<int>(ends.front().size());
    for (uint32_t i = first; i <= last; ++i) {
      numbers.push_back(absl::StrFormat("%0*d", width, i));
    }
  }
  // Several brackets multiply: n[0-9]-[0-9] has 100 names.
  if (names->size() * numbers.size() > kMaxHosts) return BadList(text);
  std::vector<std::string> longer;
  for (const std::string& name : *names) {
    for (const std::string& number : numbers) longer.push_back(name + number);
  }
  *names = std::move(longer);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHostList(
    absl::string_view text) {
  std::vector<std::string> all;
  // The names of the entry that is being read; a bracket multiplies them, other
  // characters are appended to each.
  std::vector<std::string> names = {""};
  const auto finish = [&] {
    const bool good =
        !names.front().empty() && all.size() + names.size() <= kMaxHosts;
    all.insert(all.end(), names.begin(), names.end());
    names = {""};
    return good;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',') {
      if (!finish()) return BadList(text);
    } else if (text[i] == '[') {
      const size_t end = text.find(']', i);
      if (end == absl::string_view::npos) return BadList(text);
      REFRACT_RETURN_IF_ERROR(
          AppendRanges(text.substr(i + 1, end - i - 1), text, &names));
      i = end;
    } else if (text[i] == ']') {
      return BadList(text);
    } else {
      for (std::string& name : names) name.push_back(text[i]);
    }
  }
  if (!finish()) return BadList(text);
  return all;
}

}  // namespace refract::placement
