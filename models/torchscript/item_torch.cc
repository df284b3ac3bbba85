#include "models/torchscript/item_torch.h"

#include <ATen/core/jit_type.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/torch/convert_torch.h"
#include "runtime/torch/size_ops.h"

namespace refract::models::torchscript {
namespace {

const c10::Type& Unwrap(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return *optional->getElementType();
  }
  return type;
}

// Every tensor of the IR is dense, contiguous and on the executing device.
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
      absl::StrCat(what, " has no form in the graph IR"));
}

absl::StatusOr<Argument> FromLiteral(const c10::Argument& argument,
                                     const c10::IValue& literal) {
  if (literal.isInt()) {
    if (Unwrap(*argument.real_type()).kind() == c10::TypeKind::ScalarTypeType) {
      const base::DType dtype = aten::FromScalarType(literal.toScalarType());
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
    // An empty list may be of any type.
    const auto* list = Unwrap(*argument.type()).castRaw<c10::ListType>();
    if (list != nullptr &&
        list->getElementType()->kind() == c10::TypeKind::IntType) {
      return Argument(IntList());
    }
    return Argument(ValueList());
  }
  return NoForm(absl::StrCat("a ", literal.tagKind()));
}

// A list whose elements have all the kind of the schema's element type.
absl::StatusOr<Argument> FromList(const c10::Argument& argument,
                                  const std::vector<Item>& elements) {
  const auto* type = Unwrap(*argument.type()).castRaw<c10::ListType>();
  if (type == nullptr) return NoForm("a tuple");
  switch (Unwrap(*type->getElementType()).kind()) {
    case c10::TypeKind::TensorType: {
      ValueList list;
      for (const Item& item : elements) {
        if (item.is_none()) {
          list.push_back(kNoValue);
        } else if (item.kind == Item::Kind::kValue) {
          list.push_back(item.value);
        } else {
          return NoForm("a list of tensors and other things");
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
        if (!number || number->kind != aten::Operand::Kind::kInt) {
          return NoForm("a list of sizes and other things");
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
        if (!number || number->kind == aten::Operand::Kind::kBool) {
          return NoForm("a list of computed numbers");
        }
        list.push_back(number->kind == aten::Operand::Kind::kInt
                           ? static_cast<double>(number->i)
                           : number->f);
      }
      return Argument(std::move(list));
    }
    case c10::TypeKind::BoolType: {
      BoolList list;
      for (const Item& item : elements) {
        if (item.kind != Item::Kind::kLiteral || !item.literal.isBool()) {
          return NoForm("a list of computed truth values");
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

std::optional<aten::Operand> KnownNumber(const Item& item, bool constants) {
  if (item.kind == Item::Kind::kLiteral) {
    if (item.literal.isInt()) return aten::IntOperand(item.literal.toInt());
    if (item.literal.isDouble()) {
      return aten::FloatOperand(item.literal.toDouble());
    }
    if (item.literal.isBool()) return aten::BoolOperand(item.literal.toBool());
  }
  if (constants && item.constant) {
    if (item.constant->isBoolean()) {
      return aten::BoolOperand(item.constant->toBool());
    }
    if (item.constant->isIntegral(/*includeBool=*/false)) {
      return aten::IntOperand(item.constant->toLong());
    }
    return aten::FloatOperand(item.constant->toDouble());
  }
  return std::nullopt;
}

Item LiteralOf(const aten::Operand& number) {
  switch (number.kind) {
    case aten::Operand::Kind::kInt:
      return Item::Literal(number.i);
    case aten::Operand::Kind::kFloat:
      return Item::Literal(number.f);
    case aten::Operand::Kind::kBool:
      return Item::Literal(number.b);
    default:
      return Item();
  }
}

absl::StatusOr<std::optional<Argument>> ToArgument(
    const c10::Argument& argument, const Item& item) {
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
      result = NoForm("a size() whose rank is not known");
      break;
    case Item::Kind::kDTypeOf:
      result = NoForm("a dtype taken from a tensor");
      break;
    case Item::Kind::kModule:
      result = NoForm("a module");
      break;
    case Item::Kind::kOpaque:
      result = NoForm("what an operator without a form in it made");
      break;
  }
  if (!result.ok()) {
    return base::Annotate(result.status(),
                          absl::StrCat("argument \"", argument.name(), "\""));
  }
  return *std::move(result);
}

}  // namespace refract::models::torchscript
