#include "models/torch_export/tree_names.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace refract::models::torch_export {
namespace {

// A tree specification is a node {"type", "context", "children_spec"}; type is
// null at a leaf (torch/utils/_pytree.py, treespec_dumps, version 1).
constexpr int kMaxTreeDepth = 64;

bool IsDict(const Json& node) {
  const std::string* type = String(Member(node, "type"));
  return type != nullptr &&
         (*type == "builtins.dict" || *type == "collections.OrderedDict");
}

bool IsSequence(const Json& node) {
  const std::string* type = String(Member(node, "type"));
  return type != nullptr &&
         (*type == "builtins.tuple" || *type == "builtins.list");
}

// Not the first of a UTF-8 character's bytes: a character becomes one '_'.
bool IsContinuation(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

// Clients see these as tensor names.
std::string Cleaned(absl::string_view key) {
  std::string name;
  for (const char c : key) {
    if (IsContinuation(c)) continue;
    const bool kept =
        absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-';
    name.push_back(kept ? c : '_');
  }
  return name;
}

std::string Joined(const std::string& prefix, const std::string& key) {
  return prefix.empty() ? key : absl::StrCat(prefix, "_", key);
}

struct Leaf {
  std::string name;
  // Part of an object of a class: the specification lacks the rest of the name.
  bool is_part = false;
};

// The keys of a dict; nullopt unless they are texts or whole numbers, one per
// child.
std::optional<std::vector<std::string>> KeysOf(const Json& node) {
  const std::string* context = String(Member(node, "context"));
  const Json* children = Array(Member(node, "children_spec"));
  if (context == nullptr || children == nullptr) return std::nullopt;
  const std::optional<Json> parsed = Json::Parse(*context);
  if (!parsed || !parsed->is_array() || parsed->size() != children->size()) {
    return std::nullopt;
  }
  std::vector<std::string> keys;
  for (const Json& key : *parsed) {
    const std::string* text = String(&key);
    if (text == nullptr && !Int(&key)) return std::nullopt;
    keys.push_back(text != nullptr ? *text : key.Text());
  }
  return keys;
}

bool CollectLeaves(const Json& node, const Leaf& above, bool parts, int depth,
                   std::vector<Leaf>& leaves) {
  const Json* type = Member(node, "type");
  const Json* children = Array(Member(node, "children_spec"));
  if (type == nullptr || children == nullptr || depth > kMaxTreeDepth)
    return false;
  if (type->is_null()) {
    leaves.push_back(above);
    return true;
  }
  // Children of a dict are named by key, of a list or tuple by index. The parts
  // of any other class have names that only its flattening function knows.
  std::vector<Leaf> below(children->size(), above);
  if (parts && !IsDict(node) && !IsSequence(node)) {
    for (Leaf& leaf : below) leaf.is_part = true;
  } else if (IsDict(node)) {
    const auto keys = KeysOf(node);
    if (!keys) return false;
    for (size_t i = 0; i < below.size(); ++i) {
      const std::string& key = (*keys)[i];
      below[i].name = Joined(above.name, parts ? AsWord(key) : Cleaned(key));
    }
  } else {
    for (size_t i = 0; i < below.size(); ++i) {
      below[i].name = Joined(above.name, absl::StrCat(i));
    }
  }
  for (size_t i = 0; i < below.size(); ++i) {
    below[i].is_part |= above.is_part;
    if (below[i].is_part) below[i].name = above.name;
    if (!CollectLeaves((*children)[i], below[i], parts, depth + 1, leaves)) {
      return false;
    }
  }
  return true;
}

// The signature of the whole model.
const Json* Signature(const Json& graph_module) {
  const Json* calls = Array(Member(graph_module, "module_call_graph"));
  if (calls == nullptr || calls->empty()) return nullptr;
  return Member((*calls)[0], "signature");
}

// The root of a specification, which is written as text: [version, root].
std::optional<Json> RootOf(const Json* signature, absl::string_view member) {
  const std::string* text =
      signature == nullptr ? nullptr : String(Member(*signature, member));
  if (text == nullptr) return std::nullopt;
  const std::optional<Json> spec = Json::Parse(*text);
  if (!spec || !spec->is_array() || spec->size() != 2) return std::nullopt;
  return (*spec)[1];
}

// Leaves of ((arguments…), {keyword: argument}), named after the arguments.
std::optional<std::vector<Leaf>> InputLeaves(const Json& graph_module) {
  const Json* signature = Signature(graph_module);
  const std::optional<Json> root = RootOf(signature, "in_spec");
  const Json* sides = root ? Array(Member(*root, "children_spec")) : nullptr;
  const Json* names =
      root ? Array(Member(*signature, "forward_arg_names")) : nullptr;
  if (sides == nullptr || names == nullptr || sides->size() != 2 ||
      !IsSequence((*sides)[0]) || !IsDict((*sides)[1])) {
    return std::nullopt;
  }
  const Json* positional = Array(Member((*sides)[0], "children_spec"));
  const Json* keywords = Array(Member((*sides)[1], "children_spec"));
  const auto keys = KeysOf((*sides)[1]);
  if (positional == nullptr || keywords == nullptr || !keys ||
      positional->size() > names->size()) {
    return std::nullopt;
  }
  // Positional arguments take the first names of forward(), keywords their own.
  std::vector<Leaf> leaves;
  for (size_t i = 0; i < positional->size(); ++i) {
    const std::string* name = String(&(*names)[i]);
    if (name == nullptr || name->empty() ||
        !CollectLeaves((*positional)[i], {*name}, /*parts=*/true, 0, leaves)) {
      return std::nullopt;
    }
  }
  for (size_t i = 0; i < keywords->size(); ++i) {
    if (!CollectLeaves((*keywords)[i], {AsWord((*keys)[i])}, /*parts=*/true, 0,
                       leaves)) {
      return std::nullopt;
    }
  }
  return leaves;
}

std::string AsExported(absl::string_view name) {
  return absl::AsciiStrToLower(AsWord(name));
}

// The suffix that makes a repeated name unique: "_2", or nothing.
bool IsCount(absl::string_view rest) {
  if (rest.empty()) return true;
  return absl::ConsumePrefix(&rest, "_") && !rest.empty() &&
         std::all_of(rest.begin(), rest.end(), absl::ascii_isdigit);
}

}  // namespace

std::string AsWord(absl::string_view key) {
  std::string word;
  for (const char c : key) {
    if (IsContinuation(c)) continue;
    word.push_back(absl::ascii_isalnum(c) ? c : '_');
  }
  return word;
}

std::optional<std::vector<std::string>> DictOutputNames(
    const Json& graph_module) {
  const std::optional<Json> root = RootOf(Signature(graph_module), "out_spec");
  if (!root || !IsDict(*root)) return std::nullopt;
  std::vector<Leaf> leaves;
  if (!CollectLeaves(*root, {}, /*parts=*/false, 0, leaves)) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  absl::flat_hash_set<std::string> unique;
  for (Leaf& leaf : leaves) {
    if (leaf.name.empty() || !unique.insert(leaf.name).second) {
      return std::nullopt;
    }
    names.push_back(std::move(leaf.name));
  }
  return names;
}

std::vector<std::string> InputNames(const Json& graph_module,
                                    const std::vector<std::string>& exported) {
  std::vector<std::string> names = exported;
  const auto leaves = InputLeaves(graph_module);
  if (!leaves || leaves->size() != exported.size()) return names;
  absl::flat_hash_set<std::string> taken(exported.begin(), exported.end());
  for (size_t i = 0; i < names.size(); ++i) {
    const Leaf& leaf = (*leaves)[i];
    absl::string_view rest = exported[i];
    // A name that the specification does not lead to stays as exported.
    if (!absl::ConsumePrefix(&rest, AsExported(leaf.name))) continue;
    std::string name = leaf.name;
    if (leaf.is_part) {
      absl::StrAppend(&name, rest);
    } else if (!IsCount(rest)) {
      continue;
    }
    if (taken.insert(name).second) names[i] = std::move(name);
  }
  return names;
}

}  // namespace refract::models::torch_export
