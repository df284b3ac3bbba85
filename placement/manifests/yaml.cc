#include "placement/manifests/yaml.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace refract::placement {
namespace {

// Words that YAML 1.1, which Kubernetes reads, parses as null or a boolean.
constexpr absl::string_view kWords[] = {
    "", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n"};

// Readable without quotes: begins with a letter or '/', has no character with a
// meaning in YAML, and no ':' or '#' where these have a meaning.
bool IsPlain(absl::string_view text) {
  for (const absl::string_view word : kWords) {
    if (absl::EqualsIgnoreCase(text, word)) return false;
  }
  double number = 0;  // also "inf" and "nan"
  if (absl::SimpleAtod(text, &number)) return false;
  const char first = text.front();
  if (!absl::ascii_isalpha(first) && first != '/') return false;
  return text.back() != ':' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-' ||
                  c == '/' || c == ':';
         });
}

std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < ' ') {
      absl::StrAppendFormat(&quoted, "\\x%02x", c);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace

Yaml Yaml::Map(std::initializer_list<Pair> pairs) {
  Yaml map(Kind::kMap);
  for (const Pair& pair : pairs) map.Set(pair.first, pair.second);
  return map;
}

Yaml Yaml::List(std::initializer_list<Yaml> items) {
  Yaml list(Kind::kList);
  list.items_ = items;
  return list;
}

Yaml& Yaml::Set(absl::string_view key, Yaml value) {
  const auto found = std::find(keys_.begin(), keys_.end(), key);
  if (found != keys_.end()) {
    items_[static_cast<size_t>(found - keys_.begin())] = std::move(value);
  } else {
    keys_.emplace_back(key);
    items_.push_back(std::move(value));
  }
  return *this;
}

Yaml& Yaml::operator[](absl::string_view key) {
  const auto found = std::find(keys_.begin(), keys_.end(), key);
  // A key that the map lacks is a mistake of the caller: at() throws.
  return items_.at(static_cast<size_t>(found - keys_.begin()));
}

Yaml& Yaml::Add(Yaml item) {
  items_.push_back(std::move(item));
  return *this;
}

std::string Yaml::Scalar() const {
  if (kind_ == Kind::kMap) return "{}";  // an empty map, that is
  if (kind_ == Kind::kList) return "[]";
  return kind_ == Kind::kPlain || IsPlain(text_) ? text_ : Quoted(text_);
}

// Writes from the line's current position on, at `indent` spaces. A value after
// its key begins a new line; the first line of a list's item follows its "- ".
void Yaml::Write(int indent, bool in_list, std::string& out) const {
  if (empty()) {
    absl::StrAppend(&out, in_list ? "" : " ", Scalar(), "\n");
    return;
  }
  const std::string margin(static_cast<size_t>(indent), ' ');
  if (!in_list) out += "\n";
  for (size_t i = 0; i < items_.size(); ++i) {
    if (i > 0 || !in_list) out += margin;
    if (kind_ == Kind::kList) {
      out += "- ";
      items_[i].Write(indent + 2, /*in_list=*/true, out);
    } else {
      absl::StrAppend(&out, IsPlain(keys_[i]) ? keys_[i] : Quoted(keys_[i]),
                      ":");
      // Lists are written at the margin of their key.
      const bool is_list = items_[i].kind_ == Kind::kList;
      items_[i].Write(is_list ? indent : indent + 2, /*in_list=*/false, out);
    }
  }
}

std::string Yaml::Text() const {
  std::string out;
  Write(0, /*in_list=*/true, out);
  return out;
}

}  // namespace refract::placement
