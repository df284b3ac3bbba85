#ifndef REFRACT_PARTITIONER_SPLIT_HN_LOOK_UPS_H_
#define REFRACT_PARTITIONER_SPLIT_HN_LOOK_UPS_H_

#include <vector>

#include "models/graph/graph.h"
#include "models/repository/repository.h"

namespace refract::partitioner {

// Per node of `graph`: whether it is a look-up that may run on the HN because
// its table has at most `max_table_bytes`. Look-ups of many tables at once stay
// on the CN. So do tables in a row format (Value::row_bytes), and tables whose
// unknown ids are replaced rather than refused, because the CN counts
// replacements (`config`).
std::vector<bool> HnLookUps(const models::Graph& graph,
                            const models::ModelConfig& config,
                            double max_table_bytes);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SPLIT_HN_LOOK_UPS_H_
