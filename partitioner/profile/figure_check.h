#ifndef REFRACT_PARTITIONER_PROFILE_FIGURE_CHECK_H_
#define REFRACT_PARTITIONER_PROFILE_FIGURE_CHECK_H_

#include "absl/status/status.h"
#include "models/graph/graph.h"
#include "partitioner/costs/conditions.h"
#include "partitioner/costs/prediction.h"

namespace refract::partitioner {

// Checks that every figure that a cut would add is a number of at least 0.
// Figures come from graphs, profiles and hardware descriptions of others, and
// from sizes that may not fit the model: a convolution over fewer steps than
// its width has a result of negative size.
//
// InvalidArgument names the operator or value, its shape at `conditions.sizes`,
// and the figure.
absl::Status CheckFigures(const models::Graph& graph,
                          const Conditions& conditions,
                          const ValueSizes& sizes);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_FIGURE_CHECK_H_
