#ifndef REFRACT_MODELS_REPOSITORY_TABLE_SHARDS_H_
#define REFRACT_MODELS_REPOSITORY_TABLE_SHARDS_H_

// Embedding tables that are divided over a shard group: several CPU nodes that
// serve the same version, each of which owns some rows of each such table.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace refract::models {

struct Graph;
struct SplitPlan;

// More nodes than that ask each other too often for one request.
inline constexpr size_t kMaxShards = 64;

// The rows of one table by owner. A table of one owner has no rows elsewhere.
struct TableShards {
  std::string table;          // weight name
  std::vector<int64_t> ends;  // shard k owns rows [begin(k), ends[k])

  int64_t begin(size_t shard) const {
    return shard == 0 ? 0 : ends[shard - 1];
  }
  int64_t rows(size_t shard) const { return ends[shard] - begin(shard); }
};

// Why a table cannot be divided over CPU nodes; empty: it can. A table can be
// divided if it is float32 [rows, dim], in any row format, and CN-pre reads it
// by look-ups of this table alone.
std::string WhyNotDivisible(const Graph& graph, const SplitPlan& plan,
                            absl::string_view table);

// Checks SplitPlan::num_shards and SplitPlan::shards: every row of each table
// has one owner, and each table can be divided. InvalidArgument names the
// table.
absl::Status CheckShards(const Graph& graph, const SplitPlan& plan);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_TABLE_SHARDS_H_
