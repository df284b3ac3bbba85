#ifndef REFRACT_MODELS_TORCH_EXPORT_JSON_H_
#define REFRACT_MODELS_TORCH_EXPORT_JSON_H_

// JSON that nobody has checked, as a value: accessors return nothing for a
// wrong type. A type of ours, because nlohmann's header takes seconds to
// compile in every file that reads an export. Internal to torch_export.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"

namespace refract::models::torch_export {

class Json {
 public:
  struct Entry;  // of an object: key and value

  Json() = default;  // null

  // nullopt: no valid JSON, or nested more than 500 deep. Members called
  // `skipped` are left out with all that is in them, at any depth.
  static std::optional<Json> Parse(absl::string_view text,
                                   absl::string_view skipped = "");

  bool is_null() const { return Is<std::monostate>(); }
  bool is_array() const { return Is<std::vector<Json>>(); }
  bool is_object() const { return Is<std::vector<Entry>>(); }

  // Elements of an array, none of null; any other value is its own only
  // element, so that a reader of elements finds a malformed list malformed.
  const Json* begin() const;
  const Json* end() const { return begin() + size(); }
  size_t size() const;
  bool empty() const { return size() == 0; }
  const Json& operator[](size_t i) const { return begin()[i]; }

  // By key; of several members of one name the last. Empty unless an object.
  const std::vector<Entry>& entries() const;

  // The value as JSON text; a container as "[…]" or "{…}".
  std::string Text() const;

 private:
  friend class JsonBuilder;
  friend const std::string* String(const Json* json);
  friend std::optional<int64_t> Int(const Json* json);
  friend std::optional<bool> Bool(const Json* json);
  friend std::optional<double> Float(const Json* json);

  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(value_);
  }

  // A whole number that int64_t does not hold is a double.
  std::variant<std::monostate, bool, int64_t, double, std::string,
               std::vector<Json>, std::vector<Entry>>
      value_;
};

struct Json::Entry {
  std::string key;
  Json value;
};

// nullptr when `json` is no object or has no such member.
const Json* Member(const Json& json, absl::string_view name);

// nullptr or nullopt where `json` is nullptr or of another type.
const std::string* String(const Json* json);
const Json* Array(const Json* json);
std::optional<int64_t> Int(const Json* json);
std::optional<bool> Bool(const Json* json);
// Also the three values that JSON has no numbers for, as torch.export spells
// them.
std::optional<double> Float(const Json* json);

// The serializer's unions are objects with exactly one member: its tag.
struct Tagged {
  const std::string* tag;
  const Json* value;
};
std::optional<Tagged> Union(const Json* json);

}  // namespace refract::models::torch_export

#endif  // REFRACT_MODELS_TORCH_EXPORT_JSON_H_
