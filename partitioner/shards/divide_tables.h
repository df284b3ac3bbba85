#ifndef REFRACT_PARTITIONER_SHARDS_DIVIDE_TABLES_H_
#define REFRACT_PARTITIONER_SHARDS_DIVIDE_TABLES_H_

// Which CPU node of a shard group owns which rows.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "models/repository/weights.h"

namespace refract::partitioner {

struct TableSize {
  std::string table;  // weight name
  int64_t rows = 0;
  int64_t row_bytes = 0;

  int64_t bytes() const { return rows * row_bytes; }
};

// Divides every table of `tables` over `num_shards` ≥ 1 nodes, in the order
// given. A table that is larger than the mean of a node's bytes is divided by
// rows, as evenly as rows allow. The others stay whole, since a node answers
// for a whole table with one pooled vector: the largest first, each goes to the
// node with the fewest bytes. No node gets more than twice the mean and one row
// of each table.
std::vector<models::TableShards> DivideTables(
    absl::Span<const TableSize> tables, size_t num_shards);

// Sets num_shards and shards of `plan`, whose stages are final. Divided are the
// tables of at least `least_bytes` that models::WhyNotDivisible() allows; every
// node has the others as a whole. Tables whose rows have ids are divided by
// ids: as evenly as a hash divides them. Reads all of these ids.
// InvalidArgument: num_shards is not 2 to models::kMaxShards.
// FailedPrecondition: no table is left to divide; names the largest and why.
absl::Status DivideTables(const models::Graph& graph,
                          const models::WeightStore& weights,
                          size_t num_shards, int64_t least_bytes,
                          models::SplitPlan& plan);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_SHARDS_DIVIDE_TABLES_H_
