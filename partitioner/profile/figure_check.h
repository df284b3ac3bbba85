#ifndef REFRACT_PARTITIONER_PROFILE_FIGURE_CHECK_H_
#define REFRACT_PARTITIONER_PROFILE_FIGURE_CHECK_H_

#include "absl/status/status.h"
#include "models/graph/graph.h"
#include "partitioner/costs/conditions.h"
#include "partitioner/costs/prediction.h"

namespace refract::partitioner {

// Whether every figure that a cut would add up is a number of at least 0. They
// come from graphs, profiles and hardware descriptions that others wrote, and
// from sizes that may not fit the model: a convolution over fewer steps than it
// is wide has a result of negative size.
//
// InvalidArgument names the operator or value, its shape at
// `conditions.sizes`, and the figure.
absl::Status CheckFigures(const models::Graph& graph,
                          const Conditions& conditions,
                          const ValueSizes& sizes);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_PROFILE_FIGURE_CHECK_H_
