#ifndef REFRACT_BASE_JSON_H_
#define REFRACT_BASE_JSON_H_

// JSON as text. The parser and the serializer of nlohmann's library are
// compiled in json.cc alone: each file that uses them takes the compiler three
// seconds longer.

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace refract::base {

// The value that `text` says; is_discarded() where `text` is not JSON.
nlohmann::json ParseJson(absl::string_view text);
// Keeps the order of an object's keys.
nlohmann::ordered_json ParseOrderedJson(absl::string_view text);

// `indent`: spaces per level; negative: a single line. Bytes that are not UTF-8
// become U+FFFD.
std::string FormatJson(const nlohmann::json& json, int indent = -1);
std::string FormatJson(const nlohmann::ordered_json& json, int indent = -1);

}  // namespace refract::base

#endif  // REFRACT_BASE_JSON_H_
