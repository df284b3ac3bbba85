#include "placement/topology/json_text.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace refract::placement {

absl::StatusOr<nlohmann::json> ParseJsonText(absl::string_view text) {
  // The parser itself keeps the last of two fields of one name.
  std::vector<std::set<std::string>> names;  // of the open objects
  std::string twice;
  const auto see = [&](int, nlohmann::json::parse_event_t event,
                       const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) names.emplace_back();
    if (event == Event::object_end) names.pop_back();
    if (event == Event::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!names.back().insert(name).second && twice.empty()) twice = name;
    }
    return true;
  };
  try {
    nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), see,
                                                /*allow_exceptions=*/true,
                                                /*ignore_comments=*/true);
    if (!twice.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("field '", twice, "' is there twice in one object"));
    }
    return json;
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
