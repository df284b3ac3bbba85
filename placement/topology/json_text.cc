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
  } catch (const nlohmann::json::out_of_range&) {
    // The exception does not say where the number is.
    return absl::InvalidArgumentError("has a number beyond 1.8e308");
  }
}

const nlohmann::json& JsonMember(const nlohmann::json& object,
                                 const char* name) {
  static const auto& null = *new nlohmann::json();
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

std::string JsonText(const nlohmann::json& object, const char* name) {
  const nlohmann::json& text = JsonMember(object, name);
  return text.is_string() ? text.get<std::string>() : "";
}

}  // namespace refract::placement
