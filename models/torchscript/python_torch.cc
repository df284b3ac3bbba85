#include "models/torchscript/python_torch.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/torchscript/items_torch.h"

namespace refract::models::torchscript {
namespace {

// The "py.*" operator for TorchScript's arithmetic on numbers, and for
// arithmetic of a trace on tensors that are numbers.
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

// The operands alone, without alpha and rounding_mode.
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
  // A trace has `x.size(0) * 2` as aten::mul of two tensors without dimensions.
  // A constant tensor among them is a number only if another operand is known
  // to be made of a number; `constant * constant` may be a tensor of the model.
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
  // The third operand is rounding_mode of aten::div, alpha of aten::add and
  // aten::sub.
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
               alpha->kind != runtime::aten::Operand::Kind::kInt ||
               alpha->i != 1) {
      return absl::UnimplementedError(
          "arithmetic on sizes takes no alpha but 1 and no rounding_mode but a "
          "constant; write the multiplication out");
    }
  }
  REFRACT_ASSIGN_OR_RETURN(Item result, builder.Compute(python, operands));
  // rounding_mode "trunc" is a true division, then a cut towards zero.
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
    // ScalarImplicit, IntImplicit, FloatImplicit and item() have no name in
    // PythonName(): they keep the number as it is.
    const bool same =
        python.empty() ||
        (op == "aten::Int" && item.kind == Item::Kind::kValue &&
         builder.graph().value(item.value).kind == ValueKind::kSymInt);
    if (same) return known ? LiteralOf(*known) : Item(item);
    return builder.Compute(python, {item});
  }
  if (item.kind != Item::Kind::kValue) {
    return absl::UnimplementedError(
        "int(), float() or bool() of a value that is neither a tensor nor a "
        "number");
  }
  // From here on the item is a tensor whose contents a request decides:
  // aten.item reads it at run time. The operator's name gives the type of the
  // number.
  ValueKind kind = ValueKind::kSymInt;
  if (absl::StrContains(op, "Float")) kind = ValueKind::kSymFloat;
  if (absl::StrContains(op, "Bool")) kind = ValueKind::kSymBool;
  if (op == "aten::ScalarImplicit" || op == "aten::item") {
    return absl::UnimplementedError(
        "the type of the number that item() returns is not known at import; "
        "write int(x), float(x) or bool(x) in place of x.item()");
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
  // A dictionary with a path is an input whose keys the sample did not list;
  // DictOp() adds a key for each look-up, so its number of keys is not final.
  if (of.kind == Item::Kind::kDict && !of.path.empty()) {
    return absl::UnimplementedError(
        "the number of keys of this input dictionary is known only from an "
        "example request");
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
      return absl::UnimplementedError(
          "the rank of this tensor is known only from an example request that "
          "the model accepts");
    }
    return Item::Literal(example->dim());
  }
  // From here on the value is a tensor.
  if (of.kind != Item::Kind::kValue || of.is_number) {
    return absl::UnimplementedError(
        "len(), size() or numel() of a value that is not known to be a tensor, "
        "list or dictionary");
  }
  // len() of a tensor is the size of its first dimension.
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
  // size() without a dimension: a list whose length is the rank, and the rank
  // may not be known yet.
  if (inputs.size() == 1) {
    Item sizes = of;
    sizes.kind = Item::Kind::kSizes;
    return sizes;
  }
  const auto dim = KnownNumber(inputs[1], /*constants=*/true);
  if (!dim || dim->kind != runtime::aten::Operand::Kind::kInt) {
    return absl::UnimplementedError(
        "the dimension that size() is asked for depends on a request's "
        "tensors");
  }
  return builder.SizeOf(of, dim->i);
}

absl::StatusOr<Item> Element(const std::vector<Item>& inputs,
                             Builder& builder) {
  const Item& list = inputs[0];
  const auto index = KnownNumber(inputs[1], /*constants=*/true);
  if (!index || index->kind != runtime::aten::Operand::Kind::kInt) {
    return absl::UnimplementedError(
        "the index into this list or tuple depends on a request's tensors");
  }
  // x.size()[i] needs no rank; SizeOf() takes negative dimensions, too.
  if (list.kind == Item::Kind::kSizes) {
    return builder.SizeOf(list, index->i);
  }
  if (list.kind == Item::Kind::kLiteral && list.literal.isList()) {
    const auto elements = list.literal.toListRef();
    const auto size = static_cast<int64_t>(elements.size());
    const int64_t i = index->i < 0 ? index->i + size : index->i;
    if (i < 0 || i >= size) {
      return absl::InvalidArgumentError(
          "the index is outside its list or tuple; Python raises IndexError "
          "here, too");
    }
    return Item::Literal(elements[i]);
  }
  if (list.kind != Item::Kind::kList) {
    return absl::UnimplementedError(
        "the value before [] is not known to be a list or tuple");
  }
  const auto size = static_cast<int64_t>(list.elements().size());
  const int64_t i = index->i < 0 ? index->i + size : index->i;
  if (i < 0 || i >= size) {
    return absl::InvalidArgumentError(
        "the index is outside its list or tuple; Python raises IndexError "
        "here, too");
  }
  return Item(list.elements()[i]);
}

namespace {

absl::Status NotKnown(absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat(what, " is not known at import"));
}

std::optional<int64_t> IntOf(const Item& item) {
  const auto number = KnownNumber(item, /*constants=*/true);
  if (!number || number->kind != runtime::aten::Operand::Kind::kInt)
    return std::nullopt;
  return number->i;
}

// Place of `key`; nullopt when it is not there.
std::optional<size_t> Find(const Item& dict, const c10::IValue& key) {
  for (size_t i = 0; i < dict.keys->size(); ++i) {
    if ((*dict.keys)[i] == key) return i;
  }
  return std::nullopt;
}

std::string TextOf(const c10::IValue& key) {
  return key.isString() ? key.toStringRef() : absl::StrCat(key.toInt());
}

absl::StatusOr<Item> DictOp(
    absl::string_view op, const std::vector<Item>& inputs,
    const std::function<Item(const std::string&)>& add_input) {
  const Item& dict = inputs[0];
  if (op == "aten::keys" || op == "aten::values" || op == "aten::items") {
    if (!dict.path.empty()) {
      return absl::UnimplementedError(
          "the keys of this input dictionary are known only from an example "
          "request");
    }
    std::vector<Item> elements;
    for (size_t i = 0; i < dict.keys->size(); ++i) {
      Item key = Item::Literal((*dict.keys)[i]);
      const Item& value = dict.elements()[i];
      elements.push_back(op == "aten::keys"     ? key
                         : op == "aten::values" ? value
                                                : Item::List({key, value}));
    }
    return Item::List(std::move(elements));
  }
  // A new dictionary with contents of its own. The copy of an input without
  // known keys has the same unknown keys, hence the path.
  if (op == "aten::copy" || op == "aten::dict") {
    Item copy = Item::Dict(*dict.keys, dict.elements());
    copy.path = dict.path;
    return copy;
  }
  const Item& key = inputs[1];
  if (key.kind != Item::Kind::kLiteral ||
      !(key.literal.isString() || key.literal.isInt())) {
    return NotKnown("the key that this dictionary is asked for");
  }
  // Changes go to `keys` and `contents`, which all names of the dictionary
  // share.
  const std::optional<size_t> place = Find(dict, key.literal);
  if (op == "aten::_set_item") {
    if (place) {
      (*dict.contents)[*place] = inputs[2];
    } else {
      dict.keys->push_back(key.literal);
      dict.contents->push_back(inputs[2]);
    }
    return Item();
  }
  if (op == "aten::__contains__") {
    if (!place && !dict.path.empty())
      return NotKnown("whether the dictionary of a request has this key");
    return Item::Literal(place.has_value());
  }
  if (place) return Item(dict.elements()[*place]);
  if (op == "aten::get") {
    if (!dict.path.empty())
      return NotKnown("whether the dictionary of a request has this key");
    return inputs.size() > 2 ? Item(inputs[2]) : Item();
  }
  if (dict.path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the dictionary has no key \"", TextOf(key.literal), "\""));
  }
  // An input dictionary without keys from the sample: the look-up shows that
  // requests have this key. `contents` and `keys` are shared with all copies of
  // the item, so a second look-up finds the same input; `add_input` finds it
  // for a copy of the dictionary.
  Item input = add_input(absl::StrCat(dict.path, "_", TextOf(key.literal)));
  dict.keys->push_back(key.literal);
  dict.contents->push_back(input);
  return input;
}

absl::StatusOr<Item> Slice(const std::vector<Item>& inputs) {
  const auto size = static_cast<int64_t>(inputs[0].elements().size());
  // Python clamps the bounds of a slice, and counts negative bounds from the
  // end.
  const auto bound = [&](size_t i, int64_t missing) -> std::optional<int64_t> {
    if (i >= inputs.size() || inputs[i].is_none()) return missing;
    const std::optional<int64_t> at = IntOf(inputs[i]);
    if (!at) return std::nullopt;
    return std::clamp<int64_t>(*at < 0 ? *at + size : *at, 0, size);
  };
  const std::optional<int64_t> start = bound(1, 0);
  const std::optional<int64_t> end = bound(2, size);
  const std::optional<int64_t> step = inputs.size() > 3 ? IntOf(inputs[3]) : 1;
  if (!start || !end || !step || *step < 1)
    return NotKnown("a bound or the step of this slice of a list");
  std::vector<Item> part;
  for (int64_t i = *start; i < *end; i += *step) {
    part.push_back(inputs[0].elements()[i]);
  }
  return Item::List(std::move(part));
}

absl::StatusOr<Item> ListOp(absl::string_view op,
                            const std::vector<Item>& inputs) {
  std::vector<Item>& list = *inputs[0].contents;
  if (op == "aten::append") {
    list.push_back(inputs[1]);
    return Item(inputs[0]);
  }
  if (op == "aten::slice") return Slice(inputs);
  if (op == "aten::all" || op == "aten::any") {
    bool all = true;
    bool any = false;
    // Every element must be known, even behind the element that decides.
    for (const Item& item : list) {
      const auto number = KnownNumber(item, /*constants=*/false);
      if (!number)
        return NotKnown(
            "the truth of an element in the list that all() or any() reads");
      const bool truth = item.literal.toScalar().toDouble() != 0;
      all &= truth;
      any |= truth;
    }
    return Item::Literal(op == "aten::all" ? all : any);
  }
  if (op == "prim::min" || op == "prim::max") {
    std::optional<int64_t> best;
    for (const Item& item : list) {
      const std::optional<int64_t> number = IntOf(item);
      if (!number)
        return NotKnown("an element of the list that min() or max() reads");
      if (!best) best = number;
      best = op == "prim::min" ? std::min(*best, *number)
                               : std::max(*best, *number);
    }
    if (!best)
      return absl::InvalidArgumentError(
          "min() or max() of an empty list; Python raises ValueError here, "
          "too");
    return Item::Literal(*best);
  }
  if (op == "aten::__contains__") {
    const Item& wanted = inputs[1];
    bool known = wanted.kind == Item::Kind::kLiteral;
    bool found = false;
    for (const Item& item : list) {
      known &= item.kind == Item::Kind::kLiteral;
      found |= known && item.literal == wanted.literal;
    }
    if (!known) return NotKnown("an element of the list that \"in\" searches");
    return Item::Literal(found);
  }
  if (op == "aten::list" || op == "aten::copy") return Item::List(list);
  if (op == "aten::reverse") {
    std::reverse(list.begin(), list.end());
    return Item();
  }
  if (op == "aten::add" || op == "aten::add_" || op == "aten::extend") {
    if (inputs[1].kind != Item::Kind::kList)
      return NotKnown("the content of the list to add");
    // `a += a` reads and writes one list, hence the copy.
    std::vector<Item> both = list;
    both.insert(both.end(), inputs[1].elements().begin(),
                inputs[1].elements().end());
    if (op == "aten::add") return Item::List(std::move(both));
    list = std::move(both);
    return Item(inputs[0]);
  }
  if (op == "aten::mul") {
    const std::optional<int64_t> times = IntOf(inputs[1]);
    if (!times) return NotKnown("the number of times to repeat this list");
    std::vector<Item> all;
    for (int64_t i = 0; i < *times; ++i) {
      all.insert(all.end(), list.begin(), list.end());
    }
    return Item::List(std::move(all));
  }
  // insert(index, x), _set_item(index, x) and pop([index]) are left.
  const auto size = static_cast<int64_t>(list.size());
  std::optional<int64_t> at = inputs.size() > 1 ? IntOf(inputs[1]) : size - 1;
  if (!at) return NotKnown("the index into this list");
  if (*at < 0) at = *at + size;
  // insert() takes any index: Python moves it into the list.
  if (op == "aten::insert") {
    list.insert(list.begin() + std::clamp<int64_t>(*at, 0, size), inputs[2]);
    return Item();
  }
  if (*at < 0 || *at >= size) {
    return absl::InvalidArgumentError(
        "the index is outside its list or tuple; Python raises IndexError "
        "here, too");
  }
  if (op == "aten::_set_item") {
    list[*at] = inputs[2];
    return Item(inputs[0]);
  }
  Item taken = list[*at];  // aten::pop
  list.erase(list.begin() + *at);
  return taken;
}

// Sizes and constant lists as a list of items; other items unchanged.
Item AsList(const Item& item, Builder& builder) {
  const Item resolved = Resolved(item, builder);
  if (resolved.kind != Item::Kind::kLiteral || !resolved.literal.isList()) {
    return resolved;
  }
  std::vector<Item> elements;
  for (const c10::IValue& element : resolved.literal.toList().vec()) {
    elements.push_back(Item::Literal(element));
  }
  return Item::List(std::move(elements));
}

}  // namespace

void ListSizes(absl::string_view op, std::vector<Item>& inputs,
               Builder& builder) {
  if (inputs.empty() ||
      !(op == "aten::slice" || op == "aten::list" || op == "aten::add" ||
        op == "aten::mul" || op == "aten::extend" ||
        op == "aten::__contains__" || op == "aten::copy")) {
    return;
  }
  // extend() changes its list in place, for all names of the list; here it
  // would change a copy.
  if (op == "aten::extend" && inputs[0].kind != Item::Kind::kList) return;
  // A tensor as the first input makes the operator one on tensors.
  const Item first = AsList(inputs[0], builder);
  if (first.kind != Item::Kind::kList) return;
  inputs[0] = first;
  if (inputs.size() > 1 && (op == "aten::add" || op == "aten::extend")) {
    inputs[1] = AsList(inputs[1], builder);
  }
}

std::optional<absl::StatusOr<Item>> SameContents(
    const std::vector<Item>& inputs, Builder& builder) {
  if (inputs.size() != 2 || IsNumber(inputs[0]) || IsNumber(inputs[1])) {
    return std::nullopt;
  }
  const Item a = AsList(inputs[0], builder);
  const Item b = AsList(inputs[1], builder);
  // Texts, dtypes, devices. Lists of literals became kList in AsList().
  if (a.kind == Item::Kind::kLiteral && b.kind == Item::Kind::kLiteral) {
    return Item::Literal(a.literal == b.literal);
  }
  if (a.kind != Item::Kind::kList || b.kind != Item::Kind::kList) {
    return std::nullopt;
  }
  if (a.elements().size() != b.elements().size()) return Item::Literal(false);
  // all(x == y): Compute() folds what is known, and adds nodes for other sizes.
  Item same = Item::Literal(true);
  for (size_t i = 0; i < a.elements().size(); ++i) {
    const Item& x = a.elements()[i];
    const Item& y = b.elements()[i];
    if (!IsNumber(x) || !IsNumber(y)) return std::nullopt;
    absl::StatusOr<Item> equal = builder.Compute("py.eq", {x, y});
    if (!equal.ok()) return equal;
    absl::StatusOr<Item> both = builder.Compute("py.and_", {same, *equal});
    if (!both.ok()) return both;
    same = *std::move(both);
  }
  return same;
}

std::optional<Item> KnownText(const torch::jit::Node& node,
                              const std::vector<Item>& inputs) {
  const c10::FunctionSchema* schema = node.maybeSchema();
  if (schema == nullptr) return std::nullopt;
  torch::jit::Stack stack;
  for (const Item& item : inputs) {
    if (item.kind != Item::Kind::kLiteral) return std::nullopt;
    stack.push_back(item.literal);
  }
  // format() takes its number of arguments from the stack.
  if (schema->is_vararg()) {
    stack.push_back(static_cast<int64_t>(inputs.size()));
  }
  node.getOperation()(stack);
  return Item::Literal(stack.back());
}

bool IsContainerOp(absl::string_view op, const std::vector<Item>& inputs) {
  if (inputs.empty()) return false;
  if (inputs[0].kind == Item::Kind::kDict) {
    return op == "aten::__getitem__" || op == "aten::get" ||
           op == "aten::_set_item" || op == "aten::__contains__" ||
           op == "aten::keys" || op == "aten::values" || op == "aten::items" ||
           op == "aten::copy" || op == "aten::dict";
  }
  if (inputs[0].kind != Item::Kind::kList) return false;
  return op == "aten::append" || op == "aten::slice" || op == "aten::list" ||
         op == "aten::copy" || op == "aten::reverse" || op == "aten::add" ||
         op == "aten::add_" || op == "aten::extend" || op == "aten::mul" ||
         ((op == "prim::min" || op == "prim::max" || op == "aten::all" ||
           op == "aten::any") &&
          inputs.size() == 1) ||
         op == "aten::insert" || op == "aten::__contains__" ||
         op == "aten::_set_item" || op == "aten::pop";
}

absl::StatusOr<Item> ContainerOp(
    absl::string_view op, const std::vector<Item>& inputs,
    const std::function<Item(const std::string&)>& add_input) {
  if (inputs[0].kind == Item::Kind::kDict) {
    return DictOp(op, inputs, add_input);
  }
  return ListOp(op, inputs);
}

}  // namespace refract::models::torchscript
