#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/torchscript/converter_torch.h"

namespace refract::models::torchscript {
absl::Status Converter::AddInputs(const torch::jit::Graph& source) {
  for (const JitValue* input : source.inputs()) {
    arguments_.insert(std::string(NameWithoutVersion(input->debugName())));
  }
  REFRACT_RETURN_IF_ERROR(ShareNames(source));
  // The first input is the module itself.
  for (size_t i = 0; i < source.inputs().size(); ++i) {
    const JitValue* input = source.inputs()[i];
    if (i == 0) {
      Item self;
      self.kind = Item::Kind::kModule;
      self.literal = archive_.module()._ivalue();
      items_[input] = std::move(self);
      continue;
    }
    std::string name = input->hasDebugName()
                           ? std::string(NameWithoutVersion(input->debugName()))
                           : absl::StrCat("input_", i - 1);
    if (const auto other = renamed_.find(name); other != renamed_.end()) {
      name = other->second;
    }
    REFRACT_ASSIGN_OR_RETURN(items_[input], InputOf(*input->type(), name));
  }
  return absl::OkStatus();
}

absl::Status Converter::ShareNames(const torch::jit::Graph& source) {
  renamed_.clear();
  shared_keys_.clear();
  // Each pair of a dictionary argument and another argument whose name is the
  // dictionary's name, "_" and a key. `both`: the sample has the second name as
  // well, and no argument or look-up of its own explains that name.
  for (size_t d = 1; d < source.inputs().size(); ++d) {
    const JitValue* dict = source.inputs()[d];
    if (dict->type()->kind() != c10::TypeKind::DictType) continue;
    const std::string prefix =
        absl::StrCat(NameWithoutVersion(dict->debugName()), "_");
    for (size_t a = 1; a < source.inputs().size(); ++a) {
      const std::string name(
          NameWithoutVersion(source.inputs()[a]->debugName()));
      if (a == d || !absl::StartsWith(name, prefix)) continue;
      const std::string key = name.substr(prefix.size());
      const std::string second = absl::StrCat(name, "_1");
      const bool both = examples_.contains(second) &&
                        !arguments_.contains(second) &&
                        !IsLookedUp(*dict, absl::StrCat(key, "_1"));
      if (!both) {
        // One tensor in the sample and a look-up of the key: the tensor could
        // belong to either input.
        if (examples_.empty() || !IsLookedUp(*dict, key)) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "the argument ", name, " and the key \"", key,
            "\" of the argument ", prefix.substr(0, prefix.size() - 1),
            " are both called ", name,
            "; the sample has to name the second of them ", second));
      }
      // torch.export gives the name to the first argument of forward(), too.
      shared_keys_[a < d ? second : name] = key;
      if (d < a) renamed_[name] = second;
    }
  }
  return absl::OkStatus();
}

bool Converter::IsLookedUp(const JitValue& dict, absl::string_view key) {
  return std::any_of(
      dict.uses().begin(), dict.uses().end(), [key](const auto& use) {
        // Look-ups through a copy of the dictionary, or with a computed key,
        // are not seen.
        if (use.user->kind() != c10::aten::__getitem__ || use.offset != 0) {
          return false;
        }
        const auto constant = torch::jit::toIValue(use.user->input(1));
        return constant && constant->isString() &&
               constant->toStringRef() == key;
      });
}

Item Converter::AddInput(const std::string& name) {
  Item item = Item::Tensor(build_.AddValue(name));
  const auto example = examples_.find(name);
  // A copy, because some operators write into their inputs.
  if (example != examples_.end()) item.example = example->second.clone();
  build_.graph().inputs.push_back(item.value);
  return item;
}

bool Converter::HasExample(const std::string& name) const {
  if (examples_.contains(name)) return true;
  // An element of the container, and no other argument whose name begins alike.
  const std::string prefix = absl::StrCat(name, "_");
  return std::any_of(examples_.begin(), examples_.end(),
                     [&](const auto& example) {
                       return absl::StartsWith(example.first, prefix) &&
                              !arguments_.contains(example.first);
                     });
}

namespace {

// Whether elements of a list may be inputs: tensors, and what holds tensors.
bool CanBeInput(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  const auto inner = type.containedTypes();
  return std::any_of(inner.begin(), inner.end(),
                     [](const auto& each) { return CanBeInput(*each); });
}

}  // namespace

absl::Status Converter::ConvertIsInstance(const JitNode& node) {
  const Item& item = Input(node, 0);
  const bool is_tensor = item.kind == Item::Kind::kValue && !item.is_number;
  if (!item.is_none() && !is_tensor) {
    return absl::UnimplementedError(
        "isinstance() asks about a value that is neither a tensor nor None");
  }
  const c10::TypePtr type = is_tensor ? c10::TypePtr(c10::TensorType::get())
                                      : c10::TypePtr(c10::NoneType::get());
  const auto& types = node.tys(c10::attr::types);
  return Set(node, Item::Literal(std::any_of(types.begin(), types.end(),
                                             [&type](const auto& each) {
                                               return type->isSubtypeOf(*each);
                                             })));
}

std::vector<std::string> TakeDefaults(const c10::FunctionSchema& forward,
                                      torch::jit::Graph& graph) {
  std::vector<std::string> notes;
  const torch::jit::WithInsertPoint first(*graph.nodes().begin());
  for (size_t i = graph.inputs().size(); i-- > 1;) {
    const std::string name(NameWithoutVersion(graph.inputs()[i]->debugName()));
    const auto index = forward.argumentIndexWithName(name);
    if (!index) continue;
    const c10::Argument& argument = forward.arguments()[*index];
    const auto& value = argument.default_value();
    if (!value || value->isNone() || CanBeInput(*argument.type())) continue;
    graph.inputs()[i]->replaceAllUsesWith(graph.insertConstant(*value));
    graph.eraseInput(i);
    std::ostringstream text;
    text << *value;
    notes.push_back(absl::StrCat(
        "input ", name, " is not a tensor; it has its default, ", text.str()));
  }
  std::reverse(notes.begin(), notes.end());
  return notes;
}

absl::StatusOr<Item> Converter::InputOf(const c10::Type& type,
                                        const std::string& name) {
  // Names are built outside in, "xs_0_user"; the sample answers at each level
  // whether there is such an input.
  if (type.kind() == c10::TypeKind::TensorType) return AddInput(name);
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    // An optional input that the sample lacks is None.
    if (!HasExample(name)) return Item();
    return InputOf(*optional->getElementType(), name);
  }
  if (const auto* tuple = type.castRaw<c10::TupleType>()) {
    std::vector<Item> elements;
    for (size_t i = 0; i < tuple->elements().size(); ++i) {
      REFRACT_ASSIGN_OR_RETURN(Item item, InputOf(*tuple->elements()[i],
                                                  absl::StrCat(name, "_", i)));
      elements.push_back(std::move(item));
    }
    return Item::List(std::move(elements));
  }
  const auto* list = type.castRaw<c10::ListType>();
  // The sample decides the list's length: a request has as many elements.
  if (list != nullptr && HasExample(absl::StrCat(name, "_0"))) {
    std::vector<Item> elements;
    for (int i = 0; HasExample(absl::StrCat(name, "_", i)); ++i) {
      REFRACT_ASSIGN_OR_RETURN(Item item, InputOf(*list->getElementType(),
                                                  absl::StrCat(name, "_", i)));
      elements.push_back(std::move(item));
    }
    return Item::List(std::move(elements));
  }
  const auto* dict = type.castRaw<c10::DictType>();
  if (dict != nullptr &&
      dict->getValueType()->kind() == c10::TypeKind::TensorType) {
    return DictInput(*dict, name);
  }
  if (list != nullptr && CanBeInput(*list->getElementType())) {
    return absl::UnimplementedError(
        absl::StrCat("input ", name, " is a ", type.str(),
                     "; its length is known only from an example request: give "
                     "--sample FILE with ",
                     name, "_0, ", name, "_1, ..."));
  }
  return absl::UnimplementedError(absl::StrCat(
      "input ", name, " is a ", type.str(),
      ", and requests hold tensors only; give it a default, make it a constant "
      "of the module (an argument of __init__), or a tensor"));
}

absl::StatusOr<Item> Converter::DictInput(const c10::DictType& type,
                                          const std::string& name) {
  Item dict = Item::Dict({}, {});
  dict.path = name;
  // Keys that are no texts cannot be parts of input names in the sample.
  // DictOp() adds an input per look-up.
  if (type.getKeyType()->kind() != c10::TypeKind::StringType) return dict;
  const std::string prefix = absl::StrCat(name, "_");
  // Names of inputs that are arguments themselves, as ShareNames() renamed
  // them.
  absl::flat_hash_set<std::string> others = arguments_;
  for (const auto& [argument, input] : renamed_) {
    others.erase(argument);
    others.insert(input);
  }
  // Sorted by key: the order of inputs does not depend on the sample.
  std::map<std::string, std::string> inputs;
  for (const auto& [input, tensor] : examples_) {
    if (!absl::StartsWith(input, prefix)) continue;
    const auto shared = shared_keys_.find(input);
    if (shared != shared_keys_.end()) {
      inputs[shared->second] = input;
    } else if (!others.contains(input)) {
      inputs[input.substr(prefix.size())] = input;
    }
  }
  // The sample has keys, so the graph's look-ups add none.
  if (!inputs.empty()) dict.path.clear();
  for (const auto& [key, input] : inputs) {
    dict.keys->push_back(key);
    dict.contents->push_back(AddInput(input));
  }
  return dict;
}

namespace {

// Type of element `i` of a container; nullptr where it is not known.
c10::TypePtr ElementType(const c10::TypePtr& type, size_t i) {
  if (type == nullptr) return nullptr;
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    return ElementType(optional->getElementType(), i);
  }
  if (const auto* tuple = type->castRaw<c10::TupleType>()) {
    return i < tuple->elements().size() ? tuple->elements()[i] : nullptr;
  }
  if (const auto* list = type->castRaw<c10::ListType>()) {
    return list->getElementType();
  }
  if (const auto* dict = type->castRaw<c10::DictType>()) {
    return dict->getValueType();
  }
  return nullptr;
}

// The literal as an argument, where it is a number.
std::optional<Argument> NumberOf(const c10::IValue& literal) {
  if (literal.isBool()) return literal.toBool();
  if (literal.isInt()) return literal.toInt();
  if (literal.isDouble()) return literal.toDouble();
  return std::nullopt;
}

}  // namespace

ValueId Converter::TensorOfNumber(const Item& item) {
  Argument number = ValueRef{item.value};
  // PyTorch's types for tensors of Python numbers in a trace: int64, float64,
  // bool.
  base::DType dtype = base::DType::kInt64;
  if (item.kind == Item::Kind::kLiteral) {
    number = *NumberOf(item.literal);
    if (item.literal.isDouble()) dtype = base::DType::kFloat64;
    if (item.literal.isBool()) dtype = base::DType::kBool;
  } else {
    const ValueKind kind = build_.graph().value(item.value).kind;
    if (kind == ValueKind::kSymFloat) dtype = base::DType::kFloat64;
    if (kind == ValueKind::kSymBool) dtype = base::DType::kBool;
  }
  return build_.Emit("result", "aten.scalar_tensor.default",
                     {{"s", std::move(number)}, {"dtype", dtype}});
}

absl::Status Converter::AddOutput(const Item& item, const c10::TypePtr& type) {
  if (item.kind == Item::Kind::kList || item.kind == Item::Kind::kDict) {
    for (size_t i = 0; i < item.elements().size(); ++i) {
      REFRACT_RETURN_IF_ERROR(
          AddOutput(item.elements()[i], ElementType(type, i)));
    }
    return absl::OkStatus();
  }
  Graph& graph = build_.graph();
  // Counts results that are left out, too: notes number results as the Python
  // code does, output names number tensors alone.
  const size_t position = num_results_++;
  const bool number = item.is_number || (item.kind == Item::Kind::kLiteral &&
                                         NumberOf(item.literal));
  ValueId value = item.value;
  if (number && type != nullptr && type->kind() == c10::TypeKind::TensorType) {
    value = TensorOfNumber(item);  // a size, in a trace
  } else if (item.kind != Item::Kind::kValue || number) {
    if (!item.is_none()) {
      build_.AddNote(absl::StrCat(
          "result ", position, " is not a tensor",
          type == nullptr ? "" : absl::StrCat(" (", type->str(), ")"),
          ", so answers leave it out"));
    }
    return absl::OkStatus();
  }
  graph.output_names.push_back(absl::StrCat("output_", graph.outputs.size()));
  graph.outputs.push_back(value);
  return absl::OkStatus();
}

absl::Status Converter::AddAttributes() {
  for (const auto& [name, tensor] : archive_.module().named_parameters()) {
    REFRACT_RETURN_IF_ERROR(build_.WeightOf(name, tensor).status());
  }
  for (const auto& [name, tensor] : archive_.module().named_buffers()) {
    REFRACT_RETURN_IF_ERROR(build_.WeightOf(name, tensor).status());
    build_.MarkBuffer(name);
  }
  return absl::OkStatus();
}

namespace {

// The class of a type; nullptr for other types and for modules.
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
    // Input 0 is the module. Parts are inserted behind the argument that they
    // replace and the argument is erased, so the parts take its place in the
    // order of inputs.
    for (size_t i = 1; i < graph_.inputs().size();) {
      JitValue* input = graph_.inputs()[i];
      const std::string name(NameWithoutVersion(input->debugName()));
      place_ = i + 1;
      // Objects are made before the first node, since any node may read them.
      const torch::jit::WithInsertPoint first(*graph_.nodes().begin());
      REFRACT_ASSIGN_OR_RETURN(JitValue * made, Make(input->type(), name));
      if (made == nullptr) {
        ++i;
        continue;
      }
      input->replaceAllUsesWith(made);
      graph_.eraseInput(i);
      // After the erasure the first input behind the new parts has this index.
      i = place_ - 1;
    }
    for (const auto& [name, list] : keys_) {
      if (!used_.contains(name)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--keys names the argument \"", name,
            "\", which forward() does not have or which takes no keys"));
      }
    }
    return absl::OkStatus();
  }

 private:
  // nullptr: the argument is no object of a class.
  absl::StatusOr<JitValue*> Make(const c10::TypePtr& type,
                                 const std::string& name) {
    if (const auto object = ClassOf(type)) return MakeObject(object, name);
    if (const auto* optional = type->castRaw<c10::OptionalType>()) {
      const auto object = ClassOf(optional->getElementType());
      if (object == nullptr) return nullptr;
      // The sample decides whether an optional object is there.
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
                       "; its keys are known only from an example request: "
                       "give --sample FILE with tensors named ",
                       name, "_KEY__values and so on"));
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
      // The last "__" ends the key, because keys may contain "__". Names of
      // constructor arguments are assumed to have none.
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
    // __init__(self, …): `self` is an empty object, whose attributes the inlined
    // constructor sets.
    std::vector<JitValue*> arguments = {
        graph_.insertNode(graph_.createObject(type))->output()};
    const auto& schema = init->getSchema().arguments();
    for (size_t i = 1; i < schema.size(); ++i) {
      const c10::Argument& argument = schema[i];
      const std::string part = absl::StrCat(name, "__", argument.name());
      const bool given = examples_.contains(part);
      if (argument.type()->kind() == c10::TypeKind::TensorType) {
        if (!given) {
          return absl::InvalidArgumentError(absl::StrCat(
              "input ", name, " is a ", type->str(),
              "; the example request (--sample FILE) has no ", part));
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
        return cannot(absl::StrCat(", whose constructor argument ",
                                   argument.name(), " is a ",
                                   argument.type()->str()));
      }
    }
    // Inlined here, because the converter reads graphs without calls.
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
