#ifndef REFRACT_PARTITIONER_COSTS_MESSAGE_BYTES_H_
#define REFRACT_PARTITIONER_COSTS_MESSAGE_BYTES_H_

#include <vector>

#include "models/graph/graph.h"
#include "partitioner/costs/conditions.h"

namespace refract::partitioner {

// Bytes of the message with `values` between a CN and an HN, as the transport
// counts them: header, tensor table, each tensor at a multiple of 64
// (docs/design/wire_format.md). `bytes`: of every value of the graph, as in
// ValueSizes; `wire`: of every value, or empty (WirePrices). A value of unknown
// rank counts as a matrix. A value with unique rows is two tensors.
double MessageBytes(const models::Graph& graph,
                    const std::vector<models::ValueId>& values,
                    const std::vector<double>& bytes,
                    const std::vector<WirePrice>& wire = {});

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_COSTS_MESSAGE_BYTES_H_
