#include "models/torchscript/convert_torch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/aten/convert_torch.h"
#include "models/torchscript/builder_torch.h"
#include "models/torchscript/containers_torch.h"
#include "models/torchscript/example_torch.h"
#include "models/torchscript/item_torch.h"
#include "models/torchscript/numbers_torch.h"

namespace refract::models::torchscript {
namespace {

using JitBlock = torch::jit::Block;
using JitNode = torch::jit::Node;
using JitValue = torch::jit::Value;

// Loops of a model count layers, fields or steps.
constexpr int64_t kMaxIterations = 10'000;

// "weights0.1" → "weights0": the number only tells versions of a name apart.
absl::string_view WithoutVersion(absl::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == absl::string_view::npos || dot == 0 || dot + 1 == name.size() ||
      !std::all_of(name.begin() + dot + 1, name.end(),
                   [](char c) { return c >= '0' && c <= '9'; })) {
    return name;
  }
  return name.substr(0, dot);
}

std::string Location(const JitNode& node) {
  const auto place = node.sourceRange().file_line_col();
  if (!place) return "";
  return absl::StrCat(" at ", std::get<0>(*place), ":", std::get<1>(*place));
}

// A branch that does nothing but raise an exception.
bool Raises(const JitBlock& block) {
  for (const JitNode* node : block.nodes()) {
    if (node->kind() == c10::prim::RaiseException) return true;
  }
  return false;
}

class Converter {
 public:
  Converter(const Archive& archive, const Examples& examples)
      : archive_(archive), examples_(examples), build_(archive) {}

  absl::StatusOr<Converted> Run() {
    const auto method = archive_.module().find_method("forward");
    if (!method) return absl::InvalidArgumentError("has no forward()");
    const std::shared_ptr<torch::jit::Graph> source = method->graph()->copy();
    torch::jit::Inline(*source);
    torch::jit::EliminateDeadCode(source);
    REFRACT_RETURN_IF_ERROR(AddInputs(*source));
    REFRACT_RETURN_IF_ERROR(ConvertBlock(*source->block()));
    for (const JitValue* output : source->outputs()) {
      REFRACT_RETURN_IF_ERROR(AddOutput(ItemOf(output)));
    }
    REFRACT_RETURN_IF_ERROR(AddAttributes());
    return build_.Finish();
  }

 private:
  absl::Status AddInputs(const torch::jit::Graph& source) {
    for (const JitValue* input : source.inputs()) {
      arguments_.insert(std::string(WithoutVersion(input->debugName())));
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
              ? std::string(WithoutVersion(input->debugName()))
              : absl::StrCat("input_", i - 1);
      REFRACT_ASSIGN_OR_RETURN(items_[input], InputOf(*input->type(), name));
    }
    return absl::OkStatus();
  }

  Item AddInput(const std::string& name) {
    Item item = Item::Tensor(build_.AddValue(name));
    const auto example = examples_.find(name);
    // Some operators write into their inputs.
    if (example != examples_.end()) item.example = example->second.clone();
    build_.graph().inputs.push_back(item.value);
    return item;
  }

  bool HasExample(absl::string_view prefix) const {
    return std::any_of(examples_.begin(), examples_.end(),
                       [prefix](const auto& example) {
                         return absl::StartsWith(example.first, prefix);
                       });
  }

  // A tensor, or a dictionary, list or tuple of inputs: "features" with the
  // key "user" is the input "features_user", "xs" has "xs_0", "xs_1", ….
  absl::StatusOr<Item> InputOf(const c10::Type& type, const std::string& name) {
    if (type.kind() == c10::TypeKind::TensorType) return AddInput(name);
    if (const auto* optional = type.castRaw<c10::OptionalType>()) {
      // Left out when the sample leaves it out.
      if (!HasExample(name)) return Item();
      return InputOf(*optional->getElementType(), name);
    }
    if (const auto* tuple = type.castRaw<c10::TupleType>()) {
      std::vector<Item> elements;
      for (size_t i = 0; i < tuple->elements().size(); ++i) {
        REFRACT_ASSIGN_OR_RETURN(
            Item item,
            InputOf(*tuple->elements()[i], absl::StrCat(name, "_", i)));
        elements.push_back(std::move(item));
      }
      return Item::List(std::move(elements));
    }
    const auto* list = type.castRaw<c10::ListType>();
    if (list != nullptr && HasExample(absl::StrCat(name, "_0"))) {
      std::vector<Item> elements;
      for (int i = 0; HasExample(absl::StrCat(name, "_", i)); ++i) {
        REFRACT_ASSIGN_OR_RETURN(
            Item item,
            InputOf(*list->getElementType(), absl::StrCat(name, "_", i)));
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

  // Keys come from the sample; those that it lacks from the graph's look-ups.
  absl::StatusOr<Item> DictInput(const c10::DictType& type,
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

  absl::Status AddOutput(const Item& item) {
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

  // What the graph does not read may still have a file in the tables folder.
  absl::Status AddAttributes() {
    for (const auto& [name, tensor] : archive_.module().named_parameters()) {
      REFRACT_RETURN_IF_ERROR(build_.WeightOf(name, tensor).status());
    }
    for (const auto& [name, tensor] : archive_.module().named_buffers()) {
      REFRACT_RETURN_IF_ERROR(build_.WeightOf(name, tensor).status());
    }
    return absl::OkStatus();
  }

  absl::Status ConvertBlock(const JitBlock& block) {
    for (const JitNode* node : block.nodes()) {
      const absl::Status status = ConvertNode(*node);
      if (!status.ok()) {
        return base::Annotate(
            status, absl::StrCat(node->kind().toQualString(), Location(*node)));
      }
    }
    return absl::OkStatus();
  }

  const Item& ItemOf(const JitValue* value) { return items_[value]; }
  const Item& Input(const JitNode& node, size_t i) {
    return ItemOf(node.input(i));
  }
  absl::Status Set(const JitNode& node, Item item) {
    items_[node.output()] = std::move(item);
    return absl::OkStatus();
  }

  absl::Status SetOr(const JitNode& node, absl::StatusOr<Item> item) {
    if (!item.ok()) return item.status();
    return Set(node, *std::move(item));
  }
  std::vector<Item> Inputs(const JitNode& node) {
    std::vector<Item> inputs;
    for (const JitValue* input : node.inputs()) {
      inputs.push_back(ItemOf(input));
    }
    return inputs;
  }

  absl::Status ConvertNode(const JitNode& node) {
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
      return absl::InvalidArgumentError("the model always raises this");
    }
    if (op == "aten::warn" || op == "prim::Print") return absl::OkStatus();
    if (op == "prim::Uninitialized") return Set(node, Item());
    // Texts are for exceptions, and say by being empty that there is none.
    if (op == "aten::format" || op == "aten::str") {
      return Set(node, Item::Literal(std::string("(text)")));
    }
    if (op == "prim::type" && Input(node, 0).kind == Item::Kind::kLiteral &&
        Input(node, 0).literal.isDevice()) {
      return Set(node, Item::Literal(std::string("cpu")));
    }
    if (op == "aten::is_grad_enabled" || op == "aten::is_autocast_enabled" ||
        op == "prim::is_nested" || op == "prim::requires_grad" ||
        op == "prim::is_sparse" || op == "prim::is_mkldnn" ||
        op == "prim::is_quantized" || op == "aten::is_scripting") {
      return Set(node, Item::Literal(false));
    }
    std::vector<Item> inputs = Inputs(node);
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
        return AddInput(name);
      });
      if (!result.ok()) return result.status();
      if (node.outputs().empty()) return absl::OkStatus();
      return Set(node, *std::move(result));
    }
    if (op == "aten::dim" || op == "aten::is_floating_point") {
      if (const at::Tensor* example = inputs[0].example_tensor()) {
        return Set(node, op == "aten::dim"
                             ? Item::Literal(example->dim())
                             : Item::Literal(example->is_floating_point()));
      }
      return absl::UnimplementedError(
          "the rank or dtype of a tensor: needs a --sample that runs");
    }
    if (op == "aten::__range_length" || op == "aten::__derive_index") {
      return ConvertRange(node, op == "aten::__range_length");
    }
    if (op == "prim::NumToTensor" || op == "prim::unchecked_cast" ||
        op == "prim::unchecked_unwrap_optional" ||
        op == "aten::_unwrap_optional" || op == "aten::cpu" ||
        op == "aten::cuda") {
      return Set(node, Input(node, 0));
    }
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

  absl::Status ConvertConstant(const JitNode& node) {
    const auto literal = torch::jit::toIValue(node.output());
    if (!literal) {
      return absl::UnimplementedError("a constant of unknown kind");
    }
    REFRACT_ASSIGN_OR_RETURN(Item item, FromIValue(*literal, ""));
    return Set(node, std::move(item));
  }

  // `path`: of the attribute; empty for a constant.
  absl::StatusOr<Item> FromIValue(const c10::IValue& value,
                                  const std::string& path) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined()) return Item();
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
        item.constant = tensor.item();
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
            FromIValue(list[i],
                       path.empty() ? "" : absl::StrCat(path, ".", i)));
        elements.push_back(std::move(item));
      }
      return Item::List(std::move(elements));
    }
    if (value.isObject()) {
      if (!value.type()->is_module()) {
        return absl::UnimplementedError(
            absl::StrCat("an object of class ", value.type()->str(),
                         " has no form in the graph IR"));
      }
      Item item;
      item.kind = Item::Kind::kModule;
      item.literal = value;
      item.path = path;
      return item;
    }
    return Item::Literal(value);
  }

  absl::Status ConvertGetAttr(const JitNode& node) {
    const Item& object = Input(node, 0);
    const std::string& name = node.s(c10::attr::name);
    if (object.kind != Item::Kind::kModule) {
      return absl::UnimplementedError(
          absl::StrCat("an attribute \"", name, "\" of no module"));
    }
    const std::string path =
        object.path.empty() ? name : absl::StrCat(object.path, ".", name);
    REFRACT_ASSIGN_OR_RETURN(
        Item item,
        FromIValue(object.literal.toObjectRef().getAttr(name), path));
    return Set(node, std::move(item));
  }

  absl::Status ConvertUnpack(const JitNode& node) {
    Item list = Input(node, 0);
    if (list.kind == Item::Kind::kSizes) {
      // The number of names tells the rank.
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
      return absl::UnimplementedError("unpacks what is not known to fit");
    }
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      items_[node.output(i)] = list.elements()[i];
    }
    return absl::OkStatus();
  }

  absl::Status ConvertIf(const JitNode& node) {
    const Item& condition = Input(node, 0);
    if (condition.kind != Item::Kind::kLiteral || !condition.literal.isBool()) {
      // Checks hold for the requests that the model serves.
      const bool first_raises = Raises(*node.blocks()[0]);
      if (first_raises != Raises(*node.blocks()[1])) {
        return TakeBlock(node, *node.blocks()[first_raises ? 1 : 0]);
      }
      return absl::UnimplementedError(
          "a branch that data decides has no form in the graph IR; trace the "
          "model instead of scripting it");
    }
    return TakeBlock(node, *node.blocks()[condition.literal.toBool() ? 0 : 1]);
  }

  absl::Status TakeBlock(const JitNode& node, const JitBlock& block) {
    REFRACT_RETURN_IF_ERROR(ConvertBlock(block));
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      items_[node.output(i)] = ItemOf(block.outputs()[i]);
    }
    return absl::OkStatus();
  }

  // Inputs: the largest number of rounds, whether to begin, what is carried.
  // The body takes the round and what is carried, and gives whether to go on.
  absl::Status ConvertLoop(const JitNode& node) {
    const JitBlock& body = *node.blocks()[0];
    const auto rounds = KnownNumber(Input(node, 0), /*constants=*/true);
    std::vector<Item> carried = Inputs(node);
    carried.erase(carried.begin());
    for (int64_t i = 0;; ++i) {
      const Item& goes_on = carried.front();
      if (!rounds || rounds->kind != aten::Operand::Kind::kInt ||
          goes_on.kind != Item::Kind::kLiteral || !goes_on.literal.isBool()) {
        return absl::UnimplementedError(
            "a loop whose rounds data decides has no form in the graph IR");
      }
      if (i >= rounds->i || !goes_on.literal.toBool()) break;
      if (i == kMaxIterations) {
        return absl::UnimplementedError(
            absl::StrCat("a loop of more than ", kMaxIterations, " rounds"));
      }
      items_[body.inputs()[0]] = Item::Literal(i);
      for (size_t k = 1; k < carried.size(); ++k) {
        items_[body.inputs()[k]] = carried[k];
      }
      REFRACT_RETURN_IF_ERROR(ConvertBlock(body));
      for (size_t k = 0; k < carried.size(); ++k) {
        carried[k] = ItemOf(body.outputs()[k]);
      }
    }
    for (size_t k = 1; k < carried.size(); ++k) {
      items_[node.output(k - 1)] = carried[k];
    }
    return absl::OkStatus();
  }

  // How long a range is, or its element at a place.
  absl::Status ConvertRange(const JitNode& node, bool length) {
    std::vector<int64_t> numbers;
    for (const Item& item : Inputs(node)) {
      const auto number = KnownNumber(item, /*constants=*/true);
      if (!number || number->kind != aten::Operand::Kind::kInt) {
        return absl::UnimplementedError("a range that data decides");
      }
      numbers.push_back(number->i);
    }
    const int64_t first = numbers[0];
    if (!length) {  // index, start, step
      return Set(node, Item::Literal(numbers[1] + first * numbers[2]));
    }
    const int64_t step = numbers[2];
    if (step == 0) return absl::InvalidArgumentError("a range of step 0");
    const int64_t span = step > 0 ? numbers[1] - first : first - numbers[1];
    const int64_t stride = step > 0 ? step : -step;
    return Set(node, Item::Literal(span <= 0 ? int64_t{0}
                                             : (span + stride - 1) / stride));
  }

  absl::Status ConvertIs(const JitNode& node, bool is) {
    const bool both_none = Input(node, 0).is_none() && Input(node, 1).is_none();
    if (!Input(node, 0).is_none() && !Input(node, 1).is_none()) {
      // Attention asks whether query, key and value are one tensor.
      if (Input(node, 0).kind != Item::Kind::kValue ||
          Input(node, 1).kind != Item::Kind::kValue) {
        return absl::UnimplementedError("compares objects");
      }
      const bool same = Input(node, 0).value == Input(node, 1).value;
      return Set(node, Item::Literal(same == is));
    }
    return Set(node, Item::Literal(both_none == is));
  }

  // All casts become to.dtype; moves between devices become nothing.
  absl::Status ConvertTo(const JitNode& node) {
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
      return Set(node, std::move(clone));
    }
    dtype = Resolved(*dtype, build_);
    if (dtype->kind == Item::Kind::kDTypeOf) {
      return Set(
          node, Item::Tensor(build_.Emit(name, "aten.type_as.default",
                                         {{"self", ValueRef{self.value}},
                                          {"other", ValueRef{dtype->value}}})));
    }
    base::DType type = base::DType::kUnknown;
    if (dtype->kind == Item::Kind::kLiteral && dtype->literal.isInt()) {
      type = aten::FromScalarType(dtype->literal.toScalarType());
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
      cast.example = example->to(*aten::ToScalarType(type));
    }
    return Set(node, std::move(cast));
  }

  absl::Status ConvertOperator(const JitNode& node, absl::string_view op) {
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

  absl::Status AddResults(const JitNode& node,
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
      out.output_is_list = true;
      const ValueId first = build_.AddNode(name, std::move(out), length);
      for (size_t i = 0; i < length; ++i) {
        elements.push_back(Item::Tensor(first + static_cast<ValueId>(i)));
        if (i < tensors.size()) elements.back().example = tensors[i];
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
    const ValueId first = build_.AddNode(name, std::move(out), returns.size());
    for (size_t i = 0; i < returns.size(); ++i) {
      Item item = Item::Tensor(first + static_cast<ValueId>(i));
      if (i < examples.size()) item.example = examples[i];
      items_[node.output(i)] = std::move(item);
    }
    return absl::OkStatus();
  }

  // How many tensors a list result holds: as many as the model takes out of it,
  // or as its arguments say.
  absl::StatusOr<size_t> ListLength(const JitNode& node, const Node& out) {
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

  // A short name for a node, from the Python variable where there is one.
  static std::string NameOf(const JitNode& node, absl::string_view otherwise) {
    if (node.outputs().size() == 1 && node.output()->hasDebugName()) {
      return std::string(WithoutVersion(node.output()->debugName()));
    }
    return std::string(otherwise);
  }

  const Archive& archive_;
  const Examples& examples_;
  absl::flat_hash_set<std::string> arguments_;  // of forward()
  Builder build_;
  // References stay valid while others are added.
  std::unordered_map<const JitValue*, Item> items_;
};

}  // namespace

absl::StatusOr<Converted> Convert(const Archive& archive,
                                  const Examples& examples) {
  return Converter(archive, examples).Run();
}

}  // namespace refract::models::torchscript
