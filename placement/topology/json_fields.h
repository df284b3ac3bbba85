#ifndef REFRACT_PLACEMENT_TOPOLOGY_JSON_FIELDS_H_
#define REFRACT_PLACEMENT_TOPOLOGY_JSON_FIELDS_H_

// Fields of JSON objects that people write. An error names the field by its
// path in the file, "nics[1].ports[0].gbps", and a field that nobody asked for
// is an error: most likely it is misspelt.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace refract::placement {

// The fields of one JSON object. Remembers which fields were asked for, and the
// first error, after which every answer is nullopt.
class JsonFields {
 public:
  JsonFields(const nlohmann::json& json, std::string where,
             absl::Status* status)
      : json_(json), where_(std::move(where)), status_(*status) {
    if (!json_.is_object()) Fail("", "is no object");
  }

  std::optional<std::string> Text(const char* name) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) return Fail(name, "is no text");
    return value->get<std::string>();
  }
  std::optional<bool> Bool(const char* name) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) return Fail(name, "is neither true nor false");
    return value->get<bool>();
  }
  std::optional<int64_t> Whole(const char* name, int64_t least, int64_t most) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_integer() || value->get<double>() < least ||
        value->get<double>() > most) {
      return Fail(
          name, absl::StrCat("is no whole number from ", least, " to ", most));
    }
    return value->get<int64_t>();
  }
  std::optional<double> Rate(const char* name) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || value->get<double>() < 0 ||
        value->get<double>() > 1e6) {
      return Fail(name, "is no number from 0 to 1000000");
    }
    return value->get<double>();
  }
  std::optional<std::vector<std::string>> Texts(const char* name) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_array() || !std::all_of(value->begin(), value->end(),
                                           [](const nlohmann::json& text) {
                                             return text.is_string();
                                           })) {
      return Fail(name, "is no list of texts");
    }
    return value->get<std::vector<std::string>>();
  }
  std::optional<double> Number(const char* name, double least, double most) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    return NumberOf(*value, name, least, most);
  }
  // A list of numbers, or one number in place of a list of one.
  std::optional<std::vector<double>> Numbers(const char* name, double least,
                                             double most) {
    return NumberList(name, least, most, std::nullopt, 0);
  }
  // Numbers(), where the text `word` stands for `number`.
  std::optional<std::vector<double>> NumbersOr(const char* name, double least,
                                               double most,
                                               absl::string_view word,
                                               double number) {
    return NumberList(name, least, most, word, number);
  }
  // Calls `entry` with the fields of an object; false: there is none.
  template <typename Function>
  bool Object(const char* name, const Function& entry) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return false;
    JsonFields fields(*value,
                      absl::StrCat(where_, where_.empty() ? "" : ".", name),
                      &status_);
    if (!status_.ok()) return true;
    entry(fields);
    fields.RefuseOthers();
    return true;
  }
  bool Has(const char* name) const { return json_.contains(name); }
  bool IsList(const char* name) const {
    const auto found = json_.find(name);
    return found != json_.end() && found->is_array();
  }
  bool IsObject(const char* name) const {
    const auto found = json_.find(name);
    return found != json_.end() && found->is_object();
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : json_.items()) names.push_back(name);
    return names;
  }
  bool ok() const { return status_.ok(); }
  // Calls `entry` with the fields of each object of a list.
  template <typename Function>
  void Each(const char* name, const Function& entry) {
    const nlohmann::json* const list = Find(name);
    if (list == nullptr) return;
    if (!list->is_array()) {
      Fail(name, "is no list");
      return;
    }
    for (size_t i = 0; i < list->size() && status_.ok(); ++i) {
      JsonFields fields(
          (*list)[i],
          absl::StrCat(where_.empty() ? "" : where_ + ".", name, "[", i, "]"),
          &status_);
      if (!status_.ok()) return;
      entry(fields);
      fields.RefuseOthers();
    }
  }
  // Accepts a field that is not used.
  void Skip(const char* name) { asked_.insert(name); }
  // Errors on fields that nobody asked for: most likely misspelt.
  void RefuseOthers() {
    if (!status_.ok()) return;
    for (const auto& [name, value] : json_.items()) {
      if (!asked_.contains(name)) {
        Fail(name, absl::StrCat("is no field here; there is ",
                                absl::StrJoin(asked_, ", ")));
        return;
      }
    }
  }
  std::nullopt_t Fail(absl::string_view name, absl::string_view what) {
    if (status_.ok()) {
      const bool dot = !where_.empty() && !name.empty();
      const std::string field = absl::StrCat(where_, dot ? "." : "", name);
      status_ = absl::InvalidArgumentError(
          absl::StrCat(field, field.empty() ? "" : ": ", what));
    }
    return std::nullopt;
  }

 private:
  std::optional<std::vector<double>> NumberList(
      const char* name, double least, double most,
      std::optional<absl::string_view> word, double number) {
    const nlohmann::json* const value = Find(name);
    if (value == nullptr) return std::nullopt;
    const nlohmann::json list =
        value->is_array() ? *value : nlohmann::json::array({*value});
    std::vector<double> numbers;
    for (const nlohmann::json& entry : list) {
      const auto read = word.has_value() && entry.is_string() &&
                                entry.get<std::string>() == *word
                            ? std::optional<double>(number)
                            : NumberOf(entry, name, least, most);
      if (!read.has_value()) return std::nullopt;
      numbers.push_back(*read);
    }
    if (numbers.empty()) return Fail(name, "is empty");
    return numbers;
  }
  std::optional<double> NumberOf(const nlohmann::json& value, const char* name,
                                 double least, double most) {
    // A NaN fails both comparisons.
    if (value.is_number() && value.get<double>() >= least &&
        value.get<double>() <= most) {
      return value.get<double>();
    }
    return Fail(name, absl::StrCat("is no number from ", least, " to ", most));
  }
  const nlohmann::json* Find(const char* name) {
    asked_.insert(name);
    if (!status_.ok()) return nullptr;
    const auto found = json_.find(name);
    return found == json_.end() ? nullptr : &*found;
  }

  const nlohmann::json& json_;
  const std::string where_;
  absl::Status& status_;
  std::set<std::string> asked_;
};

template <typename T, typename U>
void Assign(const std::optional<T>& value, U* target) {
  if (value.has_value()) *target = static_cast<U>(*value);
}

// Assign() of a field that must be there.
template <typename T, typename U>
void Need(JsonFields& fields, const char* name, const std::optional<T>& value,
          U* target) {
  Assign(value, target);
  if (!value.has_value()) fields.Fail(name, "is missing");
}

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_JSON_FIELDS_H_
