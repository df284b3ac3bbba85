#include "models/torch_export/json.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "nlohmann/json.hpp"

namespace refract::models::torch_export {

// Builds a value from the events of nlohmann's parser, so that members that are
// skipped take no memory: call stacks are most of an export.
class JsonBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonBuilder(absl::string_view skipped) : skipped_(skipped) {}

  Json Take() { return std::move(root_); }

  bool null() override { return Add(Json()); }
  bool boolean(bool value) override { return AddOf(value); }
  bool number_integer(int64_t value) override { return AddOf(value); }
  bool number_unsigned(uint64_t value) override {
    if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return AddOf(static_cast<int64_t>(value));
    }
    return AddOf(static_cast<double>(value));
  }
  bool number_float(double value, const std::string& /*text*/) override {
    return AddOf(value);
  }
  bool string(std::string& value) override { return AddOf(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_array(size_t /*size*/) override {
    return Open(std::vector<Json>());
  }
  bool end_array() override { return Close(); }
  bool start_object(size_t /*size*/) override {
    return Open(std::vector<Json::Entry>());
  }
  // Inside a skipped member no key counts: a nested member of the same name
  // would set skip_next_, which a value behind the member would then consume.
  bool key(std::string& name) override {
    if (skip_depth_ > 0) return true;
    if (!skipped_.empty() && name == skipped_) {
      skip_next_ = true;
    } else {
      key_ = std::move(name);
    }
    return true;
  }
  bool end_object() override {
    if (skip_depth_ == 0) Sort(std::get<Members>(open_.back()->value_));
    return Close();
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    return false;
  }

 private:
  using Members = std::vector<Json::Entry>;
  // Values are destroyed one inside the other: a file must not choose the depth
  // of that recursion. Exports are some tens deep.
  static constexpr size_t kMaxDepth = 500;

  template <typename T>
  bool AddOf(T value) {
    Json json;
    json.value_ = std::move(value);
    return Add(std::move(json));
  }

  bool Add(Json json) {
    if (skip_depth_ > 0) return true;
    if (std::exchange(skip_next_, false)) return true;
    Place(std::move(json));
    return true;
  }

  Json* Place(Json json) {
    if (open_.empty()) {
      root_ = std::move(json);
      return &root_;
    }
    auto& parent = open_.back()->value_;
    if (auto* list = std::get_if<std::vector<Json>>(&parent)) {
      return &list->emplace_back(std::move(json));
    }
    return &std::get<Members>(parent)
                .emplace_back(Json::Entry{std::move(key_), std::move(json)})
                .value;
  }

  template <typename T>
  bool Open(T container) {
    // A container inside a skipped member, or the skipped member itself, only
    // counts.
    if (skip_depth_ > 0 || std::exchange(skip_next_, false)) {
      ++skip_depth_;
      return true;
    }
    if (open_.size() == kMaxDepth) return false;
    Json json;
    json.value_ = std::move(container);
    // A parent does not grow, so that nothing moves, while a child is open.
    open_.push_back(Place(std::move(json)));
    return true;
  }

  bool Close() {
    if (skip_depth_ > 0) {
      --skip_depth_;
    } else {
      open_.pop_back();
    }
    return true;
  }

  // Sorted by key, the last of equal keys alone.
  static void Sort(Members& members) {
    // Reversed, so that the stable sort puts the last of equal keys first, and
    // unique() keeps it.
    std::reverse(members.begin(), members.end());
    std::stable_sort(
        members.begin(), members.end(),
        [](const auto& a, const auto& b) { return a.key < b.key; });
    members.erase(std::unique(members.begin(), members.end(),
                              [](const auto& a, const auto& b) {
                                return a.key == b.key;
                              }),
                  members.end());
  }

  const absl::string_view skipped_;
  Json root_;
  std::vector<Json*> open_;
  std::string key_;
  bool skip_next_ = false;  // the value of a skipped member comes next
  size_t skip_depth_ = 0;   // containers open inside a skipped member
};

std::optional<Json> Json::Parse(absl::string_view text,
                                absl::string_view skipped) {
  JsonBuilder builder(skipped);
  if (!nlohmann::json::sax_parse(text.data(), text.data() + text.size(),
                                 &builder)) {
    return std::nullopt;
  }
  return builder.Take();
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
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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
