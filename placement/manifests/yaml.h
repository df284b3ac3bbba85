#ifndef REFRACT_PLACEMENT_MANIFESTS_YAML_H_
#define REFRACT_PLACEMENT_MANIFESTS_YAML_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace refract::placement {

// A YAML value that is written in block style: keys keep the order in which
// they were set, and strings that YAML would read as something else are quoted.
// Values only; copies are deep.
class Yaml {
 public:
  using Pair = std::pair<std::string, Yaml>;

  Yaml(const char* text) : kind_(Kind::kString), text_(text) {}
  Yaml(std::string text) : kind_(Kind::kString), text_(std::move(text)) {}
  Yaml(absl::string_view text) : Yaml(std::string(text)) {}
  Yaml(int number) : Yaml(int64_t{number}) {}
  Yaml(int64_t number) : kind_(Kind::kPlain), text_(std::to_string(number)) {}
  Yaml(bool value) : kind_(Kind::kPlain), text_(value ? "true" : "false") {}

  static Yaml Map(std::initializer_list<Pair> pairs = {});
  static Yaml List(std::initializer_list<Yaml> items = {});

  // For a map: adds `key`, or replaces its value.
  Yaml& Set(absl::string_view key, Yaml value);
  // For a map: the value of `key`, which must exist.
  Yaml& operator[](absl::string_view key);
  // For a list: appends `item`.
  Yaml& Add(Yaml item);
  // For a map or list.
  bool empty() const { return keys_.empty() && items_.empty(); }

  // Lines, each with a line break. The document of a scalar is one line.
  std::string Text() const;

 private:
  enum class Kind { kString, kPlain, kMap, kList };
  explicit Yaml(Kind kind) : kind_(kind) {}
  void Write(int indent, bool in_list, std::string& out) const;
  std::string Scalar() const;

  Kind kind_;
  std::string text_;
  std::vector<std::string> keys_;  // of a map, as many as `items_`
  std::vector<Yaml> items_;
};

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_MANIFESTS_YAML_H_
