#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/torchscript/converter_torch.h"

namespace refract::models::torchscript {

absl::Status Converter::AddInputs(const torch::jit::Graph& source) {
  for (const JitValue* input : source.inputs()) {
    arguments_.insert(std::string(NameWithoutVersion(input->debugName())));
  }
  // The first is the module itself.
  for (size_t i = 0; i < source.inputs().size(); ++i) {
    const JitValue* input = source.inputs()[i];
    if (i == 0) {
      Item self;
      self.kind = Item::Kind::kModule;
      self.literal = archive_.module()._ivalue();
      items_[input] = std::move(self);
      continue;
    }
    const std::string name =
        input->hasDebugName()
            ? std::string(NameWithoutVersion(input->debugName()))
            : absl::StrCat("input_", i - 1);
    REFRACT_ASSIGN_OR_RETURN(items_[input], InputOf(*input->type(), name));
  }
  return absl::OkStatus();
}

Item Converter::AddInput(const std::string& name) {
  Item item = Item::Tensor(build_.AddValue(name));
  const auto example = examples_.find(name);
  // Some operators write into their inputs.
  if (example != examples_.end()) item.example = example->second.clone();
  build_.graph().inputs.push_back(item.value);
  return item;
}

bool Converter::HasExample(absl::string_view prefix) const {
  return std::any_of(examples_.begin(), examples_.end(),
                     [prefix](const auto& example) {
                       return absl::StartsWith(example.first, prefix);
                     });
}

absl::StatusOr<Item> Converter::InputOf(const c10::Type& type,
                                        const std::string& name) {
  if (type.kind() == c10::TypeKind::TensorType) return AddInput(name);
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    // Left out when the sample leaves it out.
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
  return absl::UnimplementedError(absl::StrCat(
      "input ", name, " is a ", type.str(),
      list == nullptr ? "; only tensors can be served"
                      : "; its length is known with a --sample only"));
}

absl::StatusOr<Item> Converter::DictInput(const c10::DictType& type,
                                          const std::string& name) {
  Item dict = Item::Dict({}, {});
  dict.path = name;
  if (type.getKeyType()->kind() != c10::TypeKind::StringType) return dict;
  const std::string prefix = absl::StrCat(name, "_");
  std::vector<std::string> keys;
  for (const auto& [input, tensor] : examples_) {
    if (absl::StartsWith(input, prefix) && !arguments_.contains(input)) {
      keys.push_back(input.substr(prefix.size()));
    }
  }
  // Then these are all.
  if (!keys.empty()) dict.path.clear();
  std::sort(keys.begin(), keys.end());
  for (const std::string& key : keys) {
    dict.keys->push_back(key);
    dict.contents->push_back(AddInput(absl::StrCat(prefix, key)));
  }
  return dict;
}

absl::Status Converter::AddOutput(const Item& item) {
  if (item.kind == Item::Kind::kList || item.kind == Item::Kind::kDict) {
    for (const Item& element : item.elements()) {
      REFRACT_RETURN_IF_ERROR(AddOutput(element));
    }
    return absl::OkStatus();
  }
  Graph& graph = build_.graph();
  const std::string name = absl::StrCat("output_", graph.outputs.size());
  if (item.kind != Item::Kind::kValue || item.is_number) {
    return absl::UnimplementedError(absl::StrCat(name, " is no tensor"));
  }
  graph.outputs.push_back(item.value);
  graph.output_names.push_back(name);
  return absl::OkStatus();
}

absl::Status Converter::AddAttributes() {
  for (const auto& [name, tensor] : archive_.module().named_parameters()) {
    REFRACT_RETURN_IF_ERROR(build_.WeightOf(name, tensor).status());
  }
  for (const auto& [name, tensor] : archive_.module().named_buffers()) {
    REFRACT_RETURN_IF_ERROR(build_.WeightOf(name, tensor).status());
  }
  return absl::OkStatus();
}

}  // namespace refract::models::torchscript
