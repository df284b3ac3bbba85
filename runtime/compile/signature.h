#ifndef REFRACT_RUNTIME_COMPILE_SIGNATURE_H_
#define REFRACT_RUNTIME_COMPILE_SIGNATURE_H_

// Shapes of a part's inputs, the symbols that they define, and shapes of its
// outputs.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/tensor.h"
#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"

namespace refract::runtime {

class Signature;

// Values of a signature's symbols for one request. Reusable: a second Bind()
// allocates nothing.
class SymbolValues {
 private:
  friend class Signature;
  std::vector<int64_t> values_;  // of each symbol, bound or not
  std::vector<int> source_;      // input that gave the symbol, or -1
  // The same values by name, for expressions; empty if the signature has none.
  models::SymbolBindings named_;
};

// Immutable, thread-safe.
class Signature {
 public:
  Signature(const models::Graph& graph,
            absl::Span<const models::ValueId> inputs,
            absl::Span<const models::ValueId> outputs);

  // Checks `inputs` (count, dtype, rank, bytes, constant and symbolic sizes,
  // declared ranges, batch at least Graph::min_batch) and computes the symbols.
  // InvalidArgument names the input, its size and the expected size.
  absl::Status Bind(absl::Span<const base::TensorView> inputs,
                    SymbolValues& symbols) const;

  // nullopt for a shape that depends on data, or on symbols that the inputs do
  // not define.
  std::optional<base::TensorSpec> OutputSpec(size_t output,
                                             const SymbolValues& symbols) const;

  // Rows; nullopt if no input size has the batch symbol.
  std::optional<int64_t> Batch(absl::Span<const base::TensorView> inputs) const;

 private:
  struct Dim {
    models::SymExpr expr;
    std::optional<int64_t> constant;
    std::vector<int> symbols;
    bool is_symbol = false;  // one symbol and nothing else
    bool solvable = false;   // affine in one symbol
  };
  struct Tensor {
    std::string name;
    base::DType dtype = base::DType::kUnknown;
    bool has_shape = false;
    std::vector<Dim> dims;
    // For an input that is a size, not a tensor: its expression.
    std::optional<Dim> size;
  };
  struct Symbol {
    std::string name;
    int64_t min = 0;
    int64_t max = INT64_MAX;
    bool is_batch = false;
  };

  Tensor Describe(const models::Graph& graph, models::ValueId id);
  Dim DescribeDim(const models::SymExpr& expr);
  int SymbolIndex(absl::string_view name);

  absl::Status CheckTensor(const Tensor& tensor,
                           const base::TensorView& view) const;
  void Learn(const Dim& dim, int64_t value, int input, bool symbols_only,
             SymbolValues& symbols) const;
  // The value of `dim`; nullopt if a symbol in it is unknown.
  std::optional<int64_t> Evaluate(const Dim& dim,
                                  const SymbolValues& symbols) const;
  absl::Status CheckRanges(const SymbolValues& symbols) const;
  absl::Status CheckSizes(absl::Span<const base::TensorView> inputs,
                          const SymbolValues& symbols) const;
  std::string Explain(const Dim& dim, const SymbolValues& symbols) const;

  std::vector<Tensor> inputs_;
  std::vector<Tensor> outputs_;
  std::vector<Symbol> symbols_;
  int64_t min_batch_;
  // Some size is neither a constant nor a plain symbol.
  bool has_expressions_ = false;
};

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_COMPILE_SIGNATURE_H_
