#include "placement/topology/json_text.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace refract::placement {

absl::StatusOr<nlohmann::json> ParseJsonText(absl::string_view text) {
  try {
    return nlohmann::json::parse(text.begin(), text.end(), nullptr,
                                 /*allow_exceptions=*/true,
                                 /*ignore_comments=*/true);
  } catch (const nlohmann::json::parse_error& error) {
    const size_t end = std::min(error.byte, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + end, '\n');
    return absl::InvalidArgumentError(
        absl::StrCat("line ", line, ": is no JSON"));
  }
}

}  // namespace refract::placement
