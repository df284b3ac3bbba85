#include "models/torch_export/arguments.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/passes/complex_numbers.h"

namespace refract::models::torch_export {
namespace {

using MaybeArgument = absl::StatusOr<std::optional<Argument>>;

constexpr int64_t kLayoutStrided = 7;

// The value that a name stands for at this point of the program.
absl::StatusOr<ValueId> Lookup(const Scope& scope, const std::string* name,
                               absl::string_view tag) {
  if (name == nullptr) return Malformed(tag);
  const auto it = scope.find(*name);
  if (it == scope.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "reads ", *name, ", which no earlier node or input defines"));
  }
  return it->second;
}

// {"name": …}
absl::StatusOr<ValueId> Tensor(const Scope& scope, const Json& json,
                               absl::string_view tag) {
  return Lookup(scope, String(Member(json, "name")), tag);
}

// {"as_tensor": {"name": …}} or {"as_none": true}
absl::StatusOr<ValueId> OptionalTensor(const Scope& scope, const Json& json,
                                       absl::string_view tag) {
  const auto item = Union(&json);
  if (!item) return Malformed(tag);
  if (*item->tag == "as_none") return kNoValue;
  if (*item->tag != "as_tensor") return Malformed(tag);
  return Tensor(scope, *item->value, tag);
}

// A list whose elements `parse(json)` reads.
template <typename List, typename Parse>
MaybeArgument ParseList(const Json& json, absl::string_view tag, Parse parse) {
  if (!json.is_array()) return Malformed(tag);
  List list;
  for (const Json& element : json) {
    auto parsed = parse(element);
    if (!parsed.ok()) return parsed.status();
    list.push_back(*std::move(parsed));
  }
  return Argument(std::move(list));
}

template <typename T>
absl::StatusOr<T> Required(std::optional<T> value, absl::string_view tag) {
  if (!value) return Malformed(tag);
  return *std::move(value);
}

absl::StatusOr<std::string> RequiredString(const Json& json,
                                           absl::string_view tag) {
  const std::string* text = String(&json);
  if (text == nullptr) return Malformed(tag);
  return *text;
}

// {"as_name": …}, or a literal under another tag, which `parse` reads.
template <typename ParseLiteral>
MaybeArgument ParseSymbolic(const Json& json, const Scope& scope,
                            absl::string_view tag, ParseLiteral parse) {
  const auto item = Union(&json);
  if (!item) return Malformed(tag);
  if (*item->tag == "as_name") {
    REFRACT_ASSIGN_OR_RETURN(const ValueId id,
                             Lookup(scope, String(item->value), tag));
    return Argument(ValueRef{id});
  }
  auto literal = parse(item->value);
  if (!literal) return Malformed(tag);
  return Argument(*literal);
}

absl::StatusOr<IntOrValue> ParseSymInt(const Json& json, const Scope& scope,
                                       absl::string_view tag) {
  const auto item = Union(&json);
  if (!item) return Malformed(tag);
  IntOrValue result;
  if (*item->tag == "as_name") {
    REFRACT_ASSIGN_OR_RETURN(result.value,
                             Lookup(scope, String(item->value), tag));
  } else {
    REFRACT_ASSIGN_OR_RETURN(result.literal, Required(Int(item->value), tag));
  }
  return result;
}

MaybeArgument ParseTensors(const std::string& tag, const Json& value,
                           const Scope& scope) {
  if (tag == "as_tensor") {
    REFRACT_ASSIGN_OR_RETURN(const ValueId id, Tensor(scope, value, tag));
    return Argument(ValueRef{id});
  }
  if (tag == "as_optional_tensor") {
    REFRACT_ASSIGN_OR_RETURN(const ValueId id,
                             OptionalTensor(scope, value, tag));
    if (id == kNoValue) return Argument(None{});
    return Argument(ValueRef{id});
  }
  if (tag == "as_tensors") {
    return ParseList<ValueList>(
        value, tag, [&](const Json& e) { return Tensor(scope, e, tag); });
  }
  return ParseList<ValueList>(
      value, tag, [&](const Json& e) { return OptionalTensor(scope, e, tag); });
}

MaybeArgument ParseLists(const std::string& tag, const Json& value,
                         const Scope& scope) {
  if (tag == "as_ints") {
    return ParseList<IntList>(
        value, tag, [&](const Json& e) -> absl::StatusOr<IntOrValue> {
          REFRACT_ASSIGN_OR_RETURN(const int64_t i, Required(Int(&e), tag));
          return IntOrValue{.literal = i};
        });
  }
  if (tag == "as_sym_ints") {
    return ParseList<IntList>(
        value, tag, [&](const Json& e) { return ParseSymInt(e, scope, tag); });
  }
  if (tag == "as_floats") {
    return ParseList<FloatList>(
        value, tag, [&](const Json& e) { return Required(Float(&e), tag); });
  }
  if (tag == "as_bools") {
    return ParseList<BoolList>(
        value, tag, [&](const Json& e) { return Required(Bool(&e), tag); });
  }
  return ParseList<StringList>(
      value, tag, [&](const Json& e) { return RequiredString(e, tag); });
}

MaybeArgument ParseScalar(const std::string& tag, const Json& value) {
  if (tag == "as_int") {
    REFRACT_ASSIGN_OR_RETURN(const int64_t i, Required(Int(&value), tag));
    return Argument(i);
  }
  if (tag == "as_float") {
    REFRACT_ASSIGN_OR_RETURN(const double f, Required(Float(&value), tag));
    return Argument(f);
  }
  if (tag == "as_bool") {
    REFRACT_ASSIGN_OR_RETURN(const bool b, Required(Bool(&value), tag));
    return Argument(b);
  }
  REFRACT_ASSIGN_OR_RETURN(std::string text, RequiredString(value, tag));
  return Argument(std::move(text));
}

}  // namespace

absl::StatusOr<base::DType> ParseDType(const Json& code) {
  using base::DType;
  const std::optional<int64_t> number = Int(&code);
  if (!number) return Malformed("dtype");
  // torch/_export/serde/schema.py, ScalarType.
  constexpr absl::string_view kNames[] = {
      "unknown",   "uint8",      "int8",    "int16",   "int32",
      "int64",     "float16",    "float32", "float64", "complex32",
      "complex64", "complex128", "bool",    "bfloat16"};
  // The names of the codes from kFirstLater on.
  constexpr absl::string_view kLaterNames[] = {"uint16", "float8_e4m3fn",
                                               "float8_e5m2", "float8_e4m3fnuz",
                                               "float8_e5m2fnuz"};
  constexpr int64_t kFirstLater = 28;
  absl::string_view name;
  if (*number > 0 && *number < static_cast<int64_t>(std::size(kNames))) {
    name = kNames[*number];
  } else if (*number >= kFirstLater &&
             *number - kFirstLater <
                 static_cast<int64_t>(std::size(kLaterNames))) {
    name = kLaterNames[*number - kFirstLater];
  } else {
    return absl::UnimplementedError(
        absl::StrCat("dtype code ", *number, " is not known"));
  }
  if (name == "complex64") return kComplex64;
  if (name == "complex128") return kComplex128;
  const std::optional<DType> dtype = base::DTypeFromName(name);
  if (dtype) return *dtype;
  return absl::UnimplementedError(
      absl::StrCat("dtype ", name, " is not supported"));
}

absl::StatusOr<SymExpr> ParseSize(const Json& size) {
  const auto item = Union(&size);
  if (!item) return Malformed("size");
  if (*item->tag == "as_int") {
    REFRACT_ASSIGN_OR_RETURN(const int64_t value,
                             Required(Int(item->value), "size"));
    return SymExpr(value);
  }
  const std::string* text = String(Member(*item->value, "expr_str"));
  if (*item->tag != "as_expr" || text == nullptr) return Malformed("size");
  auto parsed = SymExpr::Parse(*text);
  // An expression of a kind that SymExpr lacks makes the size unknown, and no
  // error.
  return parsed.ok() ? *parsed : SymExpr();
}

absl::StatusOr<std::optional<Argument>> ParseArgument(const Tagged& argument,
                                                      const Scope& scope) {
  const std::string& tag = *argument.tag;
  const Json& value = *argument.value;
  if (tag == "as_none") return Argument(None{});
  // The graph's tensors are contiguous, and nodes decide where they lie.
  if (tag == "as_device" || tag == "as_memory_format") {
    return std::optional<Argument>();
  }
  if (tag == "as_layout") {
    if (Int(&value) == kLayoutStrided) return std::optional<Argument>();
    return absl::UnimplementedError("sparse layouts are not supported");
  }
  if (tag == "as_scalar_type") {
    REFRACT_ASSIGN_OR_RETURN(const base::DType dtype, ParseDType(value));
    return Argument(dtype);
  }
  if (tag == "as_tensor" || tag == "as_tensors" ||
      tag == "as_optional_tensor" || tag == "as_optional_tensors") {
    return ParseTensors(tag, value, scope);
  }
  if (tag == "as_int" || tag == "as_float" || tag == "as_bool" ||
      tag == "as_string") {
    return ParseScalar(tag, value);
  }
  if (tag == "as_ints" || tag == "as_sym_ints" || tag == "as_floats" ||
      tag == "as_bools" || tag == "as_strings") {
    return ParseLists(tag, value, scope);
  }
  if (tag == "as_complex") {
    // A complex literal: real and imaginary part
    // (models/passes/complex_numbers.h).
    FloatList parts;
    for (const absl::string_view part : {"real", "imag"}) {
      REFRACT_ASSIGN_OR_RETURN(const double number,
                               Required(Float(Member(value, part)), tag));
      parts.push_back(number);
    }
    return Argument(std::move(parts));
  }
  if (tag == "as_sym_int") return ParseSymbolic(value, scope, tag, Int);
  if (tag == "as_sym_float") return ParseSymbolic(value, scope, tag, Float);
  if (tag == "as_sym_bool") return ParseSymbolic(value, scope, tag, Bool);
  return absl::UnimplementedError(
      absl::StrCat("arguments of kind ", tag, " are not supported"));
}

}  // namespace refract::models::torch_export
