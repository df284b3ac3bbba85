#ifndef REFRACT_PLACEMENT_TOPOLOGY_JSON_TEXT_H_
#define REFRACT_PLACEMENT_TOPOLOGY_JSON_TEXT_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace refract::placement {

// JSON with // and /* */ comments. InvalidArgument: "line N: is no JSON".
absl::StatusOr<nlohmann::json> ParseJsonText(absl::string_view text);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_JSON_TEXT_H_
