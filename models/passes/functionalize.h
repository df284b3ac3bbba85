#ifndef REFRACT_MODELS_PASSES_FUNCTIONALIZE_H_
#define REFRACT_MODELS_PASSES_FUNCTIONALIZE_H_

// What the importers do to a graph before anyone else sees it. Each function
// takes a graph that ValidateGraph() accepts and leaves one that it accepts.

#include "absl/status/status.h"
#include "models/graph/graph.h"

namespace refract::models {

// Rewrites in-place operators (aten.relu_, aten.add_.Tensor, aten.copy_, …) to
// their functional forms, with every later read of the written tensor or of a
// view that shares its memory (view, slice, select, transpose, …) redirected to
// the new contents. Also removes what cannot matter to a result: detach, alias,
// contiguous, clone, lift_fresh_copy, dropout that is switched off, assertions
// over sizes (kept as nothing: sizes are checked against the signature by the
// server), unused nodes, values and outputs.
//
// A model input that is written keeps its contents: the caller's buffer is
// never changed.
//
// Unimplemented names the operator when a write goes through a view that cannot
// be inverted, when it is undecided whether two tensors share memory and it
// matters, when it writes into a weight, or when it changes shape or storage in
// place. InvalidArgument: the graph is not valid.
absl::Status Functionalize(Graph& graph);

// InvalidArgument names the operator that would give other answers on every
// call: random numbers, dropout in training mode, batch norm that updates its
// statistics. For a functional graph.
absl::Status CheckRunnable(const Graph& graph);

// Removes casts to the dtype that a tensor already has. Functionalize() inserts
// them where dtypes are not known yet; call again when they are.
void RemoveNoOpCasts(Graph& graph);

// Removes nodes without a used result, values that nothing refers to, and sets
// unused outputs to kNoValue. Renumbers values and nodes. Functionalize() and
// RemoveNoOpCasts() end with it.
void RemoveUnused(Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_PASSES_FUNCTIONALIZE_H_
