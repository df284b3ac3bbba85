#include "models/torchscript/class_inputs_torch.h"

#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/torchscript/converter_torch.h"

namespace refract::models::torchscript {
namespace {

// A class whose objects no graph can be given: not a module.
std::shared_ptr<c10::ClassType> ClassOf(const c10::TypePtr& type) {
  auto result = type->cast<c10::ClassType>();
  return result != nullptr && !result->is_module() ? result : nullptr;
}

bool IsOptionalTensor(const c10::Type& type) {
  const auto* optional = type.castRaw<c10::OptionalType>();
  return optional != nullptr &&
         optional->getElementType()->kind() == c10::TypeKind::TensorType;
}

bool IsListOfTexts(const c10::Type& type) {
  const auto* list = type.castRaw<c10::ListType>();
  return list != nullptr &&
         list->getElementType()->kind() == c10::TypeKind::StringType;
}

class Maker {
 public:
  Maker(const Examples& examples, const KeyLists& keys,
        torch::jit::Graph& graph)
      : examples_(examples), keys_(keys), graph_(graph) {}

  absl::Status Run() {
    for (size_t i = 1; i < graph_.inputs().size();) {
      JitValue* input = graph_.inputs()[i];
      const std::string name(NameWithoutVersion(input->debugName()));
      place_ = i + 1;
      const torch::jit::WithInsertPoint first(*graph_.nodes().begin());
      REFRACT_ASSIGN_OR_RETURN(JitValue * made, Make(input->type(), name));
      if (made == nullptr) {
        ++i;
        continue;
      }
      input->replaceAllUsesWith(made);
      graph_.eraseInput(i);
      i = place_ - 1;
    }
    for (const auto& [name, list] : keys_) {
      if (!used_.contains(name)) {
        return absl::InvalidArgumentError(
            absl::StrCat("no argument \"", name, "\" takes keys"));
      }
    }
    return absl::OkStatus();
  }

 private:
  // nullptr: an argument of another type.
  absl::StatusOr<JitValue*> Make(const c10::TypePtr& type,
                                 const std::string& name) {
    if (const auto object = ClassOf(type)) return MakeObject(object, name);
    if (const auto* optional = type->castRaw<c10::OptionalType>()) {
      const auto object = ClassOf(optional->getElementType());
      if (object == nullptr) return nullptr;
      if (HasParts(name)) return MakeObject(object, name);
      return graph_.insertConstant(c10::IValue());
    }
    const auto* dict = type->castRaw<c10::DictType>();
    if (dict == nullptr ||
        dict->getKeyType()->kind() != c10::TypeKind::StringType) {
      return nullptr;
    }
    const auto object = ClassOf(dict->getValueType());
    if (object == nullptr) return nullptr;
    std::vector<JitValue*> keys;
    std::vector<JitValue*> values;
    for (const std::string& key : KeysOf(name)) {
      keys.push_back(graph_.insertConstant(key));
      REFRACT_ASSIGN_OR_RETURN(
          JitValue * value, MakeObject(object, absl::StrCat(name, "_", key)));
      values.push_back(value);
    }
    if (keys.empty()) {
      return absl::UnimplementedError(
          absl::StrCat("input ", name, " is a ", type->str(),
                       "; its keys are known with a --sample only, as ", name,
                       "_KEY__values and so on"));
    }
    return graph_
        .insertNode(graph_.createDict(dict->getKeyType(), dict->getValueType(),
                                      keys, values))
        ->output();
  }

  bool HasParts(const std::string& name) const {
    const std::string prefix = absl::StrCat(name, "__");
    for (const auto& [input, tensor] : examples_) {
      if (absl::StartsWith(input, prefix)) return true;
    }
    return false;
  }

  // KEY of "NAME_KEY__part".
  std::set<std::string> KeysOf(const std::string& name) const {
    const std::string prefix = absl::StrCat(name, "_");
    std::set<std::string> keys;
    for (const auto& [input, tensor] : examples_) {
      const size_t end = input.rfind("__");
      if (!absl::StartsWith(input, prefix) || end == std::string::npos ||
          end <= prefix.size()) {
        continue;
      }
      keys.insert(input.substr(prefix.size(), end - prefix.size()));
    }
    return keys;
  }

  JitValue* AddInput(const std::string& name) {
    return graph_.insertInput(place_++, name)->setType(c10::TensorType::get());
  }

  absl::StatusOr<JitValue*> MakeObject(
      const std::shared_ptr<c10::ClassType>& type, const std::string& name) {
    const auto cannot = [&](absl::string_view why) {
      return absl::UnimplementedError(
          absl::StrCat("input ", name, " is a ", type->str(), why));
    };
    torch::jit::Function* init = type->findMethod("__init__");
    if (init == nullptr) return cannot(", whose class has no __init__()");
    std::vector<JitValue*> arguments = {
        graph_.insertNode(graph_.createObject(type))->output()};
    const auto& schema = init->getSchema().arguments();
    for (size_t i = 1; i < schema.size(); ++i) {
      const c10::Argument& argument = schema[i];
      const std::string part = absl::StrCat(name, "__", argument.name());
      const bool given = examples_.contains(part);
      if (argument.type()->kind() == c10::TypeKind::TensorType) {
        if (!given) {
          return absl::InvalidArgumentError(
              absl::StrCat("input ", name, " is a ", type->str(),
                           "; the sample has no ", part));
        }
        arguments.push_back(AddInput(part));
      } else if (IsOptionalTensor(*argument.type()) && given) {
        arguments.push_back(AddInput(part));
      } else if (IsListOfTexts(*argument.type())) {
        const auto keys = keys_.find(name);
        if (keys == keys_.end()) {
          return absl::InvalidArgumentError(absl::StrCat(
              "input ", name, " is a ", type->str(),
              "; give its keys, in the order of its lengths, with --keys ",
              name, "=KEY,KEY,..."));
        }
        used_.insert(name);
        c10::List<std::string> list;
        for (const std::string& key : keys->second) list.push_back(key);
        arguments.push_back(graph_.insertConstant(list));
      } else if (argument.default_value()) {
        arguments.push_back(graph_.insertConstant(*argument.default_value()));
      } else {
        return cannot(absl::StrCat(", whose part ", argument.name(), " is a ",
                                   argument.type()->str()));
      }
    }
    // The converter looks at graphs without calls; Inline() would see to this
    // one as well, were it written as a call.
    torch::jit::insertGraph(graph_, *torch::jit::toGraphFunction(*init).graph(),
                            arguments);
    return arguments[0];
  }

  const Examples& examples_;
  const KeyLists& keys_;
  torch::jit::Graph& graph_;
  size_t place_ = 1;                       // where the next input goes
  absl::flat_hash_set<std::string> used_;  // of keys_
};

}  // namespace

absl::Status MakeClassInputs(const Examples& examples, const KeyLists& keys,
                             torch::jit::Graph& graph) {
  return Maker(examples, keys, graph).Run();
}

}  // namespace refract::models::torchscript
