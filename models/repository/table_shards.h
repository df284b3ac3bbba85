#ifndef REFRACT_MODELS_REPOSITORY_TABLE_SHARDS_H_
#define REFRACT_MODELS_REPOSITORY_TABLE_SHARDS_H_

// Embedding tables that are divided over a shard group: several CPU nodes that
// serve the same version, each of which owns some rows of each such table.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace refract::models {

struct Graph;
struct SplitPlan;

// With more shards, a request would ask too many other nodes for rows.
inline constexpr size_t kMaxShards = 64;

// The rows of one table by owner. A table of one owner has no rows elsewhere.
struct TableShards {
  std::string table;          // weight name
  std::vector<int64_t> ends;  // shard k owns rows [begin(k), ends[k])
  // Whether ids name the rows (models/tables/id_index.h). Unless the table has
  // one owner, a hash of the id then gives the owner of the row (OwnerOfId()),
  // and `ends` give only the number of rows of each shard.
  bool by_ids = false;

  int64_t begin(size_t shard) const {
    return shard == 0 ? 0 : ends[shard - 1];
  }
  int64_t rows(size_t shard) const { return ends[shard] - begin(shard); }
  // The shard that has all rows; nullopt: several shards have rows.
  std::optional<size_t> sole_owner() const;
};

// The owner of the row of `id`, in the file or to come, among the `num_shards`
// owners of a table that is divided by ids. The function must not change: nodes
// and packages agree on owners by it.
size_t OwnerOfId(int64_t id, size_t num_shards);

// Ids whose rows are at one shard, of a table that is divided by ids. Every
// owner has the row of the first id besides its own rows: row 0 is the default
// row of unknown ids.
class OwnIds {
 public:
  // `first_id`: the id of row 0 of the whole table.
  OwnIds(const TableShards& shards, size_t shard, int64_t first_id)
      : sole_owner_(shards.sole_owner()),
        num_shards_(shards.ends.size()),
        shard_(shard),
        first_id_(first_id) {}
  bool Has(int64_t id) const {
    if (sole_owner_) return *sole_owner_ == shard_;
    return id == first_id_ || OwnerOfId(id, num_shards_) == shard_;
  }
  // Number of rows at the shard if the plan gives it `planned`.
  int64_t StoredRows(int64_t planned) const {
    const bool has_own_first =
        sole_owner_ || OwnerOfId(first_id_, num_shards_) == shard_;
    return planned + (has_own_first ? 0 : 1);
  }

 private:
  std::optional<size_t> sole_owner_;
  size_t num_shards_;
  size_t shard_;
  int64_t first_id_;
};

// Why a table cannot be divided over CPU nodes; empty: it can. A table can be
// divided if it is float32 [rows, dim], in any row format, and CN-pre reads it
// by look-ups of this table alone; `by_ids`: and if the graph says which row a
// look-up leaves out (its padding index), because packages need its id.
std::string WhyNotDivisible(const Graph& graph, const SplitPlan& plan,
                            absl::string_view table, bool by_ids);

// Checks SplitPlan::num_shards and SplitPlan::shards: every row of each table
// has one owner, and each table can be divided. InvalidArgument names the
// table.
absl::Status CheckShards(const Graph& graph, const SplitPlan& plan);

}  // namespace refract::models

#endif  // REFRACT_MODELS_REPOSITORY_TABLE_SHARDS_H_
