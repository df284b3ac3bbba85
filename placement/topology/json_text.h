#ifndef REFRACT_PLACEMENT_TOPOLOGY_JSON_TEXT_H_
#define REFRACT_PLACEMENT_TOPOLOGY_JSON_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace refract::placement {

// JSON with // and /* */ comments. InvalidArgument: "line N: is no JSON",
// a number beyond 1.8e308, or a field that an object has twice.
absl::StatusOr<nlohmann::json> ParseJsonText(absl::string_view text);

// The member `name` of `object`; a null where it has none or is no object.
const nlohmann::json& JsonMember(const nlohmann::json& object,
                                 const char* name);
// JsonMember() as text; "" if it is no text.
std::string JsonText(const nlohmann::json& object, const char* name);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_JSON_TEXT_H_
