#ifndef REFRACT_PARTITIONER_MESSAGE_BYTES_H_
#define REFRACT_PARTITIONER_MESSAGE_BYTES_H_

#include <vector>

#include "models/graph.h"

namespace refract::partitioner {

// Bytes of the message that carries `values` between a CN and an HN, as the
// transport counts them: header, table of the tensors, each tensor at a
// multiple of 64 (docs/wire_format.md). `bytes`: of every value of the graph,
// as in ValueSizes. A value of unknown rank counts as a matrix.
double MessageBytes(const models::Graph& graph,
                    const std::vector<models::ValueId>& values,
                    const std::vector<double>& bytes);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_MESSAGE_BYTES_H_
