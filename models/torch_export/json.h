#ifndef REFRACT_MODELS_TORCH_EXPORT_JSON_H_
#define REFRACT_MODELS_TORCH_EXPORT_JSON_H_

// Reading JSON that nobody has checked: nlohmann's own accessors throw or
// assert on a wrong type, these return nothing. Internal to torch_export.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace refract::models::torch_export {

using Json = nlohmann::json;

// nullptr when `json` is no object or has no such member.
inline const Json* Member(const Json& json, absl::string_view name) {
  if (!json.is_object()) return nullptr;
  const auto it = json.find(std::string(name));
  return it == json.end() ? nullptr : &*it;
}

inline const std::string* String(const Json* json) {
  return json == nullptr ? nullptr : json->get_ptr<const std::string*>();
}

// nullptr unless an array.
inline const Json* Array(const Json* json) {
  return json != nullptr && json->is_array() ? json : nullptr;
}

inline std::optional<int64_t> Int(const Json* json) {
  if (json == nullptr || !json->is_number_integer()) return std::nullopt;
  if (json->is_number_unsigned() &&
      json->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return std::nullopt;
  }
  return json->get<int64_t>();
}

inline std::optional<bool> Bool(const Json* json) {
  if (json == nullptr || !json->is_boolean()) return std::nullopt;
  return json->get<bool>();
}

// Also the three values that JSON has no numbers for, as torch.export spells
// them.
inline std::optional<double> Float(const Json* json) {
  if (json == nullptr) return std::nullopt;
  if (json->is_number()) return json->get<double>();
  const std::string* text = String(json);
  if (text == nullptr) return std::nullopt;
  if (*text == "Infinity") return std::numeric_limits<double>::infinity();
  if (*text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (*text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

// The serializer's unions are objects with exactly one member: its tag.
struct Tagged {
  const std::string* tag;
  const Json* value;
};
inline std::optional<Tagged> Union(const Json* json) {
  if (json == nullptr || !json->is_object() || json->size() != 1) {
    return std::nullopt;
  }
  const auto it = json->begin();
  return Tagged{&it.key(), &it.value()};
}

}  // namespace refract::models::torch_export

#endif  // REFRACT_MODELS_TORCH_EXPORT_JSON_H_
