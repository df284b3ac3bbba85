#ifndef REFRACT_MODELS_SHAPES_FIT_H_
#define REFRACT_MODELS_SHAPES_FIT_H_

// Expressions for observed sizes.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/graph/graph.h"
#include "models/shapes/interpreter.h"
#include "models/shapes/probe.h"
#include "models/shapes/symbols.h"

namespace refract::models {

// A run that failed or gave a wrong result, with the sizes that it ran at.
struct FailedProbe {
  InterpreterRun run;
  int64_t rows = 0;  // value of the batch symbol
  absl::Status status;
};

// Fills dtype, shape and sym_value of every value of `graph` from runs at trial
// sizes. Sizes are affine in the symbols, or bilinear (B·T) where that does not
// fit; sizes that fit neither stay unknown. Every expression is checked at
// trial sizes that it was not made from. A run that fails is returned: the
// graph is then not the same program at all sizes. graph.min_batch rises where
// a top-k over the batch fails with fewer rows.
std::optional<FailedProbe> FitShapes(const Prober& prober,
                                     const FoundSymbols& found,
                                     const InterpreterRun& base_run,
                                     Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_SHAPES_FIT_H_
