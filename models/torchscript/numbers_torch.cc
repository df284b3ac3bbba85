#include "models/torchscript/numbers_torch.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::models::torchscript {
namespace {

// Python's name for TorchScript's arithmetic on numbers, and on tensors that
// stand for numbers in a trace.
std::string PythonName(absl::string_view op) {
  static const auto& names =
      *new absl::flat_hash_map<absl::string_view, absl::string_view>{
          {"aten::add", "add"},
          {"aten::sub", "sub"},
          {"aten::mul", "mul"},
          {"aten::floordiv", "floordiv"},
          {"aten::div", "truediv"},
          {"aten::floor_divide", "floordiv"},
          {"aten::neg", "neg"},
          {"aten::remainder", "mod"},
          {"aten::pow", "pow"},
          {"aten::eq", "eq"},
          {"aten::ne", "ne"},
          {"aten::lt", "lt"},
          {"aten::le", "le"},
          {"aten::gt", "gt"},
          {"aten::ge", "ge"},
          {"aten::__and__", "and_"},
          {"aten::__or__", "or_"},
          {"aten::__not__", "not_"},
          {"prim::max", "max"},
          {"prim::min", "min"},
          {"prim::abs", "abs"},
          {"aten::floor", "floor"},
          {"aten::ceil", "ceil"},
          {"aten::Int", "int"},
          {"aten::Float", "float"},
          {"aten::Bool", "bool"},
          {"aten::maximum", "max"},
          {"aten::minimum", "min"},
          {"aten::true_divide", "truediv"}};
  const auto it = names.find(op);
  return it == names.end() ? "" : absl::StrCat("py.", it->second);
}

// Without alpha and rounding_mode.
size_t NumOperands(const std::vector<Item>& inputs) {
  return std::min<size_t>(inputs.size(), 2);
}

}  // namespace

bool IsNumber(const Item& item) {
  return (item.kind == Item::Kind::kValue && item.is_number) ||
         KnownNumber(item, /*constants=*/false).has_value();
}

bool IsArithmetic(const torch::jit::Node& node,
                  const std::vector<Item>& inputs) {
  if (PythonName(node.kind().toQualString()).empty() || inputs.empty()) {
    return false;
  }
  const c10::FunctionSchema* schema = node.maybeSchema();
  bool has_tensors = false;
  bool has_number = false;  // where the schema wants a tensor, if anywhere
  for (size_t i = 0; i < NumOperands(inputs); ++i) {
    if (!IsNumber(inputs[i]) && !inputs[i].constant) return false;
    if (schema != nullptr &&
        schema->arguments()[i].type()->kind() == c10::TypeKind::TensorType) {
      has_tensors = true;
      has_number |= IsNumber(inputs[i]);
    }
  }
  return has_number || !has_tensors;
}

absl::StatusOr<Item> Arithmetic(const torch::jit::Node& node,
                                const std::vector<Item>& inputs,
                                Builder& builder) {
  const absl::string_view op = node.kind().toQualString();
  std::string python = PythonName(op);
  const std::vector<Item> operands(inputs.begin(),
                                   inputs.begin() + NumOperands(inputs));
  bool truncates = false;
  if (inputs.size() == 3) {
    const Item& last = inputs[2];
    const auto alpha = KnownNumber(last, /*constants=*/false);
    if (op == "aten::div" && last.kind == Item::Kind::kLiteral &&
        (last.literal.isNone() || last.literal.isString())) {
      const std::string mode =
          last.literal.isNone() ? "" : last.literal.toStringRef();
      if (mode == "floor") python = "py.floordiv";
      truncates = mode == "trunc";
    } else if ((op != "aten::add" && op != "aten::sub") || !alpha ||
               alpha->kind != aten::Operand::Kind::kInt || alpha->i != 1) {
      return absl::UnimplementedError("arithmetic on sizes with a factor");
    }
  }
  REFRACT_ASSIGN_OR_RETURN(Item result, builder.Compute(python, operands));
  if (truncates) {
    REFRACT_ASSIGN_OR_RETURN(result, builder.Compute("py.trunc", {result}));
  }
  return result;
}

absl::StatusOr<Item> ToNumber(const torch::jit::Node& node,
                              const std::vector<Item>& inputs,
                              Builder& builder) {
  const absl::string_view op = node.kind().toQualString();
  const Item& item = inputs[0];
  const std::string python = PythonName(op);
  const auto known = KnownNumber(item, /*constants=*/true);
  if (known || (item.kind == Item::Kind::kValue && item.is_number)) {
    // A size is an int already.
    const bool same =
        python.empty() ||
        (op == "aten::Int" && item.kind == Item::Kind::kValue &&
         builder.graph().value(item.value).kind == ValueKind::kSymInt);
    if (same) return known ? LiteralOf(*known) : Item(item);
    return builder.Compute(python, {item});
  }
  if (item.kind != Item::Kind::kValue) {
    return absl::UnimplementedError("a number made of no tensor");
  }
  ValueKind kind = ValueKind::kSymInt;
  if (absl::StrContains(op, "Float")) kind = ValueKind::kSymFloat;
  if (absl::StrContains(op, "Bool")) kind = ValueKind::kSymBool;
  if (op == "aten::ScalarImplicit" || op == "aten::item") {
    return absl::UnimplementedError(
        "a number of unknown type that data decides");
  }
  Item number = Item::Number(builder.Emit(
      "item", "aten.item.default", {{"self", ValueRef{item.value}}}, kind));
  const at::Tensor* example = item.example_tensor();
  if (example != nullptr && example->numel() == 1) {
    const at::Scalar scalar = example->item();
    if (kind == ValueKind::kSymInt) number.example = scalar.toLong();
    if (kind == ValueKind::kSymFloat) number.example = scalar.toDouble();
    if (kind == ValueKind::kSymBool) number.example = scalar.toBool();
  }
  return number;
}

absl::StatusOr<Item> Size(const torch::jit::Node& node,
                          const std::vector<Item>& inputs, Builder& builder) {
  const absl::string_view op = node.kind().toQualString();
  const Item& of = inputs[0];
  if (of.kind == Item::Kind::kDict && !of.path.empty()) {
    return absl::UnimplementedError(
        "how many keys an input has needs --sample");
  }
  if (of.kind == Item::Kind::kList ||
      of.kind == Item::Kind::kDict) {  // aten::len
    return Item::Literal(static_cast<int64_t>(of.elements().size()));
  }
  if (of.kind == Item::Kind::kLiteral && of.literal.isList()) {
    return Item::Literal(static_cast<int64_t>(of.literal.toListRef().size()));
  }
  if (op == "aten::len" && of.kind == Item::Kind::kLiteral &&
      of.literal.isString()) {
    return Item::Literal(static_cast<int64_t>(of.literal.toStringRef().size()));
  }
  if (op == "aten::len" && of.kind == Item::Kind::kSizes) {
    const at::Tensor* example = of.example_tensor();
    if (example == nullptr) {
      return absl::UnimplementedError("a rank that only a sample tells");
    }
    return Item::Literal(example->dim());
  }
  if (of.kind != Item::Kind::kValue || of.is_number) {
    return absl::UnimplementedError("the size of no tensor");
  }
  if (op == "aten::len") return builder.SizeOf(of, 0);
  if (op == "aten::numel") {
    Item count = Item::Number(builder.Emit("numel", "aten.sym_numel.default",
                                           {{"self", ValueRef{of.value}}},
                                           ValueKind::kSymInt));
    if (of.example_tensor() != nullptr) {
      count.example = of.example_tensor()->numel();
    }
    return count;
  }
  if (inputs.size() == 1) {
    Item sizes = of;
    sizes.kind = Item::Kind::kSizes;
    return sizes;
  }
  const auto dim = KnownNumber(inputs[1], /*constants=*/true);
  if (!dim || dim->kind != aten::Operand::Kind::kInt) {
    return absl::UnimplementedError("a dimension that data decides");
  }
  return builder.SizeOf(of, dim->i);
}

absl::StatusOr<Item> Element(const std::vector<Item>& inputs,
                             Builder& builder) {
  const Item& list = inputs[0];
  const auto index = KnownNumber(inputs[1], /*constants=*/true);
  if (!index || index->kind != aten::Operand::Kind::kInt) {
    return absl::UnimplementedError("an index that data decides");
  }
  if (list.kind == Item::Kind::kSizes) {
    return builder.SizeOf(list, index->i);
  }
  if (list.kind == Item::Kind::kLiteral && list.literal.isList()) {
    const auto elements = list.literal.toListRef();
    const auto size = static_cast<int64_t>(elements.size());
    const int64_t i = index->i < 0 ? index->i + size : index->i;
    if (i < 0 || i >= size) {
      return absl::InvalidArgumentError("an index outside its list");
    }
    return Item::Literal(elements[i]);
  }
  if (list.kind != Item::Kind::kList) {
    return absl::UnimplementedError("an element of no list");
  }
  const auto size = static_cast<int64_t>(list.elements().size());
  const int64_t i = index->i < 0 ? index->i + size : index->i;
  if (i < 0 || i >= size) {
    return absl::InvalidArgumentError("an index outside its list");
  }
  return Item(list.elements()[i]);
}

}  // namespace refract::models::torchscript
