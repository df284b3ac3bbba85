#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/passes/complex_numbers.h"
#include "models/torchscript/converter_torch.h"
#include "models/torchscript/items_torch.h"
#include "models/torchscript/python_torch.h"
#include "runtime/torch/convert_torch.h"

namespace refract::models::torchscript {
namespace {

bool MakesText(const JitNode& node) {
  return node.outputs().size() == 1 &&
         node.output()->type()->kind() == c10::TypeKind::StringType;
}

// startswith(), find(), len() of a text.
bool AsksText(const JitNode& node) {
  if (node.outputs().size() != 1 || node.inputs().empty()) return false;
  const c10::TypeKind answer = node.output()->type()->kind();
  return node.inputs()[0]->type()->kind() == c10::TypeKind::StringType &&
         (answer == c10::TypeKind::BoolType ||
          answer == c10::TypeKind::IntType);
}

}  // namespace

absl::string_view NameWithoutVersion(absl::string_view name) {
  // Only a suffix of digits is a version; "layer.weight" stays whole.
  const size_t dot = name.rfind('.');
  if (dot == absl::string_view::npos || dot == 0 || dot + 1 == name.size() ||
      !std::all_of(name.begin() + dot + 1, name.end(),
                   [](char c) { return c >= '0' && c <= '9'; })) {
    return name;
  }
  return name.substr(0, dot);
}

std::string NameOf(const JitNode& node, absl::string_view otherwise) {
  if (node.outputs().size() == 1 && node.output()->hasDebugName()) {
    return std::string(NameWithoutVersion(node.output()->debugName()));
  }
  return std::string(otherwise);
}

std::string Location(const JitNode& node) {
  const auto place = node.sourceRange().file_line_col();
  if (!place) return "";
  return absl::StrCat(" at ", std::get<0>(*place), ":", std::get<1>(*place));
}

std::vector<Item> Converter::Inputs(const JitNode& node) {
  std::vector<Item> inputs;
  for (const JitValue* input : node.inputs()) {
    inputs.push_back(ItemOf(input));
  }
  return inputs;
}

absl::Status Converter::Set(const JitNode& node, Item item) {
  items_[node.output()] = std::move(item);
  return absl::OkStatus();
}

absl::Status Converter::SetOr(const JitNode& node, absl::StatusOr<Item> item) {
  if (!item.ok()) return item.status();
  return Set(node, *std::move(item));
}

absl::Status Converter::ConvertBlock(const JitBlock& block) {
  for (const JitNode* node : block.nodes()) {
    // While tracing, each node is copied before its conversion is tried,
    // because a failed conversion needs the copy for the interpreter. A branch
    // or loop is copied only when its conversion fails: a decided branch and an
    // unrolled loop leave their body's nodes in the flat graph instead.
    const bool tracing = traced_.graph != nullptr;
    const bool control =
        node->kind() == c10::prim::If || node->kind() == c10::prim::Loop;
    JitNode* copy = tracing && !control ? Copy(*node) : nullptr;
    absl::Status status =
        copy != nullptr && ReadsOpaque(*node)
            ? absl::UnimplementedError(
                  "reads a list or object that LibTorch's interpreter makes, "
                  "and only the interpreter can read it")
            : ConvertNode(*node);
    // Unimplemented means "no form in the IR" and makes the node opaque. Other
    // errors hold for every request and end the import. Emit() makes no node
    // opaque: its regions hold the nodes that Trace() could not convert.
    if (tracing && absl::IsUnimplemented(status)) {
      if (copy == nullptr) copy = Copy(*node);
      status = MakeOpaque(*node, copy, status);
    }
    // Aborted begins the walk again; it is no error and needs no location.
    if (absl::IsAborted(status)) return status;
    if (!status.ok()) {
      return base::Annotate(
          status, absl::StrCat(node->kind().toQualString(), Location(*node)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Traced> Converter::Trace(
    const torch::jit::Graph& source,
    absl::flat_hash_set<const JitNode*>& whole_loops) {
  whole_loops_ = &whole_loops;
  traced_.graph = std::make_shared<torch::jit::Graph>();
  for (const JitValue* input : source.inputs()) {
    flat_of_[input] =
        traced_.graph->addInput()->copyMetadata(const_cast<JitValue*>(input));
  }
  REFRACT_RETURN_IF_ERROR(AddInputs(source));
  REFRACT_RETURN_IF_ERROR(ConvertBlock(*source.block()));
  // ReturnFrom() also counts and names the outputs, so that a trace without
  // opaque nodes is the finished model.
  for (const JitValue* output : source.outputs()) {
    REFRACT_RETURN_IF_ERROR(
        ReturnFrom(output, flat_of_.at(output), ItemOf(output)));
  }
  REFRACT_RETURN_IF_ERROR(AddAttributes());
  return std::move(traced_);
}

absl::Status Converter::Emit(const Traced& traced,
                             const std::vector<Unit>& units) {
  const torch::jit::Graph& source = *traced.graph;
  REFRACT_RETURN_IF_ERROR(AddInputs(source));
  // `units` are in an order that keeps dependencies (PlanRegions()), not in the
  // order of the flat graph.
  for (const Unit& unit : units) {
    const JitNode& first = *unit.nodes.front();
    const absl::Status status =
        unit.is_region ? EmitRegion(traced, unit.nodes) : ConvertNode(first);
    if (!status.ok()) {
      return base::Annotate(
          status, absl::StrCat(first.kind().toQualString(), Location(first)));
    }
  }
  for (const JitValue* output : source.outputs()) {
    REFRACT_RETURN_IF_ERROR(AddOutput(ItemOf(output), output->type()));
  }
  REFRACT_RETURN_IF_ERROR(CheckWrittenWeights());
  return AddAttributes();
}

absl::Status Converter::ConvertNode(const JitNode& node) {
  // The tests below go from special forms to general ones, and their order
  // matters: aten::eq, aten::slice, aten::add and other names serve lists,
  // numbers and tensors alike. Lists and dictionaries are tried before numbers,
  // numbers before tensors.
  const absl::string_view op = node.kind().toQualString();
  if (op == "prim::Constant") return ConvertConstant(node);
  if (op == "prim::GetAttr") return ConvertGetAttr(node);
  if (op == "prim::ListConstruct" || op == "prim::TupleConstruct") {
    return Set(node, Item::List(Inputs(node)));
  }
  if (op == "prim::DictConstruct") {
    // Keys and values alternate.
    std::vector<c10::IValue> keys;
    std::vector<Item> elements;
    for (size_t i = 1; i < node.inputs().size(); i += 2) {
      if (Input(node, i - 1).kind != Item::Kind::kLiteral) {
        return absl::UnimplementedError(
            "a key of this dictionary is not known at import");
      }
      keys.push_back(Input(node, i - 1).literal);
      elements.push_back(Input(node, i));
    }
    return Set(node, Item::Dict(std::move(keys), std::move(elements)));
  }
  if (op == "prim::ListUnpack" || op == "prim::TupleUnpack") {
    return ConvertUnpack(node);
  }
  if (op == "prim::If") return ConvertIf(node);
  if (op == "prim::Loop") return ConvertLoop(node);
  if (op == "prim::RaiseException") {
    return absl::InvalidArgumentError(
        "forward() reaches this raise statement whatever the request is");
  }
  // A server has no reader for warnings and prints.
  if (op == "aten::warn" || op == "prim::Print") return absl::OkStatus();
  // The value of a name on a path that does not reach its use.
  if (op == "prim::Uninitialized") return Set(node, Item());
  // Parts of models run on the CPU for the sample and wherever the plan says
  // later, so questions about devices get the CPU's answer.
  if (op == "prim::type" && Input(node, 0).kind == Item::Kind::kLiteral &&
      Input(node, 0).literal.isDevice()) {
    return Set(node, Item::Literal(std::string("cpu")));
  }
  // Served tensors are dense, need no gradient, and run no Python.
  if (op == "aten::is_grad_enabled" || op == "aten::is_autocast_enabled" ||
      op == "prim::is_nested" || op == "prim::requires_grad" ||
      op == "prim::is_sparse" || op == "prim::is_mkldnn" ||
      op == "prim::is_quantized" || op == "aten::is_scripting") {
    return Set(node, Item::Literal(false));
  }
  std::vector<Item> inputs = Inputs(node);
  if (MakesText(node) || AsksText(node)) {
    if (auto text = KnownText(node, inputs)) return Set(node, *std::move(text));
    // Exceptions and warnings report such texts, and nothing else may read one.
    if (op == "aten::format" || op == "aten::str") {
      Item text;
      text.kind = Item::Kind::kText;
      return Set(node, std::move(text));
    }
  }
  // Resolved dtypes are literals, which SameContents() compares.
  if (op == "aten::eq" || op == "aten::ne") {
    for (Item& input : inputs) {
      if (input.kind == Item::Kind::kDTypeOf) {
        input = Resolved(input, build_);
      }
    }
    if (auto same = SameContents(inputs, build_)) {
      if (!same->ok()) return same->status();
      if (op == "aten::eq") return SetOr(node, *std::move(same));
      return SetOr(node, build_.Compute("py.not_", {**same}));
    }
  }
  ListSizes(op, inputs, build_);
  if (IsContainerOp(op, inputs)) {
    auto result = ContainerOp(op, inputs, [this](const std::string& name) {
      const auto [input, first] = looked_up_.try_emplace(name);
      if (first) input->second = AddInput(name);
      return input->second;
    });
    if (!result.ok()) return result.status();
    if (node.outputs().empty()) return absl::OkStatus();
    return Set(node, *std::move(result));
  }
  // Ranks and dtypes are the same for every request, so the sample's may be
  // read.
  if (op == "aten::dim" || op == "aten::is_floating_point") {
    if (const at::Tensor* example = inputs[0].example_tensor()) {
      return Set(node, op == "aten::dim"
                           ? Item::Literal(example->dim())
                           : Item::Literal(example->is_floating_point()));
    }
    return absl::UnimplementedError(
        "the rank or dtype of this tensor is known only from an example "
        "request that the model accepts");
  }
  if (op == "aten::__range_length" || op == "aten::__derive_index") {
    return ConvertRange(node, op == "aten::__range_length");
  }
  // These operators change only the type in TorchScript's eyes, or the device.
  // An item is the same before and after.
  if (op == "prim::NumToTensor" || op == "prim::unchecked_cast" ||
      op == "prim::unchecked_unwrap_optional" ||
      op == "aten::_unwrap_optional" || op == "aten::cpu" ||
      op == "aten::cuda") {
    return Set(node, Input(node, 0));
  }
  // The item keeps value and example of its tensor: Resolved() needs the
  // example, ConvertTo() the value.
  if (op == "prim::dtype") {
    Item item = Input(node, 0);
    item.kind = Item::Kind::kDTypeOf;
    return Set(node, std::move(item));
  }
  if (op == "prim::device") {
    return Set(node, Item::Literal(c10::Device(at::kCPU)));
  }
  if (op == "prim::is_cuda") return Set(node, Item::Literal(false));
  if (op == "aten::__is__" || op == "aten::__isnot__") {
    return ConvertIs(node, op == "aten::__is__");
  }
  if (op == "prim::isinstance") return ConvertIsInstance(node);
  if (op == "aten::__getitem__" || op == "prim::TupleIndex") {
    return SetOr(node, Element(inputs, build_));
  }
  if (op == "aten::size" || op == "aten::len" || op == "aten::numel") {
    return SetOr(node, Size(node, inputs, build_));
  }
  if (op == "aten::Int" || op == "aten::Float" || op == "aten::Bool" ||
      op == "aten::IntImplicit" || op == "aten::FloatImplicit" ||
      op == "aten::ScalarImplicit" || op == "aten::item") {
    return SetOr(node, ToNumber(node, inputs, build_));
  }
  if (IsArithmetic(node, inputs)) {
    return SetOr(node, Arithmetic(node, inputs, build_));
  }
  if (op == "aten::to") return ConvertTo(node);
  return ConvertOperator(node, op);
}

absl::Status Converter::ConvertConstant(const JitNode& node) {
  const auto literal = torch::jit::toIValue(node.output());
  if (!literal) {
    return absl::UnimplementedError(
        "LibTorch gives no value for this constant");
  }
  REFRACT_ASSIGN_OR_RETURN(Item item, FromIValue(*literal, ""));
  return Set(node, std::move(item));
}

absl::StatusOr<Item> Converter::FromIValue(const c10::IValue& value,
                                           const std::string& path) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return Item();
    // Attributes are named by their path in the module, constants of the code
    // by their entry in the file ("constants.6"), because the code gives them
    // no name.
    std::string name = path;
    if (name.empty()) {
      name = archive_.EntryName(tensor);
      std::replace(name.begin(), name.end(), '/', '.');
      if (name.empty()) name = "constant";
      name = build_.ConstantName(name, tensor);
    }
    REFRACT_ASSIGN_OR_RETURN(const ValueId id, build_.WeightOf(name, tensor));
    Item item = Item::Tensor(id);
    item.example = tensor;
    if (tensor.dim() == 0 && !tensor.is_complex()) {
      item.constant = archive_.ScalarOf(tensor);
    }
    return item;
  }
  if (value.isTensorList() || value.isTuple() ||
      (value.isList() && !value.toListRef().empty() &&
       value.toListRef()[0].isTensor())) {
    std::vector<Item> elements;
    const auto& list = value.isTuple() ? value.toTupleRef().elements().vec()
                                       : value.toListRef().vec();
    for (size_t i = 0; i < list.size(); ++i) {
      REFRACT_ASSIGN_OR_RETURN(
          Item item,
          FromIValue(list[i], path.empty() ? "" : absl::StrCat(path, ".", i)));
      elements.push_back(std::move(item));
    }
    return Item::List(std::move(elements));
  }
  if (value.isObject()) {
    // Packed weights of a quantised layer, which freezing makes constants.
    if (absl::StartsWith(value.type()->str(), "__torch__.torch.classes.")) {
      // torch::jit::tryInsertConstant() takes such an object only with a weak
      // reference to its compilation unit.
      return Item::Literal(value.toObject()->copy_to_weak_compilation_ref());
    }
    if (!value.type()->is_module()) {
      return absl::UnimplementedError(
          absl::StrCat("an object of class ", value.type()->str(),
                       " cannot be a value of the graph"));
    }
    Item item;
    item.kind = Item::Kind::kModule;
    item.literal = value;
    item.path = path;
    return item;
  }
  return Item::Literal(value);
}

absl::Status Converter::ConvertGetAttr(const JitNode& node) {
  const Item& object = Input(node, 0);
  const std::string& name = node.s(c10::attr::name);
  if (object.kind != Item::Kind::kModule) {
    return absl::UnimplementedError(absl::StrCat(
        "attribute \"", name, "\" belongs to an object that is no module"));
  }
  const std::string path =
      object.path.empty() ? name : absl::StrCat(object.path, ".", name);
  REFRACT_ASSIGN_OR_RETURN(
      Item item, FromIValue(object.literal.toObjectRef().getAttr(name), path));
  return Set(node, std::move(item));
}

absl::Status Converter::ConvertUnpack(const JitNode& node) {
  // A size() of unknown rank and a constant list become lists of items first.
  Item list = Input(node, 0);
  if (list.kind == Item::Kind::kSizes) {
    // Unpacking to as many names fixes the rank.
    std::vector<Item> sizes;
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      sizes.push_back(build_.SizeOf(list, static_cast<int64_t>(i)));
    }
    list = Item::List(std::move(sizes));
  }
  if (list.kind == Item::Kind::kLiteral && list.literal.isIntList()) {
    std::vector<Item> elements;
    for (int64_t i : list.literal.toIntVector()) {
      elements.push_back(Item::Literal(i));
    }
    list = Item::List(std::move(elements));
  }
  if (list.kind != Item::Kind::kList ||
      list.elements().size() != node.outputs().size()) {
    return absl::UnimplementedError(
        "the number of elements in this list or tuple is not known to be the "
        "number of names that it is unpacked to");
  }
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    items_[node.output(i)] = list.elements()[i];
  }
  return absl::OkStatus();
}

absl::Status Converter::ConvertTo(const JitNode& node) {
  const c10::FunctionSchema& schema = node.schema();
  const Item& self = Input(node, 0);
  // A number of a trace: the cast of its tensor does not change the size behind
  // it.
  if (IsNumber(self)) return Set(node, Item(self));
  // to(other) takes dtype and device of another tensor; the IR has it as it is.
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
    // Without a dtype the call only moves or rearranges memory, and the IR's
    // tensors have no device or memory format.
    if (!copy) return Set(node, Item(self));
    Item clone = Item::Tensor(build_.Emit(name, "aten.clone.default",
                                          {{"self", ValueRef{self.value}}}));
    clone.example = self.example;
    MarkComplex(clone);
    return Set(node, std::move(clone));
  }
  dtype = Resolved(*dtype, build_);
  // The dtype of a tensor without an example: the cast is left to the operator
  // that reads the tensor itself.
  if (dtype->kind == Item::Kind::kDTypeOf) {
    return Set(node,
               Item::Tensor(build_.Emit(name, "aten.type_as.default",
                                        {{"self", ValueRef{self.value}},
                                         {"other", ValueRef{dtype->value}}})));
  }
  base::DType type = base::DType::kUnknown;
  if (dtype->kind == Item::Kind::kLiteral && dtype->literal.isInt()) {
    const at::ScalarType scalar = dtype->literal.toScalarType();
    type = scalar == at::kComplexFloat ? kComplex64
           : scalar == at::kComplexDouble
               ? kComplex128
               : runtime::aten::FromScalarType(scalar);
  }
  if (type == base::DType::kUnknown) {
    return absl::UnimplementedError(
        "the graph has no such element type as this cast gives");
  }
  std::vector<NamedArgument> args = {{"self", ValueRef{self.value}},
                                     {"dtype", type}};
  if (copy) args.push_back({"copy", true});
  const ValueId id = build_.Emit(name, "aten.to.dtype", std::move(args));
  // Set here, since complex types are known only by it (MarkComplex()).
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
  // The schema gives argument names and the overload. prim:: operators without
  // a schema and operators of TorchScript alone have no kernel to call.
  if (schema == nullptr ||
      !c10::Dispatcher::singleton().findSchema(schema->operator_name())) {
    return absl::UnimplementedError(
        "PyTorch's dispatcher has no such operator, so no node of the graph "
        "can call it");
  }
  const absl::string_view full = schema->name();
  const size_t colons = full.find("::");
  const absl::string_view name = full.substr(colons + 2);
  // Resolved(): operators take a list of sizes and a dtype, not x.size() or
  // x.dtype.
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
    // Functionalize() recognises writes by the operator's name: "add_".
    if (writes && (i != 0 || !absl::EndsWith(name, "_")) &&
        !absl::StartsWith(name, "__i")) {
      return absl::UnimplementedError(absl::StrCat(
          "in-place writes are read only from operators whose name ends in _ "
          "and only into their first argument, and this one writes into \"",
          argument.name(), "\""));
    }
    REFRACT_ASSIGN_OR_RETURN(std::optional<Argument> value,
                             ToArgument(argument, inputs[i]));
    if (value) out.args.push_back({argument.name(), *std::move(value)});
  }
  return AddResults(node, *schema, NameOf(node, name), std::move(out),
                    RunOnExamples(*schema, inputs));
}

// Records the dtype of a complex tensor: ComplexToPairs() needs it
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
  // A node with a list result has one IR value per tensor of the list, so the
  // length must be known now: from the example, or from the node's use and
  // arguments.
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
    // Asked before AddNode() moves `out` away.
    const bool complex = GivesComplex(build_.graph(), out);
    out.output_is_list = true;
    const ValueId first = build_.AddNode(name, std::move(out), length);
    for (size_t i = 0; i < length; ++i) {
      elements.push_back(Item::Tensor(first + static_cast<ValueId>(i)));
      if (i < tensors.size()) elements.back().example = tensors[i];
      MarkComplex(elements.back());
      // Without an example the width is not known. complex64 is the complex
      // type of float32, the usual type of models.
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
                       " cannot be a value of the graph"));
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
  // TorchScript's unpacking fails for another length, so its number of names is
  // the list's length.
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
      "the number of tensors in the resulting list is not known; unpack the "
      "list to names, or give the sizes as constants");
}

}  // namespace refract::models::torchscript
