#ifndef REFRACT_MODELS_GRAPH_SYM_EXPR_H_
#define REFRACT_MODELS_GRAPH_SYM_EXPR_H_

// Symbolic sizes: integers, symbols and the arithmetic of exporters ("26*s49",
// "s3 + 1", "(s0//4)", "Max(1, s0)").

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::models {

// Values of symbols for one request.
using SymbolBindings = absl::flat_hash_map<std::string, int64_t>;

// An immutable integer expression. Cheap to copy (shared tree); thread-safe.
// The default is unknown: a size that only a run shows.
class SymExpr {
 public:
  SymExpr() = default;
  SymExpr(int64_t constant);  // NOLINT: sizes are mostly numbers
  static SymExpr Symbol(absl::string_view name);

  // Parses sympy's text. InvalidArgument names the text and the position.
  // Functions known: + - * // % ** (constant exponent), Add, Mul, Pow, Max,
  // Min, max, min, FloorDiv, PythonMod, Mod, CleanDiv, CeilDiv.
  static absl::StatusOr<SymExpr> Parse(absl::string_view text);

  bool is_unknown() const { return node_ == nullptr; }
  std::optional<int64_t> constant() const;
  // The name if the expression is a single symbol.
  std::optional<std::string> symbol() const;
  // Distinct symbols, in order of first appearance.
  std::vector<std::string> Symbols() const;

  // FailedPrecondition when unknown or a symbol has no value; OutOfRange when
  // it overflows int64 or divides by zero.
  absl::StatusOr<int64_t> Evaluate(const SymbolBindings& bindings) const;

  // If the expression is a·s + b in exactly one symbol s: the value of s for
  // which it equals `value`. nullopt for other forms, or if that value is not
  // an integer ≥ 0. A server derives N from a tensor of size N + 1 this way.
  struct Solution {
    std::string symbol;
    int64_t value;
  };
  std::optional<Solution> Solve(int64_t value) const;

  // Canonical for sums of products: "2*s0 + 1". "?" when unknown. Parse() reads
  // it back, except "?".
  std::string ToString() const;

  friend SymExpr operator+(const SymExpr& a, const SymExpr& b);
  friend SymExpr operator-(const SymExpr& a, const SymExpr& b);
  friend SymExpr operator*(const SymExpr& a, const SymExpr& b);
  // Floor division as in Python. Unknown if either side is. Simplified with
  // symbols as sizes, 1 or more where they divide: (s0*s1 + s1 - 1)//s1 is s0.
  static SymExpr FloorDiv(const SymExpr& a, const SymExpr& b);
  static SymExpr Mod(const SymExpr& a, const SymExpr& b);
  static SymExpr Max(const SymExpr& a, const SymExpr& b);
  static SymExpr Min(const SymExpr& a, const SymExpr& b);
  // Same canonical text. Unknown equals nothing, not even itself.
  friend bool operator==(const SymExpr& a, const SymExpr& b);

  struct Node;  // internal, sym_expr.cc

 private:
  explicit SymExpr(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  // Immutable, shared among all expressions built from this one.
  std::shared_ptr<const Node> node_;
};

}  // namespace refract::models

#endif  // REFRACT_MODELS_GRAPH_SYM_EXPR_H_
