#ifndef REFRACT_MODELS_PASSES_FUNCTIONALIZE_H_
#define REFRACT_MODELS_PASSES_FUNCTIONALIZE_H_

// Rewriting of imported graphs before other code sees them. ValidateGraph()
// must accept the graph before a function, and accepts it afterwards.

#include "absl/status/status.h"
#include "models/graph/graph.h"

namespace refract::models {

// Rewrites in-place operators (aten.relu_, aten.add_.Tensor, aten.copy_, …) to
// their functional forms, and redirects every later read of the written tensor
// or of a view that shares its memory (view, slice, select, …) to the new
// contents. Also removes operators without effect on results: detach, alias,
// contiguous, clone, lift_fresh_copy, dropout that is switched off, assertions
// over sizes (the server checks sizes by the signature), and unused nodes,
// values and outputs.
//
// A model input that is written keeps its contents: the caller's buffer is
// never changed.
//
// Unimplemented names the operator when a write goes through a view that cannot
// be inverted, when it is undecided whether two tensors share memory and it
// matters, when it writes into a weight, or when it changes shape or storage in
// place. InvalidArgument: the graph is not valid.
absl::Status Functionalize(Graph& graph);

// InvalidArgument names an operator whose answers differ between equal calls:
// random numbers, dropout in training mode, batch norm that updates its
// statistics. For a functional graph.
absl::Status CheckRunnable(const Graph& graph);

// Removes casts to the dtype that a tensor already has. Functionalize() inserts
// such casts while dtypes are unknown; call again when they are known.
void RemoveNoOpCasts(Graph& graph);

// Removes nodes without a used result and values without a reader, and sets
// unused outputs to kNoValue. Renumbers values and nodes. Functionalize() and
// RemoveNoOpCasts() end with it.
void RemoveUnused(Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_PASSES_FUNCTIONALIZE_H_
