#include "partitioner/shards/divide_tables.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "models/tables/id_index.h"

namespace refract::partitioner {
namespace {

// Divides a table by its ids, where DivideTables() has divided it by rows.
absl::Status DivideByIds(const models::WeightStore& weights,
                         models::TableShards& shards) {
  REFRACT_ASSIGN_OR_RETURN(const auto ids,
                           models::IdsOf(weights, shards.table));
  // `ends` are running sums of rows per shard. Ids are hashed over the shards,
  // so the numbers of rows follow from counting; a table with one owner needs
  // no count.
  shards.by_ids = ids.has_value();
  if (!shards.by_ids || shards.sole_owner()) return absl::OkStatus();
  std::vector<int64_t> rows(shards.ends.size(), 0);
  for (const int64_t id : *ids) ++rows[models::OwnerOfId(id, rows.size())];
  std::partial_sum(rows.begin(), rows.end(), shards.ends.begin());
  return absl::OkStatus();
}

}  // namespace

std::vector<models::TableShards> DivideTables(
    absl::Span<const TableSize> tables, size_t num_shards) {
  const auto count = static_cast<int64_t>(num_shards);
  int64_t total = 0;
  for (const TableSize& table : tables) total += table.bytes();
  std::vector<models::TableShards> result(tables.size());
  std::vector<int64_t> load(num_shards, 0);
  // Largest first, for the bound of list scheduling.
  std::vector<size_t> order(tables.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tables[a].bytes() > tables[b].bytes();
  });
  for (const size_t t : order) {
    const TableSize& table = tables[t];
    models::TableShards& shards = result[t];
    shards.table = table.table;
    // Shard k owns the rows from ends[k − 1] (0 for the first) up to ends[k].
    shards.ends.resize(num_shards);
    if (table.bytes() > total / count) {
      for (int64_t k = 0; k < count; ++k) {
        // rows × (k + 1) / count without overflow.
        shards.ends[static_cast<size_t>(k)] =
            table.rows / count * (k + 1) + table.rows % count * (k + 1) / count;
      }
    } else {
      const auto least = std::min_element(load.begin(), load.end());
      const auto owner = static_cast<size_t>(least - load.begin());
      for (size_t k = 0; k < num_shards; ++k) {
        // All rows lie between ends[owner − 1] = 0 and ends[owner].
        shards.ends[k] = k < owner ? 0 : table.rows;
      }
    }
    for (size_t k = 0; k < num_shards; ++k) {
      load[k] += shards.rows(k) * table.row_bytes;
    }
  }
  return result;
}

absl::Status DivideTables(const models::Graph& graph,
                          const models::WeightStore& weights,
                          size_t num_shards, int64_t least_bytes,
                          models::SplitPlan& plan) {
  if (num_shards < 2 || num_shards > models::kMaxShards) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--shards ", num_shards, ": must be from 2 to ", models::kMaxShards));
  }
  std::vector<TableSize> tables;
  TableSize largest;
  std::string why = "the model has no table of fixed size";
  // Several values may stand for one weight, which is divided once.
  std::set<absl::string_view> seen;
  for (const models::Value& value : graph.values) {
    if (!value.is_weight() || !seen.insert(value.weight).second) continue;
    if (!value.has_shape || value.shape.size() != 2) continue;
    TableSize size;
    size.table = value.weight;
    size.rows = value.shape[0].constant().value_or(0);
    size.row_bytes =
        value.row_bytes > 0
            ? value.row_bytes
            : value.shape[1].constant().value_or(0) *
                  static_cast<int64_t>(base::SizeOf(value.dtype));
    REFRACT_ASSIGN_OR_RETURN(const auto ids,
                             models::IdsOf(weights, size.table));
    // The reason why this weight stays whole. The error names the largest such
    // weight, because it is most likely the table that the user meant.
    std::string obstacle =
        models::WhyNotDivisible(graph, plan, size.table, ids.has_value());
    if (obstacle.empty() && size.bytes() < least_bytes) {
      obstacle = absl::StrCat("it has ", size.bytes(), " bytes, and tables of ",
                              "fewer than ", least_bytes,
                              " stay whole (--shard-tables-from)");
    }
    if (obstacle.empty()) {
      tables.push_back(std::move(size));
    } else if (size.bytes() > largest.bytes()) {
      largest = std::move(size);
      why = absl::StrCat("the largest weight is '", largest.table,
                         "': ", obstacle);
    }
  }
  if (tables.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--shards ", num_shards, ": no table to divide; ", why));
  }
  plan.num_shards = num_shards;
  plan.shards = DivideTables(tables, num_shards);
  for (models::TableShards& shards : plan.shards) {
    REFRACT_RETURN_IF_ERROR(DivideByIds(weights, shards));
  }
  return absl::OkStatus();
}

}  // namespace refract::partitioner
