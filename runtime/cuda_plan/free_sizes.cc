#include "runtime/cuda_plan/free_sizes.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace refract::runtime::cuda_plan {
namespace {

// Exporters write "no limit" as a huge number.
constexpr int64_t kNoLimit = int64_t{1} << 31;

// Whether a value of `expr` determines the value of its only symbol, tried at a
// symbol of 3: a size such as min(T, 64) does not.
bool Shows(const models::SymExpr& expr) {
  if (expr.is_unknown() || expr.Symbols().size() != 1) return false;
  const std::string symbol = expr.Symbols()[0];
  const auto value = expr.Evaluate({{symbol, 3}});
  if (!value.ok()) return false;
  const auto solution = expr.Solve(*value);
  return solution.has_value() && solution->value == 3;
}

}  // namespace

absl::StatusOr<FreeSizes> FreeSizes::Find(const models::Graph& graph,
                                          const Part& part, int64_t limit,
                                          const std::vector<bool>& skipped,
                                          std::optional<int64_t> batch_limit) {
  FreeSizes sizes;
  sizes.has_batch_ = batch_limit.has_value();
  const auto is_rows = [&](const std::string& symbol) {
    return symbol == graph.batch_symbol && !batch_limit;
  };
  // `wanted`: symbols in any size of an input. At the end each must have been
  // found as the size of one dimension, or requests would not tell it.
  std::set<std::string> wanted;
  const auto look = [&](const models::SymExpr& expr, size_t input, int dim) {
    for (const std::string& symbol : expr.Symbols()) {
      if (!is_rows(symbol)) wanted.insert(symbol);
    }
    if (!Shows(expr)) return;
    const std::string symbol = expr.Symbols()[0];
    if (is_rows(symbol) || std::any_of(sizes.all_.begin(), sizes.all_.end(),
                                       [&](const FreeSize& size) {
                                         return size.symbol == symbol;
                                       })) {
      return;
    }
    FreeSize size = {.symbol = symbol,
                     .max = limit,
                     .input = static_cast<int>(input),
                     .dim = dim,
                     .expr = expr,
                     .input_name = graph.value(part.inputs[input]).name};
    for (const models::SymbolRange& range : graph.symbols) {
      if (range.symbol != symbol) continue;
      size.min = std::max<int64_t>(range.min, 0);
      size.declared = range.max < kNoLimit;
      if (size.declared) size.max = range.max;
    }
    // Memory allows fewer rows than the model declares.
    if (symbol == graph.batch_symbol && size.max > *batch_limit) {
      size.declared = false;
      size.max = *batch_limit;
    }
    // A declared minimum above the limit of --max-size wins: no smaller request
    // exists.
    size.max = std::max(size.max, size.min);
    sizes.all_.push_back(std::move(size));
  };
  for (size_t i = 0; i < part.inputs.size(); ++i) {
    if (i < skipped.size() && skipped[i]) continue;
    const models::Value& value = graph.value(part.inputs[i]);
    if (value.kind == models::ValueKind::kSymInt) {
      if (!value.sym_value.is_unknown()) look(value.sym_value, i, -1);
      continue;
    }
    for (size_t d = 0; d < value.shape.size(); ++d) {
      if (value.shape[d].is_unknown()) continue;
      look(value.shape[d], i, static_cast<int>(d));
    }
  }
  for (const std::string& symbol : wanted) {
    if (std::none_of(
            sizes.all_.begin(), sizes.all_.end(),
            [&](const FreeSize& size) { return size.symbol == symbol; })) {
      return absl::UnimplementedError(
          absl::StrCat("size ", symbol,
                       " is not the size of one dimension of an input, so a "
                       "request does not tell it"));
    }
  }
  return sizes;
}

SizeValues FreeSizes::Largest() const {
  SizeValues values;
  for (const FreeSize& size : all_)
    values.push_back(std::max<int64_t>(size.max, 1));
  return values;
}

SizeValues FreeSizes::Smallest() const {
  SizeValues values;
  for (const FreeSize& size : all_)
    values.push_back(std::max<int64_t>(size.min, 1));
  return values;
}

absl::StatusOr<SizeValues> FreeSizes::Of(
    absl::Span<const base::TensorView> inputs) const {
  SizeValues values;
  for (const FreeSize& size : all_) {
    const base::TensorView& view = inputs[static_cast<size_t>(size.input)];
    int64_t shown = 0;
    if (size.dim >= 0) {
      shown = view.dims[static_cast<size_t>(size.dim)];
    } else {
      std::memcpy(&shown, view.data, sizeof(shown));
    }
    const auto solution = size.expr.Solve(shown);
    if (!solution.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", size.input_name, "': ", shown,
                       " is not a value of ", size.expr.ToString()));
    }
    if (solution->value > size.max) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input '", size.input_name, "': size ", size.symbol, " is ",
          solution->value, ", more than the ", size.max,
          size.declared ? " that the model declares"
                        : " that the device has memory for (--max-size)"));
    }
    values.push_back(solution->value);
  }
  return values;
}

models::SymbolBindings FreeSizes::Bind(const SizeValues& values) const {
  models::SymbolBindings bindings;
  for (size_t i = 0; i < all_.size(); ++i) {
    bindings[all_[i].symbol] = values[i];
  }
  return bindings;
}

std::string FreeSizes::ToString(const SizeValues& values) const {
  std::string text;
  for (size_t i = 0; i < all_.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", all_[i].symbol, " ", values[i]);
  }
  return text;
}

}  // namespace refract::runtime::cuda_plan
