#include "models/graph/sym_expr.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

// An expression is stored as a sum of terms: integer coefficient × product of
// atoms. An atom is a symbol or a function that does not distribute over sums.
// Equal polynomials therefore have equal text, and equality is comparison of
// text.
//
// Any overflow, and any expression beyond the bounds below, becomes unknown.

namespace refract::models {
// Named, since SymExpr::Node below holds terms.
namespace sym_expr_internal {

enum class AtomKind : uint8_t { kSymbol, kFloorDiv, kMod, kMax, kMin };

struct Atom {
  AtomKind kind = AtomKind::kSymbol;
  std::string text;
  std::vector<SymExpr> args;  // of the function
};

struct Factor {
  std::shared_ptr<const Atom> atom;
  int power = 1;
};

// Factors in order of their text; none for the constant term.
struct Term {
  int64_t coefficient = 0;
  std::vector<Factor> factors;
};

// Terms by their text without the coefficient.
using Terms = std::map<std::string, Term>;

}  // namespace sym_expr_internal

namespace {

using namespace sym_expr_internal;  // NOLINT

// Bounds on expressions from outside text. Real expressions have a handful of
// terms; beyond these bounds a size is unknown. The bound on the text also
// bounds the nesting depth, hence the recursion of Evaluate().
constexpr size_t kMaxTerms = 256;
constexpr size_t kMaxTextBytes = 8192;
constexpr int kMaxPower = 64;

std::string TextOf(const std::vector<Factor>& factors) {
  return absl::StrJoin(factors, "*", [](std::string* out, const Factor& f) {
    absl::StrAppend(out, f.atom->text);
    if (f.power != 1) absl::StrAppend(out, "**", f.power);
  });
}

// k where a = k·b, both canonical and b not 0.
std::optional<int64_t> QuotientOf(const std::vector<Term>& a,
                                  const std::vector<Term>& b) {
  if (b.empty() || a.size() != b.size() || a[0].coefficient == INT64_MIN) {
    return std::nullopt;
  }
  const int64_t quotient = a[0].coefficient / b[0].coefficient;
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t product;
    if (TextOf(a[i].factors) != TextOf(b[i].factors) ||
        __builtin_mul_overflow(quotient, b[i].coefficient, &product) ||
        product != a[i].coefficient) {
      return std::nullopt;
    }
  }
  return quotient;
}

int DegreeOf(const Term& term) {
  int degree = 0;
  for (const Factor& factor : term.factors) degree += factor.power;
  return degree;
}

}  // namespace

// An expression in canonical form: like terms added up, zero terms left out.
struct SymExpr::Node {
  std::vector<sym_expr_internal::Term>
      terms;  // in the order of the text; empty = 0
  std::string text;

  bool is_constant() const {
    return terms.empty() || (terms.size() == 1 && terms[0].factors.empty());
  }
  int64_t constant() const { return terms.empty() ? 0 : terms[0].coefficient; }
};

namespace {

using NodePtr = std::shared_ptr<const SymExpr::Node>;

// nullptr (unknown) past the bounds.
NodePtr MakeNode(Terms terms) {
  auto node = std::make_shared<SymExpr::Node>();
  std::vector<std::pair<const std::string*, Term*>> order;
  for (auto& [text, term] : terms) {
    if (term.coefficient != 0) order.push_back({&text, &term});
  }
  if (order.size() > kMaxTerms) return nullptr;
  // Higher powers first and the constant last, the usual order of polynomials.
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) {
                     return DegreeOf(*a.second) > DegreeOf(*b.second);
                   });
  std::string& text = node->text;
  for (const auto& [key, term] : order) {
    const int64_t c = term->coefficient;
    // |c| as unsigned, because -INT64_MIN is no int64.
    const uint64_t magnitude =
        c < 0 ? ~static_cast<uint64_t>(c) + 1 : static_cast<uint64_t>(c);
    absl::StrAppend(
        &text, text.empty() ? (c < 0 ? "-" : "") : (c < 0 ? " - " : " + "));
    if (term->factors.empty()) {
      absl::StrAppend(&text, magnitude);
    } else {
      if (magnitude != 1) absl::StrAppend(&text, magnitude, "*");
      absl::StrAppend(&text, *key);
    }
    if (text.size() > kMaxTextBytes) return nullptr;
    node->terms.push_back(std::move(*term));
  }
  // No term left: the constant 0.
  if (text.empty()) text.push_back('0');
  return node;
}

NodePtr MakeConstant(int64_t value) {
  Terms terms;
  if (value != 0) terms[""].coefficient = value;
  return MakeNode(std::move(terms));
}

NodePtr MakeAtom(Atom atom) {
  if (atom.text.size() > kMaxTextBytes) return nullptr;
  Term term;
  term.coefficient = 1;
  std::string text = atom.text;
  term.factors.push_back({std::make_shared<const Atom>(std::move(atom)), 1});
  Terms terms;
  terms.emplace(std::move(text), std::move(term));
  return MakeNode(std::move(terms));
}

// False on overflow.
bool AddTerm(Terms& terms, const Term& term, int64_t scale) {
  int64_t coefficient;
  // Wrapped arithmetic would give a wrong size that looks right; callers turn
  // false into an unknown expression.
  if (__builtin_mul_overflow(term.coefficient, scale, &coefficient)) {
    return false;
  }
  // Terms with equal factors add their coefficients.
  auto [it, inserted] = terms.try_emplace(TextOf(term.factors), term);
  if (inserted) {
    it->second.coefficient = coefficient;
    return true;
  }
  return !__builtin_add_overflow(it->second.coefficient, coefficient,
                                 &it->second.coefficient);
}

// The product of two terms; nullopt past the bounds.
std::optional<Term> Multiply(const Term& a, const Term& b) {
  Term product;
  if (__builtin_mul_overflow(a.coefficient, b.coefficient,
                             &product.coefficient)) {
    return std::nullopt;
  }
  // A map by text keeps factors in canonical order and adds powers of equal
  // atoms.
  std::map<absl::string_view, Factor> factors;
  for (const Term* term : {&a, &b}) {
    for (const Factor& factor : term->factors) {
      auto [it, inserted] = factors.try_emplace(factor.atom->text, factor);
      if (!inserted) it->second.power += factor.power;
      if (it->second.power > kMaxPower) return std::nullopt;
    }
  }
  for (auto& [text, factor] : factors) product.factors.push_back(factor);
  return product;
}

// Division as in Python: rounded down, the remainder has the sign of the
// divisor. nullopt for a zero divisor and for INT64_MIN / -1.
struct QuotientRemainder {
  int64_t quotient;
  int64_t remainder;
};
std::optional<QuotientRemainder> DivideFloor(int64_t a, int64_t b) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return std::nullopt;
  int64_t q = a / b;
  int64_t r = a % b;
  if (r != 0 && (r < 0) != (b < 0)) {
    --q;
    r += b;
  }
  return QuotientRemainder{q, r};
}

// Symbols and numbers need no parentheses; a negative number does.
std::string Parenthesised(const SymExpr& e) {
  return e.symbol() || (e.constant() && *e.constant() >= 0)
             ? e.ToString()
             : absl::StrCat("(", e.ToString(), ")");
}

absl::Status Overflow(absl::string_view text) {
  return absl::OutOfRangeError(
      absl::StrCat("size ", text, " overflows 64 bits"));
}

absl::StatusOr<int64_t> EvaluateAtom(const Atom& atom,
                                     const SymbolBindings& bindings) {
  if (atom.kind == AtomKind::kSymbol) {
    auto it = bindings.find(atom.text);
    if (it == bindings.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("size symbol ", atom.text, " has no value"));
    }
    return it->second;
  }
  std::vector<int64_t> args;
  for (const SymExpr& arg : atom.args) {
    REFRACT_ASSIGN_OR_RETURN(int64_t value, arg.Evaluate(bindings));
    args.push_back(value);
  }
  switch (atom.kind) {
    case AtomKind::kMax:
      return *std::max_element(args.begin(), args.end());
    case AtomKind::kMin:
      return *std::min_element(args.begin(), args.end());
    // kFloorDiv and kMod, which have two arguments.
    default: {
      if (args[1] == 0) {
        return absl::OutOfRangeError(
            absl::StrCat("size ", atom.text, " divides by zero"));
      }
      const auto result = DivideFloor(args[0], args[1]);
      if (!result) return Overflow(atom.text);
      return atom.kind == AtomKind::kMod ? result->remainder : result->quotient;
    }
  }
}

void CollectSymbols(const SymExpr& e, std::vector<std::string>& out);

void CollectSymbols(const std::vector<Term>& terms,
                    std::vector<std::string>& out) {
  for (const Term& term : terms) {
    for (const Factor& factor : term.factors) {
      if (factor.atom->kind != AtomKind::kSymbol) {
        for (const SymExpr& arg : factor.atom->args) CollectSymbols(arg, out);
      } else if (std::find(out.begin(), out.end(), factor.atom->text) ==
                 out.end()) {
        out.push_back(factor.atom->text);
      }
    }
  }
}

void CollectSymbols(const SymExpr& e, std::vector<std::string>& out) {
  for (std::string& symbol : e.Symbols()) {
    if (std::find(out.begin(), out.end(), symbol) == out.end()) {
      out.push_back(std::move(symbol));
    }
  }
}

}  // namespace

SymExpr::SymExpr(int64_t constant) : node_(MakeConstant(constant)) {}

SymExpr SymExpr::Symbol(absl::string_view name) {
  return SymExpr(MakeAtom({AtomKind::kSymbol, std::string(name), /*args=*/{}}));
}

std::optional<int64_t> SymExpr::constant() const {
  if (node_ == nullptr || !node_->is_constant()) return std::nullopt;
  return node_->constant();
}

std::optional<std::string> SymExpr::symbol() const {
  if (node_ == nullptr || node_->terms.size() != 1) return std::nullopt;
  const Term& term = node_->terms[0];
  if (term.coefficient != 1 || term.factors.size() != 1 ||
      term.factors[0].power != 1 ||
      term.factors[0].atom->kind != AtomKind::kSymbol) {
    return std::nullopt;
  }
  return term.factors[0].atom->text;
}

std::vector<std::string> SymExpr::Symbols() const {
  std::vector<std::string> out;
  if (node_ != nullptr) CollectSymbols(node_->terms, out);
  return out;
}

absl::StatusOr<int64_t> SymExpr::Evaluate(
    const SymbolBindings& bindings) const {
  if (node_ == nullptr) {
    return absl::FailedPreconditionError("size is not known before running");
  }
  int64_t sum = 0;
  for (const Term& term : node_->terms) {
    int64_t product = term.coefficient;
    for (const Factor& factor : term.factors) {
      REFRACT_ASSIGN_OR_RETURN(int64_t value,
                               EvaluateAtom(*factor.atom, bindings));
      // Multiplied one by one, because each step may overflow.
      for (int i = 0; i < factor.power; ++i) {
        if (__builtin_mul_overflow(product, value, &product)) {
          return Overflow(node_->text);
        }
      }
    }
    if (__builtin_add_overflow(sum, product, &sum)) {
      return Overflow(node_->text);
    }
  }
  return sum;
}

std::optional<SymExpr::Solution> SymExpr::Solve(int64_t value) const {
  if (node_ == nullptr) return std::nullopt;
  // Accepts at most one constant and one linear term.
  const Term* slope = nullptr;
  int64_t constant = 0;
  for (const Term& term : node_->terms) {
    if (term.factors.empty()) {
      constant = term.coefficient;
      // A second symbol, a power or a function: not a·s + b.
    } else if (slope != nullptr || term.factors.size() != 1 ||
               term.factors[0].power != 1 ||
               term.factors[0].atom->kind != AtomKind::kSymbol) {
      return std::nullopt;
    } else {
      slope = &term;
    }
  }
  int64_t scaled;
  if (slope == nullptr || __builtin_sub_overflow(value, constant, &scaled)) {
    return std::nullopt;
  }
  // A remainder means that no integer s gives `value`.
  const auto result = DivideFloor(scaled, slope->coefficient);
  if (!result || result->remainder != 0 || result->quotient < 0) {
    return std::nullopt;
  }
  // (value − b) / a is an integer ≥ 0.
  return Solution{slope->factors[0].atom->text, result->quotient};
}

std::string SymExpr::ToString() const {
  return node_ == nullptr ? "?" : node_->text;
}

SymExpr operator+(const SymExpr& a, const SymExpr& b) {
  if (a.is_unknown() || b.is_unknown()) return SymExpr();
  Terms terms;
  for (const SymExpr* e : {&a, &b}) {
    for (const Term& term : e->node_->terms) {
      if (!AddTerm(terms, term, 1)) return SymExpr();
    }
  }
  return SymExpr(MakeNode(std::move(terms)));
}

SymExpr operator-(const SymExpr& a, const SymExpr& b) {
  return a + b * SymExpr(-1);
}

SymExpr operator*(const SymExpr& a, const SymExpr& b) {
  if (a.is_unknown() || b.is_unknown()) return SymExpr();
  Terms terms;
  for (const Term& left : a.node_->terms) {
    for (const Term& right : b.node_->terms) {
      const std::optional<Term> product = Multiply(left, right);
      if (!product || !AddTerm(terms, *product, 1)) return SymExpr();
    }
  }
  return SymExpr(MakeNode(std::move(terms)));
}

namespace {

// a // b = whole + rest // b. nullptr: unknown.
struct Split {
  NodePtr whole;
  NodePtr rest;
};

// The term divided by a divisor of one term; nullopt where a rest is left.
std::optional<Term> Divide(const Term& term, const Term& divisor) {
  const auto numbers = DivideFloor(term.coefficient, divisor.coefficient);
  if (!numbers || numbers->remainder != 0) return std::nullopt;
  Term quotient{.coefficient = numbers->quotient, .factors = term.factors};
  for (const Factor& factor : divisor.factors) {
    const auto same = std::find_if(
        quotient.factors.begin(), quotient.factors.end(),
        [&](const Factor& f) { return f.atom->text == factor.atom->text; });
    if (same == quotient.factors.end() || same->power < factor.power) {
      return std::nullopt;
    }
    same->power -= factor.power;
    if (same->power == 0) quotient.factors.erase(same);
  }
  return quotient;
}

// A symbol, or a positive multiple of symbols' product. Symbols are sizes, and
// a divisor is not 0.
bool IsSize(const Term& term) {
  return term.coefficient > 0 &&
         std::all_of(
             term.factors.begin(), term.factors.end(),
             [](const Factor& f) { return f.atom->kind == AtomKind::kSymbol; });
}

// Takes out what a divisor of one term divides: (k·m + r) // m = k + r // m for
// all integers.
Split SplitBy(const std::vector<Term>& terms, const Term& divisor) {
  Terms divisible;
  Terms others;
  for (const Term& term : terms) {
    const std::optional<Term> quotient = Divide(term, divisor);
    if (quotient ? !AddTerm(divisible, *quotient, 1)
                 : !AddTerm(others, term, 1)) {
      return {};
    }
  }
  return {MakeNode(std::move(divisible)), MakeNode(std::move(others))};
}

}  // namespace

SymExpr SymExpr::FloorDiv(const SymExpr& a, const SymExpr& b) {
  if (a.is_unknown() || b.is_unknown()) return SymExpr();
  if (const auto quotient = QuotientOf(a.node_->terms, b.node_->terms)) {
    return SymExpr(*quotient);
  }
  SymExpr whole(0);
  SymExpr rest = a;
  if (b.node_->terms.size() == 1) {
    Split split = SplitBy(a.node_->terms, b.node_->terms[0]);
    whole = SymExpr(std::move(split.whole));
    rest = SymExpr(std::move(split.rest));
    if (rest.is_unknown()) return SymExpr();
    if (const auto number = rest.constant()) {
      if (const auto divisor = b.constant()) {
        const auto result = DivideFloor(*number, *divisor);
        return result ? whole + SymExpr(result->quotient) : SymExpr();
      }
      // A size that divides is 1 or more.
      if (*number == 0) return whole;
      if (*number == -1 && IsSize(b.node_->terms[0])) return whole - SymExpr(1);
    }
  }
  return whole + SymExpr(MakeAtom({AtomKind::kFloorDiv,
                                   absl::StrCat("(", Parenthesised(rest), "//",
                                                Parenthesised(b), ")"),
                                   {rest, b}}));
}

SymExpr SymExpr::Mod(const SymExpr& a, const SymExpr& b) {
  if (a.is_unknown() || b.is_unknown()) return SymExpr();
  if (QuotientOf(a.node_->terms, b.node_->terms)) return SymExpr(0);
  SymExpr rest = a;
  if (b.node_->terms.size() == 1) {
    rest = SymExpr(SplitBy(a.node_->terms, b.node_->terms[0]).rest);
    if (rest.is_unknown()) return SymExpr();
    if (const auto number = rest.constant()) {
      if (const auto divisor = b.constant()) {
        const auto result = DivideFloor(*number, *divisor);
        return result ? SymExpr(result->remainder) : SymExpr();
      }
      if (*number == 0) return SymExpr(0);
      if (*number == -1 && IsSize(b.node_->terms[0])) return b - SymExpr(1);
    }
  }
  return SymExpr(
      MakeAtom({AtomKind::kMod,
                absl::StrCat("Mod(", rest.ToString(), ", ", b.ToString(), ")"),
                {rest, b}}));
}

namespace {

// The arguments of a Max or Min of `a` and `b`: nested functions of the same
// kind flattened, constants folded, duplicates dropped, in order of text.
std::vector<SymExpr> MergeExtremes(AtomKind kind, const SymExpr& a,
                                   const SymExpr& b,
                                   const std::vector<SymExpr>& a_args,
                                   const std::vector<SymExpr>& b_args) {
  // By text: drops duplicates, and makes Max(a, b) and Max(b, a) one text.
  std::map<std::string, SymExpr> args;
  std::optional<int64_t> constant;
  for (const auto* list : {&a_args, &b_args}) {
    for (const SymExpr& arg : *list) {
      if (const auto value = arg.constant()) {
        if (!constant) constant = value;
        constant = kind == AtomKind::kMax ? std::max(*constant, *value)
                                          : std::min(*constant, *value);
      } else {
        args.emplace(arg.ToString(), arg);
      }
    }
  }
  std::vector<SymExpr> merged;
  if (constant) merged.push_back(SymExpr(*constant));
  for (auto& [text, arg] : args) merged.push_back(arg);
  return merged;
}

// The arguments if `terms` is a single atom of `kind`, else `self`.
std::vector<SymExpr> OpenExtreme(AtomKind kind, const SymExpr& self,
                                 const std::vector<Term>& terms) {
  // Max(Max(a, b), c) has the arguments a, b, c.
  if (terms.size() == 1 && terms[0].coefficient == 1 &&
      terms[0].factors.size() == 1 && terms[0].factors[0].power == 1 &&
      terms[0].factors[0].atom->kind == kind) {
    return terms[0].factors[0].atom->args;
  }
  return {self};
}

Atom ExtremeAtom(AtomKind kind, std::vector<SymExpr> args) {
  Atom atom;
  atom.kind = kind;
  atom.text =
      absl::StrCat(kind == AtomKind::kMax ? "Max(" : "Min(",
                   absl::StrJoin(args, ", ",
                                 [](std::string* out, const SymExpr& e) {
                                   absl::StrAppend(out, e.ToString());
                                 }),
                   ")");
  atom.args = std::move(args);
  return atom;
}

}  // namespace

SymExpr SymExpr::Max(const SymExpr& a, const SymExpr& b) {
  if (a.is_unknown() || b.is_unknown()) return SymExpr();
  std::vector<SymExpr> args = MergeExtremes(
      AtomKind::kMax, a, b, OpenExtreme(AtomKind::kMax, a, a.node_->terms),
      OpenExtreme(AtomKind::kMax, b, b.node_->terms));
  if (args.size() == 1) return args[0];
  return SymExpr(MakeAtom(ExtremeAtom(AtomKind::kMax, std::move(args))));
}

SymExpr SymExpr::Min(const SymExpr& a, const SymExpr& b) {
  if (a.is_unknown() || b.is_unknown()) return SymExpr();
  std::vector<SymExpr> args = MergeExtremes(
      AtomKind::kMin, a, b, OpenExtreme(AtomKind::kMin, a, a.node_->terms),
      OpenExtreme(AtomKind::kMin, b, b.node_->terms));
  if (args.size() == 1) return args[0];
  return SymExpr(MakeAtom(ExtremeAtom(AtomKind::kMin, std::move(args))));
}

bool operator==(const SymExpr& a, const SymExpr& b) {
  return !a.is_unknown() && !b.is_unknown() && a.node_->text == b.node_->text;
}

}  // namespace refract::models
