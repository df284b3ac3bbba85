#ifndef REFRACT_MODELS_PASSES_NAME_SIZES_H_
#define REFRACT_MODELS_PASSES_NAME_SIZES_H_

#include <string>

#include "absl/container/flat_hash_map.h"
#include "models/graph/graph.h"
#include "models/graph/sym_expr.h"

namespace refract::models {

// Gives sizes names that the user wrote. PyTorch's archive has its own ("s23"),
// whatever the torch.export.Dim was called: the batch becomes "batch", and
// another size the first input that has it, "hist" for dimension 0 of hist and
// "hist_1" for dimension 1. Sizes with other names, and sizes that no input has
// alone as a dimension, keep theirs.
void NameSizes(Graph& graph);

// `size` with a text of `names`, a name or an expression in parentheses, in the
// place of each symbol that it has as a key.
SymExpr Renamed(const SymExpr& size,
                const absl::flat_hash_map<std::string, std::string>& names);

// Renamed() for every size in the graph; graph.symbols and graph.batch_symbol
// stay.
void RenameSizes(const absl::flat_hash_map<std::string, std::string>& names,
                 Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_PASSES_NAME_SIZES_H_
