#ifndef REFRACT_MODELS_ROW_DEPENDENCE_H_
#define REFRACT_MODELS_ROW_DEPENDENCE_H_

// Models whose items are not scored alone.

#include <string>

#include "models/graph.h"

namespace refract::models {

// The first node that mixes the rows of a request, as "softmax
// (aten.softmax.int) works across the batch"; empty when no node is known to.
// Judged by shapes: a reduction, normalisation, sort or product of floats along
// a dimension whose size has the batch in it, or a result with the batch in two
// dimensions. What shapes do not show, CheckRows() finds with a sample.
std::string FindRowDependence(const Graph& graph);

}  // namespace refract::models

#endif  // REFRACT_MODELS_ROW_DEPENDENCE_H_
