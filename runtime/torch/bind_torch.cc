#include "runtime/torch/bind_torch.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/passes/complex_numbers.h"
#include "runtime/torch/convert_torch.h"

namespace refract::runtime::aten {
namespace {

const c10::Type& Unwrap(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return *optional->getElementType();
  }
  return type;
}

bool IsNumberKind(c10::TypeKind kind) {
  return kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType ||
         kind == c10::TypeKind::BoolType || kind == c10::TypeKind::NumberType;
}

// Fills the schema's arguments from a node's. A node lists its arguments in any
// order and by name, while operands are numbered in the order in which the node
// lists its values (models::InputsOf()). Therefore Bind() walks over the node's
// arguments, and each value takes the next number.
class Binder {
 public:
  explicit Binder(const c10::FunctionSchema& schema) : schema_(schema) {}

  absl::StatusOr<std::vector<Slot>> Bind(const models::Node& node) {
    const auto& arguments = schema_.arguments();
    std::vector<Slot> slots(arguments.size());
    // Arguments that the node does not have get their defaults afterwards.
    std::vector<bool> given(arguments.size(), false);
    for (const models::NamedArgument& arg : node.args) {
      const auto index = schema_.argumentIndexWithName(arg.name);
      if (!index) {
        return absl::InvalidArgumentError(
            absl::StrCat("no argument \"", arg.name, "\" in ", Text()));
      }
      const size_t i = static_cast<size_t>(*index);
      absl::StatusOr<Slot> slot = BindOne(arguments[i], arg.value);
      if (!slot.ok()) {
        return base::Annotate(
            slot.status(),
            absl::StrCat("argument \"", arg.name, "\" of ", Text()));
      }
      slots[i] = *std::move(slot);
      given[i] = true;
    }
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!given[i]) {
        REFRACT_ASSIGN_OR_RETURN(slots[i].constant, Default(arguments[i]));
      }
    }
    return slots;
  }

  size_t num_operands() const { return next_operand_; }

 private:
  std::string Text() const { return c10::toString(schema_.operator_name()); }

  // Device, layout and memory format are not in the graph: tensors are dense
  // and on the CPU.
  absl::StatusOr<c10::IValue> Default(const c10::Argument& argument) const {
    if (argument.default_value()) return *argument.default_value();
    switch (argument.real_type()->kind()) {
      case c10::TypeKind::OptionalType:
        return c10::IValue();
      case c10::TypeKind::DeviceObjType:
        return c10::IValue(c10::Device(at::kCPU));
      case c10::TypeKind::LayoutType:
        return c10::IValue(static_cast<int64_t>(at::kStrided));
      case c10::TypeKind::MemoryFormatType:
        return c10::IValue(static_cast<int64_t>(at::MemoryFormat::Contiguous));
      default:
        return absl::InvalidArgumentError(absl::StrCat(
            Text(), " needs its argument \"", argument.name(), "\""));
    }
  }

  absl::StatusOr<Slot> BindOne(const c10::Argument& argument,
                               const models::Argument& value) {
    const bool optional =
        argument.type()->kind() == c10::TypeKind::OptionalType;
    // An optional argument takes None and what its inner type takes.
    const c10::Type& type = Unwrap(*argument.type());
    Slot slot;
    if (std::holds_alternative<models::None>(value)) {
      // FX writes None where the schema has a default, too.
      if (optional || argument.type()->kind() == c10::TypeKind::NoneType) {
        return slot;
      }
      REFRACT_ASSIGN_OR_RETURN(slot.constant, Default(argument));
      return slot;
    }
    switch (type.kind()) {
      case c10::TypeKind::TensorType:
        return BindTensor(value);
      case c10::TypeKind::IntType:
      case c10::TypeKind::FloatType:
      case c10::TypeKind::BoolType:
      case c10::TypeKind::NumberType:
        return BindNumber(type.kind(), value);
      case c10::TypeKind::StringType:
        if (const auto* text = std::get_if<std::string>(&value)) {
          slot.constant = c10::IValue(*text);
          return slot;
        }
        break;
      case c10::TypeKind::ListType:
        return BindList(
            argument, *type.castRaw<c10::ListType>()->getElementType(), value);
      default:
        break;
    }
    return Mismatch(type);
  }

  static absl::Status Mismatch(const c10::Type& type) {
    return absl::InvalidArgumentError(
        absl::StrCat("does not fit the type ", type.str()));
  }

  // A literal as LibTorch boxes it. A dtype is an int argument in schemas;
  // complex dtypes, which the IR lacks, are stored as text.
  static std::optional<c10::IValue> Number(const models::Argument& value) {
    if (const auto* i = std::get_if<int64_t>(&value)) return c10::IValue(*i);
    if (const auto* f = std::get_if<double>(&value)) return c10::IValue(*f);
    if (const auto* b = std::get_if<bool>(&value)) return c10::IValue(*b);
    if (const auto* dtype = std::get_if<base::DType>(&value)) {
      if (const auto type = ToScalarType(*dtype)) {
        return c10::IValue(static_cast<int64_t>(*type));
      }
    }
    if (const auto* text = std::get_if<std::string>(&value)) {
      if (*text == models::kComplex64Name) {
        return c10::IValue(static_cast<int64_t>(at::kComplexFloat));
      }
      if (*text == models::kComplex128Name) {
        return c10::IValue(static_cast<int64_t>(at::kComplexDouble));
      }
    }
    return std::nullopt;
  }

  // Real and imaginary part.
  static std::optional<c10::complex<double>> ComplexNumber(
      const models::Argument& value) {
    const auto* parts = std::get_if<models::FloatList>(&value);
    if (parts == nullptr || parts->size() != 2) return std::nullopt;
    return c10::complex<double>((*parts)[0], (*parts)[1]);
  }

  // A schema may take a tensor where the model has a number: `x + 2` is
  // aten.add.Tensor.
  absl::StatusOr<Slot> BindTensor(const models::Argument& value) {
    Slot slot;
    if (std::holds_alternative<models::ValueRef>(value)) {
      slot.kind = Slot::Kind::kTensor;
      slot.operand = next_operand_++;
      return slot;
    }
    if (std::holds_alternative<base::DType>(value)) {
      return absl::InvalidArgumentError("a dtype where a tensor is wanted");
    }
    if (const auto number = Number(value)) {
      slot.constant = c10::IValue(WrapNumber(number->toScalar()));
      return slot;
    }
    if (const auto complex = ComplexNumber(value)) {
      slot.constant = c10::IValue(WrapNumber(*complex));
      return slot;
    }
    return absl::InvalidArgumentError("does not fit the type Tensor");
  }

  absl::StatusOr<Slot> BindNumber(c10::TypeKind kind,
                                  const models::Argument& value) {
    Slot slot;
    if (std::holds_alternative<models::ValueRef>(value)) {
      slot.kind = Slot::Kind::kNumber;
      slot.number = kind;
      slot.operand = next_operand_++;
      return slot;
    }
    const auto complex = ComplexNumber(value);
    if (complex && kind == c10::TypeKind::NumberType) {
      slot.constant = c10::IValue(*complex);
      return slot;
    }
    const auto number = Number(value);
    if (!number) {
      return absl::InvalidArgumentError(
          absl::StrCat("does not fit the type ", c10::typeKindToString(kind)));
    }
    REFRACT_ASSIGN_OR_RETURN(slot.constant, CastNumber(*number, kind));
    return slot;
  }

  absl::StatusOr<Slot> BindList(const c10::Argument& argument,
                                const c10::Type& element,
                                const models::Argument& value) {
    Slot slot;
    // Lists with values of the request are filled at each call; lists of
    // literals become a constant here.
    const c10::TypeKind kind = Unwrap(element).kind();
    if (kind == c10::TypeKind::TensorType) {
      const auto* list = std::get_if<models::ValueList>(&value);
      if (list == nullptr) return Mismatch(*argument.type());
      // aten.index takes a list with holes, a tensor per indexed dimension.
      slot.kind = element.kind() == c10::TypeKind::OptionalType
                      ? Slot::Kind::kOptionalTensorList
                      : Slot::Kind::kTensorList;
      for (models::ValueId id : *list) {
        Slot::Element item;
        if (id != models::kNoValue) {
          item.operand = static_cast<int32_t>(next_operand_++);
        } else if (slot.kind == Slot::Kind::kTensorList) {
          return absl::InvalidArgumentError("None in a list of tensors");
        }
        slot.elements.push_back(item);
      }
      return slot;
    }
    if (const auto* ints = std::get_if<models::IntList>(&value)) {
      if (kind == c10::TypeKind::IntType) {
        slot.kind = Slot::Kind::kIntList;
        for (const models::IntOrValue& i : *ints) {
          Slot::Element item{.literal = i.literal};
          if (i.value != models::kNoValue) {
            item.operand = static_cast<int32_t>(next_operand_++);
          }
          slot.elements.push_back(item);
        }
        return slot;
      }
      // A list of ints for float[] or Scalar[]. Sizes of a request are refused
      // in it: Fill() makes only lists of ints.
      std::vector<at::Scalar> numbers;
      for (const models::IntOrValue& i : *ints) {
        if (i.value != models::kNoValue) return Mismatch(*argument.type());
        numbers.emplace_back(i.literal);
      }
      return ConstantList(kind, numbers, *argument.type());
    }
    if (const auto* floats = std::get_if<models::FloatList>(&value)) {
      return ConstantList(kind, {floats->begin(), floats->end()},
                          *argument.type());
    }
    if (const auto* bools = std::get_if<models::BoolList>(&value)) {
      if (kind != c10::TypeKind::BoolType) return Mismatch(*argument.type());
      c10::List<bool> list;
      for (bool b : *bools) list.push_back(b);
      slot.constant = c10::IValue(std::move(list));
      return slot;
    }
    if (const auto* strings = std::get_if<models::StringList>(&value)) {
      if (kind != c10::TypeKind::StringType) return Mismatch(*argument.type());
      slot.constant = c10::IValue(*strings);
      return slot;
    }
    // int[2] accepts one number for both elements. If the number is a size of
    // the request, both elements read the same operand.
    if (argument.N() && IsNumberKind(kind)) {
      REFRACT_ASSIGN_OR_RETURN(const Slot one, BindNumber(kind, value));
      if (one.kind == Slot::Kind::kNumber && kind == c10::TypeKind::IntType) {
        slot.kind = Slot::Kind::kIntList;
        slot.elements.assign(*argument.N(),
                             {.operand = static_cast<int32_t>(one.operand)});
        return slot;
      }
      if (one.kind == Slot::Kind::kConstant) {
        const std::vector<at::Scalar> numbers(
            static_cast<size_t>(*argument.N()), one.constant.toScalar());
        return ConstantList(kind, numbers, *argument.type());
      }
    }
    return Mismatch(*argument.type());
  }

  static absl::StatusOr<Slot> ConstantList(
      c10::TypeKind kind, const std::vector<at::Scalar>& numbers,
      const c10::Type& type) {
    Slot slot;
    if (kind == c10::TypeKind::FloatType) {
      c10::List<double> list;
      for (const at::Scalar& number : numbers) {
        list.push_back(number.toDouble());
      }
      slot.constant = c10::IValue(std::move(list));
    } else if (kind == c10::TypeKind::IntType) {
      c10::List<int64_t> list;
      for (const at::Scalar& number : numbers) {
        if (!number.isIntegral(false)) return Mismatch(type);
        list.push_back(number.toLong());
      }
      slot.constant = c10::IValue(std::move(list));
    } else if (kind == c10::TypeKind::NumberType) {
      slot.constant = c10::IValue(c10::List<at::Scalar>(numbers));
    } else {
      return Mismatch(type);
    }
    return slot;
  }

  const c10::FunctionSchema& schema_;
  size_t next_operand_ = 0;
};

class HostOperands final : public OperandSource {
 public:
  explicit HostOperands(absl::Span<const Operand> operands)
      : operands_(operands) {}
  bool IsNone(size_t operand) const override {
    return operands_[operand].kind == Operand::Kind::kNone;
  }
  absl::StatusOr<at::Tensor> Tensor(size_t operand) const override {
    return ToTensor(operands_[operand]);
  }
  absl::StatusOr<c10::IValue> Number(size_t operand) const override {
    return ToNumber(operands_[operand]);
  }

 private:
  absl::Span<const Operand> operands_;
};

}  // namespace

absl::StatusOr<Bound> BindArguments(const c10::FunctionSchema& schema,
                                    const models::Node& node) {
  Binder binder(schema);
  Bound bound;
  REFRACT_ASSIGN_OR_RETURN(bound.slots, binder.Bind(node));
  bound.num_operands = binder.num_operands();
  return bound;
}

absl::StatusOr<c10::IValue> Fill(const Slot& slot,
                                 absl::Span<const Operand> operands) {
  return Fill(slot, HostOperands(operands));
}

absl::StatusOr<c10::IValue> Fill(const Slot& slot,
                                 const OperandSource& operands) {
  switch (slot.kind) {
    case Slot::Kind::kConstant:
      return slot.constant;
    case Slot::Kind::kTensor: {
      // An earlier operator may have left its result undefined (aten::Result).
      if (operands.IsNone(slot.operand)) {
        return c10::IValue();
      }
      REFRACT_ASSIGN_OR_RETURN(at::Tensor tensor,
                               operands.Tensor(slot.operand));
      return c10::IValue(std::move(tensor));
    }
    case Slot::Kind::kNumber: {
      REFRACT_ASSIGN_OR_RETURN(const c10::IValue number,
                               operands.Number(slot.operand));
      return CastNumber(number, slot.number);
    }
    case Slot::Kind::kTensorList: {
      c10::List<at::Tensor> list;
      list.reserve(slot.elements.size());
      for (const Slot::Element& item : slot.elements) {
        REFRACT_ASSIGN_OR_RETURN(at::Tensor tensor,
                                 operands.Tensor(item.operand));
        list.push_back(std::move(tensor));
      }
      return c10::IValue(std::move(list));
    }
    case Slot::Kind::kOptionalTensorList: {
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(slot.elements.size());
      for (const Slot::Element& item : slot.elements) {
        if (item.operand < 0 || operands.IsNone(item.operand)) {
          list.push_back(std::nullopt);
          continue;
        }
        REFRACT_ASSIGN_OR_RETURN(at::Tensor tensor,
                                 operands.Tensor(item.operand));
        list.push_back(std::move(tensor));
      }
      return c10::IValue(std::move(list));
    }
    // LibTorch takes a list of sizes as numbers, not tensors: a size that a
    // request brings is read here, on each call.
    case Slot::Kind::kIntList: {
      std::vector<int64_t> list;
      list.reserve(slot.elements.size());
      for (const Slot::Element& item : slot.elements) {
        if (item.operand < 0) {
          list.push_back(item.literal);
          continue;
        }
        REFRACT_ASSIGN_OR_RETURN(c10::IValue number,
                                 operands.Number(item.operand));
        REFRACT_ASSIGN_OR_RETURN(number,
                                 CastNumber(number, c10::TypeKind::IntType));
        if (!number.isInt()) {
          return absl::InvalidArgumentError("None in a list of sizes");
        }
        list.push_back(number.toInt());
      }
      return c10::IValue(std::move(list));
    }
  }
  return absl::InternalError("the argument has an unknown kind");
}

namespace {

at::Tensor Joined(const at::Tensor& pairs) {
  return at::view_as_complex(pairs);
}

// LibTorch may mark a tensor as conjugate or negative and leave its memory
// unchanged. The runtime reads the memory alone, so that marks are applied
// here.
at::Tensor Split(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const at::Tensor plain = tensor.resolve_conj().resolve_neg();
  return plain.is_complex() ? at::view_as_real(plain) : plain;
}

}  // namespace

absl::StatusOr<Bound> BindComplexArguments(const c10::FunctionSchema& schema,
                                           const models::Node& node,
                                           ComplexArguments& arguments) {
  // The two lists of flags are arguments of the IR; LibTorch's schema lacks
  // them.
  models::Node plain = node;
  std::erase_if(plain.args, [](const models::NamedArgument& arg) {
    return arg.name == models::kComplexOperandsArg ||
           arg.name == models::kComplexResultsArg;
  });
  const auto flags = [&](absl::string_view name, size_t count) {
    const models::Argument* arg = node.FindArg(name);
    const auto* list =
        arg == nullptr ? nullptr : std::get_if<models::BoolList>(arg);
    return list != nullptr && list->size() == count
               ? std::optional<models::BoolList>(*list)
               : std::nullopt;
  };
  auto operands =
      flags(models::kComplexOperandsArg, models::InputsOf(node).size());
  auto results = flags(models::kComplexResultsArg, node.outputs.size());
  if (!operands || !results) {
    return absl::InvalidArgumentError(
        absl::StrCat(node.op,
                     " lacks the flags that say which operands are complex; "
                     "import the model again"));
  }
  arguments.operands = *std::move(operands);
  arguments.results = *std::move(results);
  for (const models::ValueId id : node.outputs) {
    arguments.unread.push_back(id == models::kNoValue);
  }
  return BindArguments(schema, plain);
}

void JoinPairs(const Slot& slot, const models::BoolList& complex,
               c10::IValue& value) {
  switch (slot.kind) {
    case Slot::Kind::kTensor:
      if (complex[slot.operand] && value.isTensor()) {
        value = Joined(value.toTensor());
      }
      return;
    case Slot::Kind::kTensorList: {
      c10::List<at::Tensor> list = value.toTensorList();
      for (size_t i = 0; i < slot.elements.size(); ++i) {
        if (complex[slot.elements[i].operand]) list[i] = Joined(list.get(i));
      }
      return;
    }
    case Slot::Kind::kOptionalTensorList: {
      c10::List<std::optional<at::Tensor>> list = value.toOptionalTensorList();
      for (size_t i = 0; i < slot.elements.size(); ++i) {
        const int32_t operand = slot.elements[i].operand;
        const std::optional<at::Tensor> tensor = list.get(i);
        if (operand >= 0 && complex[operand] && tensor) {
          list.set(i, Joined(*tensor));
        }
      }
      return;
    }
    case Slot::Kind::kConstant:
    case Slot::Kind::kNumber:
    case Slot::Kind::kIntList:
      return;
  }
}

absl::Status SplitPairs(const ComplexArguments& arguments,
                        torch::jit::Stack& results) {
  size_t next = 0;
  bool expected = true;
  const auto split = [&](const at::Tensor& tensor) {
    // BoxedCaller::Call() compares the number of results with the node's and
    // reports a difference.
    if (next < arguments.results.size() && tensor.defined() &&
        !arguments.unread[next]) {
      expected &= tensor.is_complex() == arguments.results[next];
    }
    ++next;
    return Split(tensor);
  };
  for (c10::IValue& value : results) {
    if (value.isTensor()) {
      value = split(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(split(tensor));
      }
      value = std::move(list);
    // A number or None holds no pairs but has a flag of its own.
    } else {
      ++next;
    }
  }
  if (expected) return absl::OkStatus();
  return absl::UnimplementedError(
      "the operator's result is complex and the import expected a real one, or "
      "the reverse");
}

}  // namespace refract::runtime::aten
