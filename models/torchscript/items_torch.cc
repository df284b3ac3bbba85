#include "models/torchscript/items_torch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>

#include <exception>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/torch/convert_torch.h"
#include "runtime/torch/guards/guards_torch.h"
#include "runtime/torch/size_ops.h"

namespace refract::models::torchscript {
namespace {

const c10::Type& Unwrap(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return *optional->getElementType();
  }
  return type;
}

// The IR drops these arguments: each of its tensors is dense, contiguous and on
// the executing device.
bool IsDropped(const c10::Argument& argument) {
  switch (Unwrap(*argument.real_type()).kind()) {
    case c10::TypeKind::DeviceObjType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::GeneratorType:
      return true;
    default:
      return argument.name() == "pin_memory" ||
             argument.name() == "non_blocking";
  }
}

absl::Status NoForm(absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat(what, " cannot be an argument of a node of the graph"));
}

// A literal as an argument. TorchScript writes dtypes as integers, so only the
// schema's real_type() tells a dtype from a number.
absl::StatusOr<Argument> FromLiteral(const c10::Argument& argument,
                                     const c10::IValue& literal) {
  if (literal.isInt()) {
    if (Unwrap(*argument.real_type()).kind() == c10::TypeKind::ScalarTypeType) {
      const base::DType dtype =
          runtime::aten::FromScalarType(literal.toScalarType());
      if (dtype == base::DType::kUnknown) {
        return NoForm(c10::toString(literal.toScalarType()));
      }
      return Argument(dtype);
    }
    return Argument(literal.toInt());
  }
  if (literal.isDouble()) return Argument(literal.toDouble());
  if (literal.isBool()) return Argument(literal.toBool());
  if (literal.isString()) return Argument(literal.toStringRef());
  if (literal.isIntList()) {
    IntList list;
    for (int64_t i : literal.toIntVector()) list.push_back({.literal = i});
    return Argument(std::move(list));
  }
  if (literal.isDoubleList()) return Argument(literal.toDoubleVector());
  if (literal.isBoolList()) {
    const c10::List<bool> list = literal.toBoolList();
    return Argument(BoolList(list.begin(), list.end()));
  }
  if (literal.isList() && literal.toListRef().empty()) {
    // TorchScript may give an empty list any type; the schema decides.
    const auto* list = Unwrap(*argument.type()).castRaw<c10::ListType>();
    if (list != nullptr &&
        list->getElementType()->kind() == c10::TypeKind::IntType) {
      return Argument(IntList());
    }
    return Argument(ValueList());
  }
  return NoForm(absl::StrCat("a ", literal.tagKind()));
}

// A list as an argument. All elements must have the schema's element type.
absl::StatusOr<Argument> FromList(const c10::Argument& argument,
                                  const std::vector<Item>& elements) {
  const auto* type = Unwrap(*argument.type()).castRaw<c10::ListType>();
  if (type == nullptr)
    return NoForm("a list or tuple where the operator takes none");
  switch (Unwrap(*type->getElementType()).kind()) {
    case c10::TypeKind::TensorType: {
      ValueList list;
      for (const Item& item : elements) {
        if (item.is_none()) {
          list.push_back(kNoValue);
        } else if (item.kind == Item::Kind::kValue) {
          list.push_back(item.value);
        } else {
          return NoForm("a list with elements that are not tensors");
        }
      }
      return Argument(std::move(list));
    }
    case c10::TypeKind::IntType: {
      IntList list;
      for (const Item& item : elements) {
        if (item.kind == Item::Kind::kValue && item.is_number) {
          list.push_back({.value = item.value});
          continue;
        }
        const auto number = KnownNumber(item, /*constants=*/true);
        if (!number || number->kind != runtime::aten::Operand::Kind::kInt) {
          return NoForm(
              "a list with elements that are neither sizes nor constant "
              "integers");
        }
        list.push_back({.literal = number->i});
      }
      return Argument(std::move(list));
    }
    case c10::TypeKind::FloatType:
    case c10::TypeKind::NumberType: {
      FloatList list;
      for (const Item& item : elements) {
        const auto number = KnownNumber(item, /*constants=*/true);
        if (!number || number->kind == runtime::aten::Operand::Kind::kBool) {
          return NoForm("a list of floats that are not constants");
        }
        list.push_back(number->kind == runtime::aten::Operand::Kind::kInt
                           ? static_cast<double>(number->i)
                           : number->f);
      }
      return Argument(std::move(list));
    }
    case c10::TypeKind::BoolType: {
      BoolList list;
      for (const Item& item : elements) {
        if (item.kind != Item::Kind::kLiteral || !item.literal.isBool()) {
          return NoForm("a list of bools that are not constants");
        }
        list.push_back(item.literal.toBool());
      }
      return Argument(std::move(list));
    }
    default:
      return NoForm(absl::StrCat("a ", type->str()));
  }
}

}  // namespace

Item Item::Literal(c10::IValue literal) {
  Item item;
  item.literal = std::move(literal);
  return item;
}

Item Item::Tensor(ValueId value) {
  Item item;
  item.kind = Kind::kValue;
  item.value = value;
  return item;
}

Item Item::Number(ValueId value) {
  Item item = Tensor(value);
  item.is_number = true;
  return item;
}

Item Item::List(std::vector<Item> elements) {
  Item item;
  item.kind = Kind::kList;
  item.contents = std::make_shared<std::vector<Item>>(std::move(elements));
  return item;
}

Item Item::Dict(std::vector<c10::IValue> keys, std::vector<Item> elements) {
  Item item = List(std::move(elements));
  item.kind = Kind::kDict;
  item.keys = std::make_shared<std::vector<c10::IValue>>(std::move(keys));
  return item;
}

std::optional<runtime::aten::Operand> KnownNumber(const Item& item,
                                                  bool constants) {
  if (item.kind == Item::Kind::kLiteral) {
    if (item.literal.isInt())
      return runtime::aten::IntOperand(item.literal.toInt());
    if (item.literal.isDouble()) {
      return runtime::aten::FloatOperand(item.literal.toDouble());
    }
    if (item.literal.isBool())
      return runtime::aten::BoolOperand(item.literal.toBool());
  }
  if (constants && item.constant) {
    if (item.constant->isBoolean()) {
      return runtime::aten::BoolOperand(item.constant->toBool());
    }
    if (item.constant->isIntegral(/*includeBool=*/false)) {
      return runtime::aten::IntOperand(item.constant->toLong());
    }
    return runtime::aten::FloatOperand(item.constant->toDouble());
  }
  return std::nullopt;
}

Item LiteralOf(const runtime::aten::Operand& number) {
  switch (number.kind) {
    case runtime::aten::Operand::Kind::kInt:
      return Item::Literal(number.i);
    case runtime::aten::Operand::Kind::kFloat:
      return Item::Literal(number.f);
    case runtime::aten::Operand::Kind::kBool:
      return Item::Literal(number.b);
    default:
      return Item();
  }
}

absl::StatusOr<std::optional<Argument>> ToArgument(
    const c10::Argument& argument, const Item& item) {
  // First: a device, which has no form in the IR, must not make a node opaque.
  if (IsDropped(argument)) return std::nullopt;
  absl::StatusOr<Argument> result = NoForm("it");
  switch (item.kind) {
    case Item::Kind::kLiteral:
      if (item.literal.isNone()) return Argument(None{});
      result = FromLiteral(argument, item.literal);
      break;
    case Item::Kind::kValue:
      result = Argument(ValueRef{item.value});
      break;
    case Item::Kind::kList:
      result = FromList(argument, item.elements());
      break;
    case Item::Kind::kDict:
      result = NoForm("a dictionary");
      break;
    case Item::Kind::kSizes:
      result = NoForm("the size() of a tensor of unknown rank");
      break;
    case Item::Kind::kDTypeOf:
      result = NoForm("the dtype of another tensor");
      break;
    case Item::Kind::kText:
      result = NoForm("a text that is not known at import");
      break;
    case Item::Kind::kModule:
      result = NoForm("a module");
      break;
    case Item::Kind::kOpaque:
      result = NoForm(
          "a list, dictionary or object that LibTorch's interpreter makes");
      break;
  }
  if (!result.ok()) {
    return base::Annotate(result.status(),
                          absl::StrCat("argument \"", argument.name(), "\""));
  }
  return *std::move(result);
}

namespace {

std::optional<c10::IValue> ExampleOf(const c10::Type& type, const Item& item);

// A typed c10::List of the elements' examples, because a boxed call checks the
// element type of a list. `take` unboxes an element.
template <typename T, typename Take>
std::optional<c10::IValue> ListOf(const c10::Type& element, const Item& item,
                                  const Take& take) {
  c10::List<T> list;
  for (const Item& each : item.elements()) {
    const std::optional<c10::IValue> example = ExampleOf(element, each);
    if (!example) return std::nullopt;
    list.push_back(take(*example));
  }
  return c10::IValue(std::move(list));
}

std::optional<c10::IValue> ExampleOfList(const c10::Type& type,
                                         const Item& item) {
  const auto* list = Unwrap(type).castRaw<c10::ListType>();
  if (list == nullptr) return std::nullopt;
  const c10::Type& element = *list->getElementType();
  switch (element.kind()) {
    case c10::TypeKind::TensorType:
      return ListOf<at::Tensor>(element, item, [](const c10::IValue& value) {
        return value.toTensor();
      });
    case c10::TypeKind::OptionalType:
      return ListOf<std::optional<at::Tensor>>(
          element, item,
          [](const c10::IValue& value) -> std::optional<at::Tensor> {
            if (value.isNone()) return std::nullopt;
            return value.toTensor();
          });
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return ListOf<int64_t>(element, item, [](const c10::IValue& value) {
        return value.toScalar().toLong();
      });
    case c10::TypeKind::FloatType:
      return ListOf<double>(element, item, [](const c10::IValue& value) {
        return value.toScalar().toDouble();
      });
    case c10::TypeKind::BoolType:
      return ListOf<bool>(element, item, [](const c10::IValue& value) {
        return value.toBool();
      });
    default:
      return std::nullopt;
  }
}

// A trace gives a size where an operator wants a tensor, and a tensor where it
// wants a number.
std::optional<c10::IValue> Fitted(const c10::Type& type,
                                  const c10::IValue& value) {
  const c10::TypeKind kind = Unwrap(type).kind();
  if (kind == c10::TypeKind::TensorType) {
    if (value.isTensor() || value.isNone()) return value;
    if (!value.isScalar()) return std::nullopt;
    return c10::IValue(at::scalar_tensor(value.toScalar()));
  }
  if (value.isDevice()) return c10::IValue(c10::Device(at::kCPU));
  if (!value.isTensor()) return value;
  if (!value.toTensor().defined() || value.toTensor().numel() != 1) {
    return std::nullopt;
  }
  return c10::IValue(value.toTensor().item());
}

std::optional<c10::IValue> ExampleOf(const c10::Type& type, const Item& item) {
  switch (item.kind) {
    case Item::Kind::kLiteral:
      return Fitted(type, item.literal);
    case Item::Kind::kValue:
      if (item.example.isNone()) return std::nullopt;
      return Fitted(type, item.example);
    case Item::Kind::kList:
      return ExampleOfList(type, item);
    default:
      return std::nullopt;
  }
}

// Example of a container whose element type has no list of its own.
std::optional<c10::IValue> ExampleOfContents(const c10::TypePtr& type,
                                             const Item& item) {
  std::vector<c10::IValue> elements;
  const auto* tuple = type->castRaw<c10::TupleType>();
  const auto* list = type->castRaw<c10::ListType>();
  const auto* dict = type->castRaw<c10::DictType>();
  if (tuple != nullptr && tuple->elements().size() != item.elements().size()) {
    return std::nullopt;
  }
  if (tuple == nullptr && list == nullptr && dict == nullptr) {
    return std::nullopt;
  }
  for (size_t i = 0; i < item.elements().size(); ++i) {
    const c10::TypePtr& element = tuple != nullptr  ? tuple->elements()[i]
                                  : list != nullptr ? list->getElementType()
                                                    : dict->getValueType();
    auto example = ExampleOf(element, item.elements()[i]);
    if (!example) return std::nullopt;
    elements.push_back(*std::move(example));
  }
  if (tuple != nullptr) {
    return c10::IValue(c10::ivalue::Tuple::create(std::move(elements)));
  }
  if (list != nullptr) {
    c10::impl::GenericList result(list->getElementType());
    for (c10::IValue& element : elements) result.push_back(std::move(element));
    return c10::IValue(std::move(result));
  }
  c10::impl::GenericDict result(dict->getKeyType(), dict->getValueType());
  for (size_t i = 0; i < elements.size(); ++i) {
    result.insert((*item.keys)[i], std::move(elements[i]));
  }
  return c10::IValue(std::move(result));
}

}  // namespace

std::optional<c10::IValue> ExampleOf(const c10::TypePtr& type,
                                     const Item& item) {
  if (const auto* optional = type->castRaw<c10::OptionalType>()) {
    if (item.is_none()) return item.literal;
    return ExampleOf(optional->getElementType(), item);
  }
  const at::Tensor* tensor = item.example_tensor();
  switch (item.kind) {
    case Item::Kind::kList:
    case Item::Kind::kDict:
      return ExampleOfContents(type, item);
    case Item::Kind::kModule:
      return item.literal;
    case Item::Kind::kOpaque:
      if (item.example.isNone()) return std::nullopt;
      return item.example;
    case Item::Kind::kSizes:
      if (tensor == nullptr) return std::nullopt;
      return c10::IValue(tensor->sizes().vec());
    case Item::Kind::kDTypeOf:
      if (tensor == nullptr) return std::nullopt;
      return c10::IValue(static_cast<int64_t>(tensor->scalar_type()));
    default:
      return ExampleOf(*type, item);
  }
}

std::vector<c10::IValue> RunOnExamples(const c10::FunctionSchema& schema,
                                       const std::vector<Item>& arguments) {
  const auto op =
      c10::Dispatcher::singleton().findSchema(schema.operator_name());
  if (!op || arguments.size() != schema.arguments().size()) return {};
  // A refusal by LibTorch is no error of the model: tensors that the loader
  // left unread have undefined contents.
  try {
    const c10::InferenceMode no_gradient;
    std::vector<c10::IValue> stack;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto example =
          ExampleOf(*schema.arguments()[i].type(), arguments[i]);
      if (!example) return {};
      stack.push_back(*example);
    }
    // An operator that checks nothing could read beyond a tensor of the sample.
    const runtime::aten::OperatorRule rule =
        runtime::aten::RuleOf(schema.operator_name());
    if (!rule.why_not.empty()) return {};
    if (rule.guard != nullptr) rule.guard(stack);
    op->callBoxed(stack);
    return stack;
  } catch (const std::exception&) {
    return {};
  }
}

Item Resolved(const Item& item, Builder& builder) {
  const at::Tensor* example = item.example_tensor();
  if (example == nullptr) return item;
  if (item.kind == Item::Kind::kDTypeOf) {
    return Item::Literal(static_cast<int64_t>(example->scalar_type()));
  }
  if (item.kind != Item::Kind::kSizes) return item;
  std::vector<Item> sizes;
  for (int64_t dim = 0; dim < example->dim(); ++dim) {
    sizes.push_back(builder.SizeOf(item, dim));
  }
  return Item::List(std::move(sizes));
}

std::string Builder::ConstantName(const std::string& wanted,
                                  const at::Tensor& tensor) {
  std::string name = wanted;
  for (int i = 1;; ++i) {
    const auto [it, inserted] = constants_.emplace(name, tensor);
    const at::Tensor& other = it->second;
    // A second read of the same constant; others get the next number.
    if (inserted || (other.storage().data() == tensor.storage().data() &&
                     other.storage_offset() == tensor.storage_offset() &&
                     other.sizes() == tensor.sizes() &&
                     other.strides() == tensor.strides() &&
                     other.scalar_type() == tensor.scalar_type())) {
      converted_.constants.insert(name);
      return name;
    }
    name = absl::StrCat(wanted, "_", i);
  }
}

absl::StatusOr<ValueId> Builder::WeightOf(const std::string& name,
                                          const at::Tensor& tensor) {
  const auto it = weights_.find(name);
  if (it != weights_.end()) return it->second;
  absl::StatusOr<WeightEntry> entry = archive_.Locate(tensor);
  if (!entry.ok()) {
    return base::Annotate(entry.status(), absl::StrCat("weight ", name));
  }
  entry->name = name;
  const ValueId id = AddValue(name);
  Value& value = converted_.graph.values[id];
  value.weight = name;
  value.dtype = TypeOf(tensor);
  value.has_shape = true;
  value.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  converted_.weights.push_back(*std::move(entry));
  weights_[name] = id;
  return id;
}

Item Builder::SizeOf(const Item& tensor, int64_t dim) {
  Item size = Item::Number(Emit(
      "size", "aten.sym_size.int",
      {{"self", ValueRef{tensor.value}}, {"dim", dim}}, ValueKind::kSymInt));
  const at::Tensor* example = tensor.example_tensor();
  if (example != nullptr && dim < example->dim() && dim >= -example->dim()) {
    size.example = example->size(dim);
  }
  return size;
}

absl::StatusOr<Item> Builder::Compute(const std::string& op,
                                      const std::vector<Item>& operands) {
  std::vector<runtime::aten::Operand> known;
  std::vector<runtime::aten::Operand> examples;
  std::vector<NamedArgument> args;
  bool fractions = op == "py.truediv" || op == "py.float";
  for (const Item& item : operands) {
    const std::string name = args.empty() ? "a" : "b";
    if (const auto number = KnownNumber(item, /*constants=*/true)) {
      known.push_back(*number);
      examples.push_back(*number);
      fractions |= number->kind == runtime::aten::Operand::Kind::kFloat;
      if (number->kind == runtime::aten::Operand::Kind::kInt) {
        args.push_back({name, number->i});
      } else if (number->kind == runtime::aten::Operand::Kind::kFloat) {
        args.push_back({name, number->f});
      } else {
        args.push_back({name, number->b});
      }
    } else {
      args.push_back({name, ValueRef{item.value}});
      const auto example = KnownNumber(Item::Literal(item.example), false);
      if (example) examples.push_back(*example);
      fractions |=
          converted_.graph.value(item.value).kind == ValueKind::kSymFloat;
    }
  }
  // All operands are literals: folding keeps the arithmetic out of the graph,
  // and lets branches and loop bounds that depend on it be decided at import.
  if (known.size() == operands.size()) {
    REFRACT_ASSIGN_OR_RETURN(const runtime::aten::Operand result,
                             runtime::aten::EvaluateSizeOp(op, known));
    return LiteralOf(result);
  }
  static const auto& gives_bool = *new absl::flat_hash_set<absl::string_view>{
      "py.eq", "py.ne",  "py.lt",   "py.le",   "py.gt",
      "py.ge", "py.or_", "py.and_", "py.not_", "py.bool"};
  static const auto& gives_int = *new absl::flat_hash_set<absl::string_view>{
      "py.int", "py.trunc", "py.floor", "py.ceil"};
  ValueKind kind = fractions ? ValueKind::kSymFloat : ValueKind::kSymInt;
  if (gives_bool.contains(op)) kind = ValueKind::kSymBool;
  if (gives_int.contains(op)) kind = ValueKind::kSymInt;
  Item result = Item::Number(Emit(op.substr(3), op, std::move(args), kind));
  if (examples.size() == operands.size()) {
    const auto example = runtime::aten::EvaluateSizeOp(op, examples);
    if (example.ok()) result.example = LiteralOf(*example).literal;
  }
  return result;
}

ValueId Builder::Emit(const std::string& name, std::string op,
                      std::vector<NamedArgument> args, ValueKind kind) {
  Node node;
  node.op = std::move(op);
  node.args = std::move(args);
  const ValueId id = AddNode(name, std::move(node), 1);
  converted_.graph.values[id].kind = kind;
  return id;
}

ValueId Builder::AddNode(const std::string& name, Node node,
                         size_t num_outputs) {
  Graph& graph = converted_.graph;
  node.name = UniqueName(name, node_names_);
  const auto id = static_cast<NodeId>(graph.nodes.size());
  const auto first = static_cast<ValueId>(graph.values.size());
  for (size_t i = 0; i < num_outputs; ++i) {
    const ValueId value = AddValue(
        num_outputs == 1 ? node.name : absl::StrCat(node.name, "_", i));
    graph.values[value].producer = id;
    node.outputs.push_back(value);
  }
  graph.nodes.push_back(std::move(node));
  return first;
}

ValueId Builder::AddValue(const std::string& name) {
  return converted_.graph.AddValue({.name = UniqueName(name, value_names_)});
}

std::string Builder::UniqueName(const std::string& wanted,
                                absl::flat_hash_set<std::string>& names) {
  std::string name = wanted;
  for (int i = 1; !names.insert(name).second; ++i) {
    name = absl::StrCat(wanted, "_", i);
  }
  return name;
}

}  // namespace refract::models::torchscript
