#include "runtime/torch/size_ops.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace refract::runtime::aten {
namespace {

constexpr int64_t kMinInt = std::numeric_limits<int64_t>::min();

// Python's ints have no limit. A result beyond int64 is an error, never a wrong
// size.
absl::Status Overflow() {
  return absl::InvalidArgumentError("arithmetic on sizes overflows");
}

absl::Status DividesByZero() {
  return absl::InvalidArgumentError("arithmetic on sizes divides by zero");
}

bool IsNumber(const Operand& operand) {
  return operand.kind == Operand::Kind::kInt ||
         operand.kind == Operand::Kind::kFloat ||
         operand.kind == Operand::Kind::kBool;
}

int64_t AsInt(const Operand& operand) {
  return operand.kind == Operand::Kind::kBool ? operand.b : operand.i;
}

double AsFloat(const Operand& operand) {
  return operand.kind == Operand::Kind::kFloat
             ? operand.f
             : static_cast<double>(AsInt(operand));
}

// Truncates towards zero, as Python's int(). −2^63 and 2^63 are exact as
// doubles; the comparison also refuses NaN.
absl::StatusOr<Operand> ToInt(double value) {
  if (!(value >= -0x1p63 && value < 0x1p63)) return Overflow();
  return IntOperand(static_cast<int64_t>(value));
}

// The size of a dimension, or the number of elements, of a tensor or of a
// strided weight.
absl::StatusOr<Operand> OfTensor(absl::string_view op,
                                 absl::Span<const Operand> arguments) {
  const Operand& tensor = arguments[0];
  absl::Span<const int64_t> dims;
  if (tensor.kind == Operand::Kind::kTensor) {
    dims = tensor.tensor.dims;
  } else if (tensor.kind == Operand::Kind::kWeight) {
    dims = tensor.weight->sizes;
  } else {
    return absl::InvalidArgumentError(
        "the size of a value that is not a tensor");
  }
  if (op == "aten.sym_numel.default") {
    REFRACT_ASSIGN_OR_RETURN(const int64_t count, base::NumElements(dims));
    return IntOperand(count);
  }
  const auto rank = static_cast<int64_t>(dims.size());
  if (arguments.size() != 2 || arguments[1].kind != Operand::Kind::kInt) {
    return absl::InvalidArgumentError("the dimension is not an integer");
  }
  const int64_t dim =
      arguments[1].i < 0 ? arguments[1].i + rank : arguments[1].i;
  if (dim < 0 || dim >= rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "no dimension ", arguments[1].i, " in ", base::DimsToString(dims)));
  }
  return IntOperand(dims[dim]);
}

absl::StatusOr<Operand> Unary(absl::string_view name, const Operand& a) {
  const bool is_float = a.kind == Operand::Kind::kFloat;
  if (name == "neg") {
    if (is_float) return FloatOperand(-a.f);
    if (AsInt(a) == kMinInt) return Overflow();
    return IntOperand(-AsInt(a));
  }
  if (name == "pos") return a;
  if (name == "abs") {
    if (is_float) return FloatOperand(std::fabs(a.f));
    if (AsInt(a) == kMinInt) return Overflow();
    return IntOperand(std::abs(AsInt(a)));
  }
  if (name == "not_" || name == "not") return BoolOperand(AsFloat(a) == 0);
  if (name == "bool") return BoolOperand(AsFloat(a) != 0);
  if (name == "float") return FloatOperand(AsFloat(a));
  if (name == "sqrt") return FloatOperand(std::sqrt(AsFloat(a)));
  if (name == "int" || name == "trunc") {
    return is_float ? ToInt(a.f) : IntOperand(AsInt(a));
  }
  if (name == "floor") {
    return is_float ? ToInt(std::floor(a.f)) : IntOperand(AsInt(a));
  }
  if (name == "ceil") {
    return is_float ? ToInt(std::ceil(a.f)) : IntOperand(AsInt(a));
  }
  return absl::NotFoundError(absl::StrCat("no operator py.", name));
}

// add, sub, mul and the divisions of ints.
absl::StatusOr<Operand> IntArithmetic(absl::string_view name, int64_t x,
                                      int64_t y) {
  int64_t result = 0;
  if (name == "add") {
    if (__builtin_add_overflow(x, y, &result)) return Overflow();
    return IntOperand(result);
  }
  if (name == "sub") {
    if (__builtin_sub_overflow(x, y, &result)) return Overflow();
    return IntOperand(result);
  }
  if (name == "mul") {
    if (__builtin_mul_overflow(x, y, &result)) return Overflow();
    return IntOperand(result);
  }
  if (y == 0) return DividesByZero();
  if (y == -1) {  // the one divisor that can overflow
    if (name == "mod") return IntOperand(0);
    if (x == kMinInt) return Overflow();
    return IntOperand(-x);
  }
  // C++ rounds quotients towards zero, Python towards minus infinity: they
  // differ where the division leaves a rest and the signs differ. A rest has
  // the sign of `y`.
  const bool rounds = x % y != 0 && (x < 0) != (y < 0);
  if (name == "floordiv") return IntOperand(x / y - (rounds ? 1 : 0));
  return IntOperand(x % y + (rounds ? y : 0));
}

absl::StatusOr<Operand> FloatArithmetic(absl::string_view name, double x,
                                        double y) {
  if (name == "add") return FloatOperand(x + y);
  if (name == "sub") return FloatOperand(x - y);
  if (name == "mul") return FloatOperand(x * y);
  if (y == 0) return DividesByZero();
  if (name == "truediv") return FloatOperand(x / y);
  // PyTorch rounds the quotient down: 1 // 0.1 is 10 in TorchScript and in
  // exported graphs, and 9 in Python alone.
  if (name == "floordiv") return FloatOperand(std::floor(x / y));
  const double rest = std::fmod(x, y);
  return FloatOperand(rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest);
}

absl::StatusOr<Operand> Power(const Operand& a, const Operand& b) {
  // As in Python, an int to a negative power is a float.
  const bool whole = a.kind != Operand::Kind::kFloat &&
                     b.kind != Operand::Kind::kFloat && AsInt(b) >= 0;
  if (!whole) {
    if (AsFloat(a) == 0 && AsFloat(b) < 0) return DividesByZero();
    return FloatOperand(std::pow(AsFloat(a), AsFloat(b)));
  }
  // Squares of the base, multiplied where the exponent has a bit. The last
  // square is not computed, as it may overflow although no bit needs it.
  int64_t result = 1;
  int64_t factor = AsInt(a);
  for (int64_t left = AsInt(b); left > 0; left >>= 1) {
    if ((left & 1) != 0 && __builtin_mul_overflow(result, factor, &result)) {
      return Overflow();
    }
    if (left > 1 && __builtin_mul_overflow(factor, factor, &factor)) {
      return Overflow();
    }
  }
  return IntOperand(result);
}

absl::StatusOr<Operand> Binary(absl::string_view name, const Operand& a,
                               const Operand& b) {
  // As in Python, a bool counts as an int, and an int beside a float as a
  // float.
  const bool floats =
      a.kind == Operand::Kind::kFloat || b.kind == Operand::Kind::kFloat;
  if (name == "add" || name == "sub" || name == "mul" || name == "floordiv" ||
      name == "mod") {
    return floats ? FloatArithmetic(name, AsFloat(a), AsFloat(b))
                  : IntArithmetic(name, AsInt(a), AsInt(b));
  }
  if (name == "truediv") return FloatArithmetic(name, AsFloat(a), AsFloat(b));
  if (name == "pow") return Power(a, b);
  const bool less = floats ? AsFloat(a) < AsFloat(b) : AsInt(a) < AsInt(b);
  const bool equal = floats ? AsFloat(a) == AsFloat(b) : AsInt(a) == AsInt(b);
  if (name == "max") return less ? b : a;
  if (name == "min") return less || equal ? a : b;
  if (name == "eq") return BoolOperand(equal);
  if (name == "ne") return BoolOperand(!equal);
  if (name == "lt") return BoolOperand(less);
  if (name == "le") return BoolOperand(less || equal);
  if (name == "gt") return BoolOperand(!less && !equal);
  if (name == "ge") return BoolOperand(!less);
  const bool both_bool =
      a.kind == Operand::Kind::kBool && b.kind == Operand::Kind::kBool;
  if ((name == "and_" || name == "and") && both_bool) {
    return BoolOperand(a.b && b.b);
  }
  if ((name == "or_" || name == "or") && both_bool) {
    return BoolOperand(a.b || b.b);
  }
  return absl::NotFoundError(absl::StrCat("no operator py.", name));
}

}  // namespace

Operand IntOperand(int64_t i) {
  Operand operand;
  operand.kind = Operand::Kind::kInt;
  operand.i = i;
  return operand;
}

Operand FloatOperand(double f) {
  Operand operand;
  operand.kind = Operand::Kind::kFloat;
  operand.f = f;
  return operand;
}

Operand BoolOperand(bool b) {
  Operand operand;
  operand.kind = Operand::Kind::kBool;
  operand.b = b;
  return operand;
}

bool IsSizeOp(absl::string_view op) {
  return absl::StartsWith(op, "py.") || op == "aten.sym_size.int" ||
         op == "aten.sym_numel.default";
}

absl::StatusOr<Operand> EvaluateSizeOp(absl::string_view op,
                                       absl::Span<const Operand> arguments) {
  if (arguments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(op, " has no arguments"));
  }
  if (!absl::StartsWith(op, "py.")) return OfTensor(op, arguments);
  absl::string_view name = absl::StripPrefix(op, "py.");
  absl::ConsumePrefix(&name, "sym_");  // torch.sym_max, torch.sym_float, …
  for (const Operand& argument : arguments) {
    if (!IsNumber(argument)) {
      return absl::InvalidArgumentError(
          absl::StrCat(op, " of a value that is not a number"));
    }
  }
  if (arguments.size() == 1) return Unary(name, arguments[0]);
  if (arguments.size() == 2) return Binary(name, arguments[0], arguments[1]);
  return absl::InvalidArgumentError(
      absl::StrCat(op, " has ", arguments.size(), " arguments"));
}

bool IsLiteralNumber(const models::Argument& argument, Operand& operand) {
  if (const auto* i = std::get_if<int64_t>(&argument)) {
    operand = IntOperand(*i);
  } else if (const auto* f = std::get_if<double>(&argument)) {
    operand = FloatOperand(*f);
  } else if (const auto* b = std::get_if<bool>(&argument)) {
    operand = BoolOperand(*b);
  } else {
    return false;
  }
  return true;
}

absl::StatusOr<Operand> EvaluateSizeOp(const models::Node& node,
                                       absl::Span<const Operand> operands) {
  // Values of the graph take the operands in order; the other arguments are
  // literals.
  std::vector<Operand> arguments;
  size_t next = 0;
  for (const models::NamedArgument& arg : node.args) {
    if (std::holds_alternative<models::ValueRef>(arg.value)) {
      if (next == operands.size()) {
        return absl::InternalError(
            absl::StrCat(node.name, ": too few operands"));
      }
      arguments.push_back(operands[next++]);
    } else if (!IsLiteralNumber(arg.value, arguments.emplace_back())) {
      return absl::InvalidArgumentError(
          absl::StrCat(node.name, ": argument ", arg.name, " is not a number"));
    }
  }
  absl::StatusOr<Operand> result = EvaluateSizeOp(node.op, arguments);
  if (!result.ok()) return base::Annotate(result.status(), node.name);
  return result;
}

}  // namespace refract::runtime::aten
