#include "base/json.h"

#include "nlohmann/json.hpp"

namespace refract::base {
namespace {

template <typename Json>
Json Parse(absl::string_view text) {
  return Json::parse(text.begin(), text.end(), /*cb=*/nullptr,
                     /*allow_exceptions=*/false);
}

template <typename Json>
std::string Format(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace);
}

}  // namespace

nlohmann::json ParseJson(absl::string_view text) {
  return Parse<nlohmann::json>(text);
}

nlohmann::ordered_json ParseOrderedJson(absl::string_view text) {
  return Parse<nlohmann::ordered_json>(text);
}

std::string FormatJson(const nlohmann::json& json, int indent) {
  return Format(json, indent);
}

std::string FormatJson(const nlohmann::ordered_json& json, int indent) {
  return Format(json, indent);
}

}  // namespace refract::base
