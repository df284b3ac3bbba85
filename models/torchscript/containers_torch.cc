#include "models/torchscript/containers_torch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/torchscript/example_torch.h"
#include "models/torchscript/numbers_torch.h"

namespace refract::models::torchscript {
namespace {

absl::Status NotKnown(absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(what, " that data decides"));
}

std::optional<int64_t> IntOf(const Item& item) {
  const auto number = KnownNumber(item, /*constants=*/true);
  if (!number || number->kind != aten::Operand::Kind::kInt) return std::nullopt;
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
      return absl::UnimplementedError("the keys of an input need a --sample");
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
  if (op == "aten::copy" || op == "aten::dict") {
    return Item::Dict(*dict.keys, dict.elements());
  }
  const Item& key = inputs[1];
  if (key.kind != Item::Kind::kLiteral ||
      !(key.literal.isString() || key.literal.isInt())) {
    return NotKnown("a key");
  }
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
    if (!place && !dict.path.empty()) return NotKnown("a key of an input");
    return Item::Literal(place.has_value());
  }
  if (place) return Item(dict.elements()[*place]);
  if (op == "aten::get") return inputs.size() > 2 ? Item(inputs[2]) : Item();
  if (dict.path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no key ", TextOf(key.literal), " in a dictionary"));
  }
  Item input = add_input(absl::StrCat(dict.path, "_", TextOf(key.literal)));
  dict.keys->push_back(key.literal);
  dict.contents->push_back(input);
  return input;
}

absl::StatusOr<Item> Slice(const std::vector<Item>& inputs) {
  const auto size = static_cast<int64_t>(inputs[0].elements().size());
  const auto bound = [&](size_t i, int64_t missing) -> std::optional<int64_t> {
    if (i >= inputs.size() || inputs[i].is_none()) return missing;
    const std::optional<int64_t> at = IntOf(inputs[i]);
    if (!at) return std::nullopt;
    return std::clamp<int64_t>(*at < 0 ? *at + size : *at, 0, size);
  };
  const std::optional<int64_t> start = bound(1, 0);
  const std::optional<int64_t> end = bound(2, size);
  const std::optional<int64_t> step = inputs.size() > 3 ? IntOf(inputs[3]) : 1;
  if (!start || !end || !step || *step < 1) return NotKnown("a part of a list");
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
    for (const Item& item : list) {
      const auto number = KnownNumber(item, /*constants=*/false);
      if (!number) return NotKnown("a truth value");
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
      if (!number) return NotKnown("the end of a loop");
      if (!best) best = number;
      best = op == "prim::min" ? std::min(*best, *number)
                               : std::max(*best, *number);
    }
    if (!best) return absl::InvalidArgumentError("the minimum of nothing");
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
    if (!known) return NotKnown("an element");
    return Item::Literal(found);
  }
  if (op == "aten::list" || op == "aten::copy") return Item::List(list);
  if (op == "aten::reverse") {
    std::reverse(list.begin(), list.end());
    return Item();
  }
  if (op == "aten::add" || op == "aten::add_" || op == "aten::extend") {
    if (inputs[1].kind != Item::Kind::kList) return NotKnown("a list");
    std::vector<Item> both = list;
    both.insert(both.end(), inputs[1].elements().begin(),
                inputs[1].elements().end());
    if (op == "aten::add") return Item::List(std::move(both));
    list = std::move(both);
    return Item(inputs[0]);
  }
  if (op == "aten::mul") {
    const std::optional<int64_t> times = IntOf(inputs[1]);
    if (!times) return NotKnown("the length of a list");
    std::vector<Item> all;
    for (int64_t i = 0; i < *times; ++i) {
      all.insert(all.end(), list.begin(), list.end());
    }
    return Item::List(std::move(all));
  }
  const auto size = static_cast<int64_t>(list.size());
  std::optional<int64_t> at = inputs.size() > 1 ? IntOf(inputs[1]) : size - 1;
  if (!at) return NotKnown("an index");
  if (*at < 0) at = *at + size;
  const bool inserts = op == "aten::insert";
  if (*at < 0 || *at > size || (!inserts && *at == size)) {
    return absl::InvalidArgumentError("an index outside its list");
  }
  if (inserts) {
    list.insert(list.begin() + *at, inputs[2]);
    return Item();
  }
  if (op == "aten::_set_item") {
    list[*at] = inputs[2];
    return Item(inputs[0]);
  }
  Item taken = list[*at];  // aten::pop
  list.erase(list.begin() + *at);
  return taken;
}

// The item as a list where it is one in another guise.
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
  if (a.kind == Item::Kind::kLiteral && b.kind == Item::Kind::kLiteral) {
    return Item::Literal(a.literal == b.literal);
  }
  if (a.kind != Item::Kind::kList || b.kind != Item::Kind::kList) {
    return std::nullopt;
  }
  if (a.elements().size() != b.elements().size()) return Item::Literal(false);
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
