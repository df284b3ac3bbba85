#include "models/torchscript/example_torch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>

#include <exception>
#include <optional>
#include <utility>

#include "runtime/torch/guards/guards_torch.h"
#include "models/torchscript/builder_torch.h"

namespace refract::models::torchscript {
namespace {

std::optional<c10::IValue> ExampleOf(const c10::Type& type, const Item& item);

const c10::Type& Unwrap(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return *optional->getElementType();
  }
  return type;
}

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

// A traced size stands where an operator wants a tensor, and the other way
// round.
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

// Of any elements.
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
  // LibTorch's refusals say nothing of the model: tensors that were not read
  // from the file have undefined contents.
  try {
    const c10::InferenceMode no_gradient;
    std::vector<c10::IValue> stack;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto example =
          ExampleOf(*schema.arguments()[i].type(), arguments[i]);
      if (!example) return {};
      stack.push_back(*example);
    }
    const aten::OperatorRule rule = aten::RuleOf(schema.operator_name());
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

}  // namespace refract::models::torchscript
