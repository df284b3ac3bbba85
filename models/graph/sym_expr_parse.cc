// SymExpr::Parse: a recursive-descent parser for both forms of sympy's text,
// the readable one ("26*s49", "(s0//4)") and srepr, which torch.export stores
// ("Mul(Integer(26), Symbol('s49', positive=True, integer=True))").

#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/graph/sym_expr.h"

namespace refract::models {
namespace {

// Bounds on outside text. The longest size of a real export is below 1 KiB and
// nests 12 deep. The depth bounds the parser's recursion.
constexpr size_t kMaxParsedBytes = 8192;
constexpr int kMaxDepth = 128;
// A power is computed by repeated products; sizes have small exponents.
constexpr int64_t kMaxExponent = 32;

class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<SymExpr> Run() {
    if (text_.size() > kMaxParsedBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "size expression of ", text_.size(), " bytes: too long"));
    }
    REFRACT_ASSIGN_OR_RETURN(SymExpr result, ParseSum());
    SkipSpace();
    if (pos_ != text_.size()) return Error("unexpected text");
    // SymExpr's operators give unknown after an overflow, at any depth.
    if (result.is_unknown()) return Error("does not fit 64 bits");
    return result;
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "size expression \"", text_, "\", position ", pos_, ": ", what));
  }

  void SkipSpace() {
    while (pos_ < text_.size() && absl::ascii_isspace(text_[pos_])) ++pos_;
  }

  // Takes `token` if it comes next. "*" does not take half of "**".
  bool Take(absl::string_view token) {
    SkipSpace();
    const absl::string_view rest = text_.substr(pos_);
    if (rest.substr(0, token.size()) != token) return false;
    if (token == "*" && rest.substr(0, 2) == "**") return false;
    pos_ += token.size();
    return true;
  }

  absl::StatusOr<SymExpr> ParseSum() {
    if (++depth_ > kMaxDepth) return Error("nested too deep");
    REFRACT_ASSIGN_OR_RETURN(SymExpr left, ParseProduct());
    while (true) {
      if (Take("+")) {
        REFRACT_ASSIGN_OR_RETURN(SymExpr right, ParseProduct());
        left = left + right;
      } else if (Take("-")) {
        REFRACT_ASSIGN_OR_RETURN(SymExpr right, ParseProduct());
        left = left - right;
      } else {
        --depth_;
        return left;
      }
    }
  }

  // Left-associative, as in Python: a*b//c is (a*b)//c.
  absl::StatusOr<SymExpr> ParseProduct() {
    REFRACT_ASSIGN_OR_RETURN(SymExpr left, ParseUnary());
    while (true) {
      if (Take("*")) {
        REFRACT_ASSIGN_OR_RETURN(SymExpr right, ParseUnary());
        left = left * right;
      } else if (Take("//")) {
        REFRACT_ASSIGN_OR_RETURN(SymExpr right, ParseUnary());
        left = SymExpr::FloorDiv(left, right);
      } else if (Take("%")) {
        REFRACT_ASSIGN_OR_RETURN(SymExpr right, ParseUnary());
        left = SymExpr::Mod(left, right);
      } else {
        return left;
      }
    }
  }

  // As in Python, ** binds tighter than a minus before it.
  absl::StatusOr<SymExpr> ParseUnary() {
    bool negative = false;
    while (true) {
      if (Take("-")) {
        negative = !negative;
      } else if (!Take("+")) {
        break;
      }
    }
    // An integer is parsed together with its sign, so that the least int64 can
    // be read back.
    SkipSpace();
    if (pos_ < text_.size() && absl::ascii_isdigit(text_[pos_])) {
      const size_t start = pos_;
      REFRACT_ASSIGN_OR_RETURN(SymExpr literal, ParseInteger(negative));
      // A power binds tighter than the sign: parse again without the sign.
      if (!Take("**")) return literal;
      pos_ = start;
    }
    REFRACT_ASSIGN_OR_RETURN(SymExpr value, ParsePower());
    return negative ? SymExpr(-1) * value : value;
  }

  absl::StatusOr<SymExpr> ParsePower() {
    REFRACT_ASSIGN_OR_RETURN(SymExpr base, ParsePrimary());
    if (!Take("**")) return base;
    // The exponent may be a power again: ** is right-associative and recurs
    // here.
    if (++depth_ > kMaxDepth) return Error("nested too deep");
    REFRACT_ASSIGN_OR_RETURN(SymExpr exponent, ParseUnary());
    --depth_;
    return Power(base, exponent);
  }

  absl::StatusOr<SymExpr> Power(const SymExpr& base, const SymExpr& exponent) {
    const std::optional<int64_t> times = exponent.constant();
    if (!times || *times < 0 || *times > kMaxExponent) {
      return Error("exponent is no constant between 0 and 32");
    }
    SymExpr result(1);
    for (int64_t i = 0; i < *times; ++i) result = result * base;
    return result;
  }

  absl::StatusOr<SymExpr> ParseInteger(bool negative) {
    const size_t start = pos_;
    while (pos_ < text_.size() && absl::ascii_isdigit(text_[pos_])) ++pos_;
    if (pos_ < text_.size() &&
        (text_[pos_] == '.' || absl::ascii_isalpha(text_[pos_]))) {
      return Error("not an integer");
    }
    const std::string digits =
        absl::StrCat(negative ? "-" : "", text_.substr(start, pos_ - start));
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      return Error("integer does not fit 64 bits");
    }
    return SymExpr(value);
  }

  absl::string_view TakeIdentifier() {
    SkipSpace();
    const size_t start = pos_;
    while (pos_ < text_.size() && (absl::ascii_isalnum(text_[pos_]) ||
                                   text_[pos_] == '_' || text_[pos_] == '.')) {
      ++pos_;
    }
    return text_.substr(start, pos_ - start);
  }

  absl::StatusOr<SymExpr> ParsePrimary() {
    SkipSpace();
    if (pos_ == text_.size()) return Error("ends early");
    if (Take("(")) {
      REFRACT_ASSIGN_OR_RETURN(SymExpr inner, ParseSum());
      if (!Take(")")) return Error("missing )");
      return inner;
    }
    if (absl::ascii_isdigit(text_[pos_])) {
      return ParseInteger(/*negative=*/false);
    }
    if (!absl::ascii_isalpha(text_[pos_]) && text_[pos_] != '_') {
      return Error("unexpected character");
    }
    const size_t start = pos_;
    const absl::string_view name = TakeIdentifier();
    if (!Take("(")) return SymExpr::Symbol(name);
    // srepr writes symbols as calls.
    if (name == "Symbol") return ParseSymbolCall();
    std::vector<SymExpr> args;
    if (!Take(")")) {
      do {
        REFRACT_ASSIGN_OR_RETURN(SymExpr arg, ParseSum());
        args.push_back(std::move(arg));
      } while (Take(","));
      if (!Take(")")) return Error("missing )");
    }
    const size_t end = pos_;
    pos_ = start;  // errors point at the function's name
    REFRACT_ASSIGN_OR_RETURN(SymExpr result, Call(name, args));
    pos_ = end;
    return result;
  }

  // srepr: Symbol('s49', positive=True, integer=True); "(" is taken.
  absl::StatusOr<SymExpr> ParseSymbolCall() {
    SkipSpace();
    if (pos_ == text_.size() || (text_[pos_] != '\'' && text_[pos_] != '"')) {
      return Error("symbol without a name");
    }
    const char quote[] = {text_[pos_++], '\0'};
    const absl::string_view name = TakeIdentifier();
    if (name.empty() || !Take(quote)) return Error("bad symbol name");
    // Assumptions such as positive=True are skipped: sizes are integers anyway.
    while (Take(",")) {
      if (TakeIdentifier().empty() || !Take("=") || TakeIdentifier().empty()) {
        return Error("bad symbol assumption");
      }
    }
    if (!Take(")")) return Error("missing )");
    return SymExpr::Symbol(name);
  }

  absl::StatusOr<SymExpr> Call(absl::string_view name,
                               const std::vector<SymExpr>& args) {
    if (args.empty()) return Error("function without arguments");
    // Guards of exports are written as Python.
    if (name == "max") name = "Max";
    if (name == "min") name = "Min";
    if (name == "Add" || name == "Mul" || name == "Max" || name == "Min") {
      SymExpr result = args[0];
      for (size_t i = 1; i < args.size(); ++i) {
        result = name == "Add"   ? result + args[i]
                 : name == "Mul" ? result * args[i]
                 : name == "Max" ? SymExpr::Max(result, args[i])
                                 : SymExpr::Min(result, args[i]);
      }
      return result;
    }
    if (name == "Integer" && args.size() == 1) return args[0];
    if (args.size() == 2) {
      if (name == "FloorDiv" || name == "CleanDiv") {
        return SymExpr::FloorDiv(args[0], args[1]);
      }
      if (name == "Mod" || name == "PythonMod") {
        return SymExpr::Mod(args[0], args[1]);
      }
      if (name == "CeilDiv") {  // ⌈a/b⌉ = −⌊−a/b⌋
        return SymExpr(0) - SymExpr::FloorDiv(SymExpr(0) - args[0], args[1]);
      }
      if (name == "Pow" || name == "PowByNatural") {
        return Power(args[0], args[1]);
      }
    }
    return Error(absl::StrCat("function ", name, " of ", args.size(),
                              " arguments is not known"));
  }

  const absl::string_view text_;
  size_t pos_ = 0;
  int depth_ = 0;
};

}  // namespace

absl::StatusOr<SymExpr> SymExpr::Parse(absl::string_view text) {
  return Parser(text).Run();
}

}  // namespace refract::models
