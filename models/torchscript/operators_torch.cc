#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/torch/convert_torch.h"
#include "models/passes/complex_numbers.h"
#include "models/torchscript/converter_torch.h"
#include "models/torchscript/example_torch.h"
#include "models/torchscript/numbers_torch.h"

namespace refract::models::torchscript {

absl::Status Converter::ConvertTo(const JitNode& node) {
  const c10::FunctionSchema& schema = node.schema();
  const Item& self = Input(node, 0);
  if (IsNumber(self)) return Set(node, Item(self));
  if (schema.overload_name() == "other") return ConvertOperator(node, "to");
  std::optional<Item> dtype;
  bool copy = false;
  for (size_t i = 1; i < node.inputs().size(); ++i) {
    const Item& item = Input(node, i);
    if (schema.arguments()[i].name() == "dtype" && !item.is_none()) {
      dtype = item;
    } else if (schema.arguments()[i].name() == "copy") {
      copy = item.kind == Item::Kind::kLiteral && item.literal.isBool() &&
             item.literal.toBool();
    }
  }
  const std::string name = NameOf(node, "to");
  if (!dtype) {
    if (!copy) return Set(node, Item(self));
    Item clone = Item::Tensor(build_.Emit(name, "aten.clone.default",
                                          {{"self", ValueRef{self.value}}}));
    clone.example = self.example;
    MarkComplex(clone);
    return Set(node, std::move(clone));
  }
  dtype = Resolved(*dtype, build_);
  if (dtype->kind == Item::Kind::kDTypeOf) {
    return Set(node,
               Item::Tensor(build_.Emit(name, "aten.type_as.default",
                                        {{"self", ValueRef{self.value}},
                                         {"other", ValueRef{dtype->value}}})));
  }
  base::DType type = base::DType::kUnknown;
  if (dtype->kind == Item::Kind::kLiteral && dtype->literal.isInt()) {
    const at::ScalarType scalar = dtype->literal.toScalarType();
    type = scalar == at::kComplexFloat    ? kComplex64
           : scalar == at::kComplexDouble ? kComplex128
                                          : aten::FromScalarType(scalar);
  }
  if (type == base::DType::kUnknown) {
    return absl::UnimplementedError("a cast to a type that the IR lacks");
  }
  std::vector<NamedArgument> args = {{"self", ValueRef{self.value}},
                                     {"dtype", type}};
  if (copy) args.push_back({"copy", true});
  const ValueId id = build_.Emit(name, "aten.to.dtype", std::move(args));
  build_.graph().values[id].dtype = type;
  Item cast = Item::Tensor(id);
  if (const at::Tensor* example = self.example_tensor()) {
    cast.example = example->to(dtype->literal.toScalarType());
  }
  return Set(node, std::move(cast));
}

absl::Status Converter::ConvertOperator(const JitNode& node,
                                        absl::string_view op) {
  const c10::FunctionSchema* schema = node.maybeSchema();
  if (schema == nullptr ||
      !c10::Dispatcher::singleton().findSchema(schema->operator_name())) {
    return absl::UnimplementedError("has no form in the graph IR");
  }
  const absl::string_view full = schema->name();
  const size_t colons = full.find("::");
  const absl::string_view name = full.substr(colons + 2);
  std::vector<Item> inputs;
  for (size_t i = 0; i < schema->arguments().size(); ++i) {
    inputs.push_back(Resolved(Input(node, i), build_));
  }
  Node out;
  out.op = absl::StrCat(
      full.substr(0, colons), ".", name, ".",
      schema->overload_name().empty() ? "default" : schema->overload_name());
  for (size_t i = 0; i < schema->arguments().size(); ++i) {
    const c10::Argument& argument = schema->arguments()[i];
    const bool writes =
        argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    // Functionalize() tells writes by the name alone.
    if (writes && (i != 0 || !absl::EndsWith(name, "_")) &&
        !absl::StartsWith(name, "__i")) {
      return absl::UnimplementedError(
          absl::StrCat("writes into its argument \"", argument.name(), "\""));
    }
    REFRACT_ASSIGN_OR_RETURN(std::optional<Argument> value,
                             ToArgument(argument, inputs[i]));
    if (value) out.args.push_back({argument.name(), *std::move(value)});
  }
  return AddResults(node, *schema, NameOf(node, name), std::move(out),
                    RunOnExamples(*schema, inputs));
}

// Complex tensors are told from others while a model is imported
// (models/passes/complex_numbers.h).
void Converter::MarkComplex(const Item& item) {
  const at::Tensor* example = item.example_tensor();
  if (example == nullptr || !example->is_complex()) return;
  build_.graph().values[item.value].dtype = TypeOf(*example);
}

absl::Status Converter::AddResults(const JitNode& node,
                                   const c10::FunctionSchema& schema,
                                   const std::string& name, Node out,
                                   const std::vector<c10::IValue>& examples) {
  const auto& returns = schema.returns();
  if (returns.size() == 1 &&
      returns[0].type()->kind() == c10::TypeKind::ListType) {
    std::vector<at::Tensor> tensors;
    if (examples.size() == 1 && examples[0].isTensorList()) {
      tensors = examples[0].toTensorVector();
    }
    size_t length = tensors.size();
    if (tensors.empty()) {
      REFRACT_ASSIGN_OR_RETURN(length, ListLength(node, out));
    }
    std::vector<Item> elements;
    const bool complex = GivesComplex(build_.graph(), out);
    out.output_is_list = true;
    const ValueId first = build_.AddNode(name, std::move(out), length);
    for (size_t i = 0; i < length; ++i) {
      elements.push_back(Item::Tensor(first + static_cast<ValueId>(i)));
      if (i < tensors.size()) elements.back().example = tensors[i];
      MarkComplex(elements.back());
      if (complex && elements.back().example_tensor() == nullptr) {
        build_.graph().values[elements.back().value].dtype = kComplex64;
      }
    }
    return Set(node, Item::List(std::move(elements)));
  }
  for (const c10::Argument& result : returns) {
    if (result.type()->kind() != c10::TypeKind::TensorType) {
      return absl::UnimplementedError(
          absl::StrCat("a result of type ", result.type()->str(),
                       " has no form in the graph IR"));
    }
  }
  const bool complex = GivesComplex(build_.graph(), out);
  const ValueId first = build_.AddNode(name, std::move(out), returns.size());
  for (size_t i = 0; i < returns.size(); ++i) {
    Item item = Item::Tensor(first + static_cast<ValueId>(i));
    if (i < examples.size()) item.example = examples[i];
    MarkComplex(item);
    if (complex && item.example_tensor() == nullptr) {
      build_.graph().values[item.value].dtype = kComplex64;
    }
    items_[node.output(i)] = std::move(item);
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> Converter::ListLength(const JitNode& node,
                                             const Node& out) {
  for (const auto& use : node.output()->uses()) {
    if (absl::string_view(use.user->kind().toQualString()) ==
        "prim::ListUnpack") {
      return use.user->outputs().size();
    }
  }
  for (const char* name : {"split_sizes", "split_size"}) {
    const Argument* sizes = out.FindArg(name);
    if (sizes != nullptr && std::holds_alternative<IntList>(*sizes)) {
      return std::get<IntList>(*sizes).size();
    }
  }
  return absl::UnimplementedError(
      "a list of tensors whose length is not known");
}

}  // namespace refract::models::torchscript
