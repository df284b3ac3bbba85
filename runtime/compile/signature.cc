// Symbols are learnt from the inputs of a request: first from sizes that are a
// plain symbol, then by solving affine expressions. All sizes are then checked
// against the learnt values.

#include "runtime/compile/signature.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace refract::runtime {
namespace {

using base::DType;
using base::TensorView;
using models::ValueKind;

DType DTypeOf(const models::Value& value) {
  switch (value.kind) {
    case ValueKind::kSymInt:
      return DType::kInt64;
    case ValueKind::kSymFloat:
      return DType::kFloat64;
    case ValueKind::kSymBool:
      return DType::kBool;
    case ValueKind::kTensor:
      return value.dtype;
  }
  return DType::kUnknown;
}

// The value of a size, which CheckTensor() knows to be an int64 scalar.
int64_t SizeIn(const TensorView& view) {
  return *reinterpret_cast<const int64_t*>(view.data);
}

// Whether Solve() inverts `expr`, an expression with the single symbol `name`.
bool IsSolvable(const models::SymExpr& expr, const std::string& name) {
  // Two trial values, neither near the small sizes that Max() and similar
  // functions treat separately.
  for (int64_t probe : {5, 1000}) {
    const auto value = expr.Evaluate({{name, probe}});
    if (!value.ok()) return false;
    const auto solution = expr.Solve(*value);
    if (!solution || solution->value != probe) return false;
  }
  return true;
}

}  // namespace

Signature::Signature(const models::Graph& graph,
                     absl::Span<const models::ValueId> inputs,
                     absl::Span<const models::ValueId> outputs)
    : min_batch_(graph.min_batch) {
  for (models::ValueId id : inputs) inputs_.push_back(Describe(graph, id));
  for (models::ValueId id : outputs) outputs_.push_back(Describe(graph, id));
  for (Symbol& symbol : symbols_) {
    // The batch has rules of its own besides its range: it may not be empty,
    // and exporters specialise small batches.
    symbol.is_batch = symbol.name == graph.batch_symbol;
    for (const models::SymbolRange& range : graph.symbols) {
      if (range.symbol != symbol.name) continue;
      symbol.min = range.min;
      symbol.max = range.max;
    }
  }
}

int Signature::SymbolIndex(absl::string_view name) {
  for (size_t i = 0; i < symbols_.size(); ++i) {
    if (symbols_[i].name == name) return static_cast<int>(i);
  }
  symbols_.push_back({std::string(name)});
  return static_cast<int>(symbols_.size()) - 1;
}

Signature::Dim Signature::DescribeDim(const models::SymExpr& expr) {
  Dim dim;
  dim.expr = expr;
  if (expr.is_unknown()) return dim;
  dim.constant = expr.constant();
  const std::vector<std::string> names = expr.Symbols();
  for (const std::string& name : names) {
    dim.symbols.push_back(SymbolIndex(name));
  }
  dim.is_symbol = expr.symbol().has_value();
  has_expressions_ |= !dim.constant && !dim.is_symbol;
  dim.solvable = names.size() == 1 && IsSolvable(expr, names[0]);
  return dim;
}

Signature::Tensor Signature::Describe(const models::Graph& graph,
                                      models::ValueId id) {
  const models::Value& value = graph.value(id);
  Tensor tensor;
  tensor.name = value.name;
  tensor.dtype = DTypeOf(value);
  if (value.kind != ValueKind::kTensor) {
    tensor.has_shape = true;
    if (value.kind == ValueKind::kSymInt && !value.sym_value.is_unknown()) {
      tensor.size = DescribeDim(value.sym_value);
    }
    return tensor;
  }
  tensor.has_shape = value.has_shape;
  for (const models::SymExpr& expr : value.shape) {
    tensor.dims.push_back(DescribeDim(expr));
  }
  return tensor;
}

absl::Status Signature::CheckTensor(const Tensor& tensor,
                                    const TensorView& view) const {
  const auto error = [&](const auto&... parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("input '", tensor.name, "': ", parts...));
  };
  if (view.dtype == DType::kUnknown ||
      (tensor.dtype != DType::kUnknown && view.dtype != tensor.dtype)) {
    return error("element type is ", base::Name(view.dtype), ", expected ",
                 base::Name(tensor.dtype));
  }
  // CheckSizes() and Learn() index dims by the signature's rank.
  if (tensor.has_shape && view.dims.size() != tensor.dims.size()) {
    return error("shape is ", base::DimsToString(view.dims), ", expected ",
                 tensor.dims.size(), " dimensions");
  }
  const auto bytes = base::ByteSize(view.dtype, view.dims);
  if (!bytes.ok()) return error(bytes.status().message());
  // Kernels trust dims, so the bytes must cover them.
  if (*bytes != view.bytes) {
    return error("holds ", view.bytes, " bytes where shape ",
                 base::DimsToString(view.dims), " of ", base::Name(view.dtype),
                 " needs ", *bytes);
  }
  if (view.data == nullptr && view.bytes > 0) return error("has no data");
  return absl::OkStatus();
}

void Signature::Learn(const Dim& dim, int64_t value, int input,
                      bool symbols_only, SymbolValues& symbols) const {
  if (dim.symbols.size() != 1 || (symbols_only && !dim.is_symbol)) return;
  const int index = dim.symbols[0];
  // The first input that defines a symbol wins; CheckSizes() finds
  // contradictions.
  if (symbols.source_[index] >= 0) return;
  int64_t learned = value;
  if (!dim.is_symbol) {
    if (!dim.solvable) return;
    const auto solution = dim.expr.Solve(value);
    if (!solution) return;  // CheckSizes() reports it
    learned = solution->value;
  }
  symbols.values_[index] = learned;
  symbols.source_[index] = input;
  // Bind() made an entry per symbol, so that a warm call allocates nothing.
  if (has_expressions_) {
    symbols.named_.find(symbols_[index].name)->second = learned;
  }
}

std::optional<int64_t> Signature::Evaluate(const Dim& dim,
                                           const SymbolValues& symbols) const {
  if (dim.constant) return dim.constant;
  if (dim.expr.is_unknown()) return std::nullopt;
  for (int symbol : dim.symbols) {
    if (symbols.source_[symbol] < 0) return std::nullopt;
  }
  if (dim.is_symbol) return symbols.values_[dim.symbols[0]];
  const auto value = dim.expr.Evaluate(symbols.named_);
  if (!value.ok()) return std::nullopt;
  return *value;
}

std::string Signature::Explain(const Dim& dim,
                               const SymbolValues& symbols) const {
  if (dim.symbols.empty()) return "";
  // Of several symbols only the first is named, which is enough to find the
  // input at fault.
  const int symbol = dim.symbols[0];
  const int source = symbols.source_[symbol];
  if (source < 0) return "";
  return absl::StrCat(" (", dim.expr.ToString(), ", where input '",
                      inputs_[source].name, "' makes ", symbols_[symbol].name,
                      " = ", symbols.values_[symbol], ")");
}

absl::Status Signature::CheckSizes(absl::Span<const TensorView> inputs,
                                   const SymbolValues& symbols) const {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Tensor& tensor = inputs_[i];
    for (size_t d = 0; d < tensor.dims.size(); ++d) {
      const Dim& dim = tensor.dims[d];
      const int64_t size = inputs[i].dims[d];
      // The case of nearly all sizes, without Evaluate(): these checks take a
      // noticeable part of the time of one item with many inputs.
      if (dim.is_symbol && symbols.source_[dim.symbols[0]] >= 0 &&
          symbols.values_[dim.symbols[0]] == size) {
        continue;
      }
      const auto expected = Evaluate(dim, symbols);
      // Without an expected value the operators that use the size check it.
      if (expected == size) continue;
      if (expected) {
        return absl::InvalidArgumentError(absl::StrCat(
            "input '", tensor.name, "': dimension ", d, " is ", size,
            ", expected ", *expected, Explain(dim, symbols)));
      }
      // No value of the symbol gives this size: Learn() found no solution.
      if (dim.solvable && symbols.source_[dim.symbols[0]] < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "input '", tensor.name, "': dimension ", d, " is ", size,
            ", which no size gives as ", dim.expr.ToString()));
      }
    }
    // Sizes that are passed as an input of their own, a scalar.
    if (!tensor.size) continue;
    const int64_t size = SizeIn(inputs[i]);
    const auto expected = Evaluate(*tensor.size, symbols);
    if (expected && *expected != size) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", tensor.name, "': is ", size, ", expected ",
                       *expected, Explain(*tensor.size, symbols)));
    }
  }
  return absl::OkStatus();
}

absl::Status Signature::CheckRanges(const SymbolValues& symbols) const {
  for (size_t i = 0; i < symbols_.size(); ++i) {
    const int source = symbols.source_[i];
    if (source < 0) continue;
    const Symbol& symbol = symbols_[i];
    const int64_t value = symbols.values_[i];
    const std::string& name = inputs_[source].name;
    if (symbol.is_batch && value == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", name, "': the batch is empty"));
    }
    if (symbol.is_batch && value < min_batch_) {
      return absl::InvalidArgumentError(
          absl::StrCat("input '", name, "': the batch is ", value,
                       "; this model gives right scores only for batches of ",
                       min_batch_, " rows or more"));
    }
    if (value < symbol.min || value > symbol.max) {
      return absl::InvalidArgumentError(absl::StrCat(
          "input '", name, "': ", symbol.name, " is ", value,
          ", which the model limits to ", symbol.min,
          symbol.max == INT64_MAX ? std::string(" or more")
                                  : absl::StrCat(" … ", symbol.max)));
    }
  }
  return absl::OkStatus();
}

absl::Status Signature::Bind(absl::Span<const TensorView> inputs,
                             SymbolValues& symbols) const {
  if (inputs.size() != inputs_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        inputs.size(), " inputs given, ", inputs_.size(), " expected"));
  }
  // First use of `symbols`: allocates all entries once.
  if (symbols.source_.size() != symbols_.size()) {
    symbols.values_.assign(symbols_.size(), 0);
    symbols.named_.clear();
    if (has_expressions_) {
      for (const Symbol& symbol : symbols_) symbols.named_[symbol.name] = 0;
    }
  }
  // Values of the previous request stay in `values_`; without a source nothing
  // reads them.
  symbols.source_.assign(symbols_.size(), -1);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    // All inputs are checked before any is read: Learn() reads data and dims
    // without a check.
    REFRACT_RETURN_IF_ERROR(CheckTensor(inputs_[i], inputs[i]));
  }
  // Sizes that are a plain symbol come first, because solving an expression
  // may be ambiguous.
  for (bool symbols_only : {true, false}) {
    if (!symbols_only && !has_expressions_) break;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Tensor& tensor = inputs_[i];
      const int input = static_cast<int>(i);
      for (size_t d = 0; d < tensor.dims.size(); ++d) {
        Learn(tensor.dims[d], inputs[i].dims[d], input, symbols_only, symbols);
      }
      if (tensor.size) {
        Learn(*tensor.size, SizeIn(inputs[i]), input, symbols_only, symbols);
      }
    }
  }
  REFRACT_RETURN_IF_ERROR(CheckSizes(inputs, symbols));
  return CheckRanges(symbols);
}

std::optional<base::TensorSpec> Signature::OutputSpec(
    size_t output, const SymbolValues& symbols) const {
  const Tensor& tensor = outputs_[output];
  if (!tensor.has_shape || tensor.dtype == DType::kUnknown) {
    return std::nullopt;
  }
  base::TensorSpec spec;
  spec.dtype = tensor.dtype;
  for (const Dim& dim : tensor.dims) {
    const auto size = Evaluate(dim, symbols);
    // An expression such as N − 1 may be negative for an empty input.
    if (!size || *size < 0) return std::nullopt;
    spec.dims.push_back(*size);
  }
  return spec;
}

std::optional<int64_t> Signature::Batch(
    absl::Span<const TensorView> inputs) const {
  if (inputs.size() != inputs_.size()) return std::nullopt;
  const auto is_batch = [&](const Dim& dim) {
    return dim.symbols.size() == 1 && symbols_[dim.symbols[0]].is_batch;
  };
  // A plain symbol is preferred to an expression that must be solved.
  for (bool solve : {false, true}) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Tensor& tensor = inputs_[i];
      if (inputs[i].dims.size() != tensor.dims.size()) continue;
      for (size_t d = 0; d < tensor.dims.size(); ++d) {
        const Dim& dim = tensor.dims[d];
        if (!is_batch(dim)) continue;
        const int64_t size = inputs[i].dims[d];
        if (dim.is_symbol) return size;
        if (!solve || !dim.solvable) continue;
        if (const auto solution = dim.expr.Solve(size)) return solution->value;
      }
      // Inputs are unchecked here, so that a size is read only from an int64
      // scalar.
      const bool readable = inputs[i].dtype == DType::kInt64 &&
                            inputs[i].bytes == sizeof(int64_t) &&
                            inputs[i].data != nullptr;
      if (tensor.size && readable && is_batch(*tensor.size) &&
          tensor.size->is_symbol) {
        return SizeIn(inputs[i]);
      }
    }
  }
  return std::nullopt;
}

}  // namespace refract::runtime
