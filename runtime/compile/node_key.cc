// A key is the node's text with values numbered. Strings carry their length and
// lists their brackets, so that different argument lists have different keys.

#include "runtime/compile/node_key.h"

#include <bit>
#include <cstdint>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/graph/op_traits.h"

namespace refract::runtime {
namespace {

using models::ValueId;

class KeyWriter {
 public:
  KeyWriter(const std::function<int(ValueId)>& place, std::string& key)
      : place_(place), key_(key) {}

  void operator()(models::None) { key_ += 'n'; }
  void operator()(models::ValueRef ref) { Value(ref.id); }
  void operator()(int64_t i) { absl::StrAppend(&key_, "i", i); }
  // The key has the bits, so that 0 and −0 differ.
  void operator()(double f) {
    absl::StrAppend(&key_, "f",
                    absl::Hex(std::bit_cast<uint64_t>(f), absl::kZeroPad16));
  }
  void operator()(bool b) { key_ += b ? 't' : 'o'; }
  void operator()(const std::string& text) {
    absl::StrAppend(&key_, "s", text.size(), ":", text);
  }
  void operator()(base::DType dtype) {
    absl::StrAppend(&key_, "d", static_cast<int>(dtype));
  }
  void operator()(const models::IntOrValue& element) {
    if (element.value == models::kNoValue) {
      (*this)(element.literal);
    } else {
      Value(element.value);
    }
  }
  void operator()(const models::ValueList& list) {
    key_ += '[';
    for (const ValueId id : list) Value(id);
    key_ += ']';
  }
  template <typename Element>
  void operator()(const std::vector<Element>& list) {
    key_ += '[';
    for (const auto& element : list) (*this)(element);
    key_ += ']';
  }

 private:
  void Value(ValueId id) {
    absl::StrAppend(&key_, "v", id == models::kNoValue ? -1 : place_(id));
  }

  const std::function<int(ValueId)>& place_;
  std::string& key_;
};

}  // namespace

std::string NodeKey(const models::Node& node,
                    const std::function<int(ValueId)>& place) {
  const models::OpClass op_class = models::ClassOf(node.op);
  // No key, so never merged: random operators differ per call, unknown
  // operators may have effects, and other nodes write the memory of empty().
  if (models::IsRandom(node) || op_class == models::OpClass::kUnknown ||
      op_class == models::OpClass::kRandom ||
      absl::StrContains(node.op, "empty")) {
    return {};
  }
  std::string key = node.op;
  KeyWriter writer(place, key);
  for (const models::NamedArgument& argument : node.args) {
    // Names are part of the key, because arguments may be left out.
    absl::StrAppend(&key, "|", argument.name, "=");
    std::visit(writer, argument.value);
  }
  return key;
}

}  // namespace refract::runtime
