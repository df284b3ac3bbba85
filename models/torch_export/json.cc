#include "models/torch_export/json.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/json.h"
#include "nlohmann/json.hpp"

namespace refract::models::torch_export {

// Converts nlohmann's value, whose objects are sorted by key and hold the last
// of equal keys.
class JsonBuilder {
 public:
  static Json Convert(nlohmann::json& from) {
    Json json;
    switch (from.type()) {
      case nlohmann::json::value_t::boolean:
        json.value_ = from.get<bool>();
        break;
      case nlohmann::json::value_t::number_integer:
        json.value_ = from.get<int64_t>();
        break;
      case nlohmann::json::value_t::number_unsigned:
        if (const auto value = from.get<uint64_t>();
            value <= std::numeric_limits<int64_t>::max()) {
          json.value_ = static_cast<int64_t>(value);
        } else {
          json.value_ = static_cast<double>(value);
        }
        break;
      case nlohmann::json::value_t::number_float:
        json.value_ = from.get<double>();
        break;
      case nlohmann::json::value_t::string:
        json.value_ = std::move(from.get_ref<std::string&>());
        break;
      case nlohmann::json::value_t::array: {
        auto& list = json.value_.emplace<std::vector<Json>>();
        list.reserve(from.size());
        for (nlohmann::json& element : from) list.push_back(Convert(element));
        break;
      }
      case nlohmann::json::value_t::object: {
        auto& members = json.value_.emplace<std::vector<Json::Entry>>();
        members.reserve(from.size());
        for (auto it = from.begin(); it != from.end(); ++it) {
          members.push_back({it.key(), Convert(*it)});
        }
        break;
      }
      default:
        break;  // null
    }
    return json;
  }
};

std::optional<Json> Json::Parse(absl::string_view text,
                                absl::string_view skipped) {
  // Convert() and the destructor call themselves for each level: a file must
  // not choose the depth of that recursion. Exports are some tens deep.
  constexpr int kMaxDepth = 500;
  using Event = nlohmann::json::parse_event_t;
  bool too_deep = false;
  // Members that are skipped take no memory: call stacks are most of an export.
  const auto keep = [&](int depth, Event event, const nlohmann::json& value) {
    if (event == Event::object_start || event == Event::array_start) {
      too_deep |= depth >= kMaxDepth;
      return !too_deep;
    }
    return skipped.empty() || event != Event::key ||
           value.get_ref<const std::string&>() != skipped;
  };
  nlohmann::json parsed = nlohmann::json::parse(text.begin(), text.end(), keep,
                                                /*allow_exceptions=*/false);
  if (parsed.is_discarded() || too_deep) return std::nullopt;
  return JsonBuilder::Convert(parsed);
}

const Json* Json::begin() const {
  const auto* list = std::get_if<std::vector<Json>>(&value_);
  return list == nullptr ? this : list->data();
}

size_t Json::size() const {
  const auto* list = std::get_if<std::vector<Json>>(&value_);
  return list != nullptr ? list->size() : is_null() ? 0 : 1;
}

const std::vector<Json::Entry>& Json::entries() const {
  static const auto& none = *new std::vector<Entry>();
  const auto* members = std::get_if<std::vector<Entry>>(&value_);
  return members == nullptr ? none : *members;
}

std::string Json::Text() const {
  if (is_null()) return "null";
  if (is_array()) return "[…]";
  if (is_object()) return "{…}";
  nlohmann::json json;
  if (const auto b = Bool(this)) {
    json = *b;
  } else if (const auto i = Int(this)) {
    json = *i;
  } else if (const std::string* text = String(this)) {
    json = *text;
  } else {
    json = *Float(this);
  }
  return base::FormatJson(json);
}

const Json* Member(const Json& json, absl::string_view name) {
  const std::vector<Json::Entry>& members = json.entries();
  const auto it =
      std::lower_bound(members.begin(), members.end(), name,
                       [](const Json::Entry& entry, absl::string_view key) {
                         return absl::string_view(entry.key) < key;
                       });
  return it == members.end() || it->key != name ? nullptr : &it->value;
}

const std::string* String(const Json* json) {
  return json == nullptr ? nullptr : std::get_if<std::string>(&json->value_);
}

const Json* Array(const Json* json) {
  return json != nullptr && json->is_array() ? json : nullptr;
}

std::optional<int64_t> Int(const Json* json) {
  if (json == nullptr || !json->Is<int64_t>()) return std::nullopt;
  return std::get<int64_t>(json->value_);
}

std::optional<bool> Bool(const Json* json) {
  if (json == nullptr || !json->Is<bool>()) return std::nullopt;
  return std::get<bool>(json->value_);
}

std::optional<double> Float(const Json* json) {
  if (json == nullptr) return std::nullopt;
  if (json->Is<double>()) return std::get<double>(json->value_);
  if (const auto i = Int(json)) return static_cast<double>(*i);
  const std::string* text = String(json);
  if (text == nullptr) return std::nullopt;
  if (*text == "Infinity") return std::numeric_limits<double>::infinity();
  if (*text == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (*text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

std::optional<Tagged> Union(const Json* json) {
  if (json == nullptr || json->entries().size() != 1) return std::nullopt;
  const Json::Entry& entry = json->entries().front();
  return Tagged{&entry.key, &entry.value};
}

}  // namespace refract::models::torch_export
