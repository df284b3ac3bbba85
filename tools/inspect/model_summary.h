#ifndef REFRACT_TOOLS_INSPECT_MODEL_SUMMARY_H_
#define REFRACT_TOOLS_INSPECT_MODEL_SUMMARY_H_

// Facts about a model that `refract inspect` and `refract partition` print:
// plain structs, then text or JSON made from them.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "models/graph/graph.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"
#include "partitioner/costs/work.h"

namespace refract::tools {

struct TensorSummary {
  std::string name;
  std::string dtype;  // "int64 size" for a size that travels as a number
  std::string shape;  // "[s0, 13]"; "?" when unknown
  // Bytes at the assumed sizes; absent when unknown.
  std::optional<partitioner::PerItem> bytes;
};

struct OperatorCount {
  std::string op;
  std::string op_class;
  int count = 0;
};

struct TableSummary {
  std::string name;
  int64_t rows = 0;
  int64_t dim = 0;  // elements per row
  std::string dtype;
  // Of a table in a row format: "tbe-int8" and bytes of a row.
  std::string format;
  int64_t row_bytes = 0;
  uint64_t bytes = 0;  // in the file
  std::string file;
};

struct WorkSummary {
  int operators = 0;
  partitioner::PerItem flops;
  partitioner::PerItem bytes;
  double weight_bytes = 0;  // read in full by each request
  int not_counted = 0;      // operators whose shapes or arithmetic are unknown
};

// A CPU node of a shard group.
struct ShardSummary {
  uint64_t bytes = 0;       // of its rows of divided tables
  int whole_tables = 0;     // that it alone has
  int divided_tables = 0;   // of which it has some rows
};

struct PlanSummary {
  std::string method;
  WorkSummary stages[3];  // CN-pre, HN, CN-post
  std::vector<TensorSummary> up;
  std::vector<TensorSummary> down;
  models::RowDependence rows;     // of the whole model
  models::RowDependence hn_rows;  // of the HN part
  // Empty: each CPU node has all tables.
  std::vector<ShardSummary> shards;
};

struct ModelSummary {
  std::string name;
  int64_t version = 0;
  std::string digest;
  std::string source;  // "torch.export" or "TorchScript"
  std::vector<TensorSummary> inputs;
  std::vector<TensorSummary> outputs;
  std::string batch_symbol;
  int64_t min_batch = 1;
  models::RowDependence rows;
  std::vector<OperatorCount> operators;  // most frequent first
  std::vector<std::string> unknown_operators;
  std::vector<TableSummary> tables;  // largest first
  uint64_t table_bytes = 0;
  // Of these, bytes that look-ups of the CPU node read: address space with
  // `--table-memory map`, memory with `load`.
  uint64_t cpu_node_table_bytes = 0;
  uint64_t id_index_bytes = 0;  // memory of the indexes of their ids
  // Memory of one more id in each table with ids (--deltas-new-ids), at most
  // where a delta replaces few of these.
  uint64_t new_id_bytes = 0;
  uint64_t other_weight_bytes = 0;
  WorkSummary work;
  std::optional<PlanSummary> plan;
  // How the numbers per item were got: "id_n = 1 per item, …".
  std::string assumption;
};

// `per_item` as partitioner::SizesForBatch. `plan` may be a plan that is not
// stored yet; nullptr: none.
ModelSummary Summarize(
    const models::LoadedModel& model, const models::SplitPlan* plan,
    const absl::flat_hash_map<std::string, int64_t>& per_item);

void PrintSummary(const ModelSummary& summary, std::ostream& out);
// Of many crossing tensors only the largest; ToJson has them all.
void PrintPlan(const PlanSummary& plan, std::ostream& out);
// The same facts under the names of the fields above. Ends with a newline.
std::string ToJson(const ModelSummary& summary);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_INSPECT_MODEL_SUMMARY_H_
