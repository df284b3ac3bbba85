#ifndef REFRACT_MODELS_PASSES_NAME_SIZES_H_
#define REFRACT_MODELS_PASSES_NAME_SIZES_H_

#include "models/graph/graph.h"

namespace refract::models {

// Gives sizes names that the user wrote. PyTorch's archive has its own ("s23"),
// whatever the torch.export.Dim was called: the batch becomes "batch", and
// another size the first input that has it, "hist" for dimension 0 of hist and
// "hist_1" for dimension 1. Sizes with other names, and sizes that no input has
// alone as a dimension, keep theirs.
void NameSizes(Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_PASSES_NAME_SIZES_H_
