#ifndef REFRACT_MODELS_FUNCTIONALIZE_H_
#define REFRACT_MODELS_FUNCTIONALIZE_H_

#include "absl/status/status.h"
#include "models/graph.h"

namespace refract::models {

// Rewrites in-place operators (aten.relu_, aten.add_.Tensor, aten.copy_, …) to
// their functional forms, with every later read of the written tensor or of a
// view that shares its memory (view, slice, select, transpose, …) redirected to
// the new contents. Also removes what cannot matter to a result: detach, alias,
// lift_fresh_copy, assertions over sizes (kept as nothing: sizes are checked
// against the signature by the server), unused pure nodes.
//
// Unimplemented names the operator when a write goes through a view that cannot
// be inverted, or writes into a weight or a model input.
absl::Status Functionalize(Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_FUNCTIONALIZE_H_
