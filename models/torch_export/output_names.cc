#include "models/torch_export/output_names.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace refract::models::torch_export {
namespace {

// A tree specification is a node {"type", "context", "children_spec"}; type is
// null at a leaf (torch/utils/_pytree.py, treespec_dumps, version 1).
constexpr int kMaxDepth = 64;

bool IsDict(const Json& node) {
  const std::string* type = String(Member(node, "type"));
  return type != nullptr &&
         (*type == "builtins.dict" || *type == "collections.OrderedDict");
}

// Clients see these as tensor names.
std::string Cleaned(absl::string_view key) {
  std::string name(key);
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '.' && c != '-') c = '_';
  }
  return name;
}

bool CollectLeaves(const Json& node, const std::string& prefix, int depth,
                   std::vector<std::string>& names) {
  const Json* type = Member(node, "type");
  const Json* children = Array(Member(node, "children_spec"));
  if (type == nullptr || children == nullptr || depth > kMaxDepth) return false;
  if (type->is_null()) {
    names.push_back(prefix);
    return true;
  }
  std::vector<std::string> keys;
  if (IsDict(node)) {
    const std::string* context = String(Member(node, "context"));
    if (context == nullptr) return false;
    const Json parsed = Json::parse(*context, nullptr, false);
    if (!parsed.is_array()) return false;
    for (const Json& key : parsed) {
      if (String(&key) == nullptr) return false;
      keys.push_back(Cleaned(*String(&key)));
    }
  } else {
    for (size_t i = 0; i < children->size(); ++i) {
      keys.push_back(absl::StrCat(i));
    }
  }
  if (keys.size() != children->size()) return false;
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string name =
        prefix.empty() ? keys[i] : absl::StrCat(prefix, "_", keys[i]);
    if (!CollectLeaves((*children)[i], name, depth + 1, names)) return false;
  }
  return true;
}

}  // namespace

std::optional<std::vector<std::string>> DictOutputNames(
    const Json& graph_module) {
  const Json* calls = Array(Member(graph_module, "module_call_graph"));
  if (calls == nullptr || calls->empty()) return std::nullopt;
  const Json* signature = Member((*calls)[0], "signature");
  const std::string* text =
      signature == nullptr ? nullptr : String(Member(*signature, "out_spec"));
  if (text == nullptr) return std::nullopt;
  // [version, root]
  const Json spec = Json::parse(*text, nullptr, false);
  if (!spec.is_array() || spec.size() != 2 || !IsDict(spec[1])) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  if (!CollectLeaves(spec[1], "", 0, names)) return std::nullopt;
  absl::flat_hash_set<absl::string_view> unique;
  for (const std::string& name : names) {
    if (name.empty() || !unique.insert(name).second) return std::nullopt;
  }
  return names;
}

}  // namespace refract::models::torch_export
