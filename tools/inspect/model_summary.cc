#include "tools/inspect/model_summary.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/graph/op_traits.h"
#include "models/tables/id_index.h"
#include "models/tables/new_ids.h"
#include "models/tables/table_memory.h"
#include "partitioner/report/graph_text.h"
#include "runtime/cpu/look_ups/row_overlay.h"

namespace refract::tools {
namespace {

using models::Graph;
using models::NodeId;
using models::SymbolBindings;
using models::SymExpr;
using models::Value;
using models::ValueId;
using models::ValueKind;
using partitioner::PerItem;
using partitioner::ShapeText;
using partitioner::TypeText;
using partitioner::Work;

// Two batches of usual size (MLPerf's mean is 270 items) between which the
// slope is taken; far from 0 and 1, where models may have special cases.
constexpr int64_t kBatch1 = 128;
constexpr int64_t kBatch2 = 256;

struct TwoSizes {
  SymbolBindings at_1;
  SymbolBindings at_2;
};

TensorSummary SummarizeTensor(const Value& value, std::string name,
                              const TwoSizes& sizes) {
  TensorSummary summary;
  summary.name = std::move(name);
  summary.dtype = TypeText(value);
  summary.shape = ShapeText(value);
  const std::optional<double> at_1 = partitioner::BytesOf(value, sizes.at_1);
  const std::optional<double> at_2 = partitioner::BytesOf(value, sizes.at_2);
  if (at_1 && at_2) {
    summary.bytes = partitioner::Slope(*at_1, *at_2, kBatch1, kBatch2);
  }
  return summary;
}

std::vector<TensorSummary> SummarizeValues(const Graph& graph,
                                           const std::vector<ValueId>& ids,
                                           const TwoSizes& sizes) {
  std::vector<TensorSummary> result;
  for (const ValueId id : ids) {
    const Value& value = graph.value(id);
    result.push_back(SummarizeTensor(value, value.name, sizes));
  }
  return result;
}

// Sums over the nodes that `wanted` takes.
template <typename Wanted>
WorkSummary SumWork(const Graph& graph, const TwoSizes& sizes, Wanted wanted) {
  WorkSummary summary;
  Work total_1;
  Work total_2;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!wanted(n)) continue;
    ++summary.operators;
    const std::optional<Work> at_1 =
        partitioner::WorkOf(graph, graph.nodes[n], sizes.at_1);
    const std::optional<Work> at_2 =
        partitioner::WorkOf(graph, graph.nodes[n], sizes.at_2);
    // An operator counts at both batch sizes or at neither: the slope would be
    // wrong otherwise.
    if (!at_1 || !at_2) {
      ++summary.not_counted;
      continue;
    }
    total_1 += *at_1;
    total_2 += *at_2;
  }
  summary.flops =
      partitioner::Slope(total_1.flops, total_2.flops, kBatch1, kBatch2);
  summary.bytes =
      partitioner::Slope(total_1.bytes, total_2.bytes, kBatch1, kBatch2);
  summary.weight_bytes = total_1.weight_bytes;
  return summary;
}

std::vector<OperatorCount> CountOperators(const Graph& graph) {
  std::map<std::string, OperatorCount> counts;
  for (const models::Node& node : graph.nodes) {
    OperatorCount& count = counts[node.op];
    count.op = node.op;
    count.op_class = std::string(models::Name(models::ClassOf(graph, node)));
    ++count.count;
  }
  std::vector<OperatorCount> result;
  for (auto& [op, count] : counts) result.push_back(std::move(count));
  std::stable_sort(
      result.begin(), result.end(),
      [](const auto& a, const auto& b) { return a.count > b.count; });
  return result;
}

// Where ids come and go, there are up to two rows for each of them.
uint64_t BytesOfNewId(const models::WeightStore& weights,
                      const std::string& table) {
  const auto rows = weights.GetAsStored(table);
  if (!rows.ok() || rows->sizes.empty() || rows->sizes[0] == 0) return 0;
  return 2 * (rows->bytes() / static_cast<uint64_t>(rows->sizes[0]) +
              runtime::cpu::RowOverlay::kMostBesideRow) +
         models::NewIds::kBytesPerId;
}

void SummarizeWeights(const models::LoadedModel& model,
                      const models::SplitPlan* plan, ModelSummary& summary) {
  const std::set<std::string> tables =
      models::TablesOf(model.graph, nullptr, /*whole=*/true);
  // With a plan, tables of the HN part need no memory on a CPU node.
  const std::set<std::string> of_cpu_node =
      models::TablesOf(model.graph, plan, /*whole=*/plan == nullptr);
  summary.cpu_node_table_bytes =
      models::BytesOfTables(model.weights->table(), of_cpu_node);
  for (const std::string& table : of_cpu_node) {
    const auto ids = model.weights->GetAsStored(models::NameOfIds(table));
    if (ids.ok()) {
      summary.id_index_bytes +=
          models::IdIndex::MemoryFor(ids->bytes() / sizeof(int64_t));
      summary.new_id_bytes += BytesOfNewId(*model.weights, table);
    }
  }
  for (const models::WeightEntry& entry : model.weights->table().entries) {
    int64_t elements = 1;
    for (const int64_t size : entry.sizes) elements *= size;
    // A row format counts its bytes in the file; other types count the bytes
    // of the elements, since a strided entry may cover more of the file.
    const uint64_t bytes = entry.rows ? entry.bytes
                                      : static_cast<uint64_t>(elements) *
                                            base::SizeOf(entry.dtype);
    if (!tables.contains(entry.name)) {
      summary.other_weight_bytes += bytes;
      continue;
    }
    TableSummary table;
    table.name = entry.name;
    table.rows = entry.sizes.empty() ? 0 : entry.sizes[0];
    table.dim = table.rows == 0 ? 0 : elements / table.rows;
    table.dtype = std::string(base::Name(entry.dtype));
    if (entry.rows) {
      table.format = std::string(models::NameOf(entry.rows->format));
      table.row_bytes = entry.rows->stride;
    }
    table.bytes = bytes;
    table.file = entry.file;
    summary.table_bytes += bytes;
    summary.tables.push_back(std::move(table));
  }
  std::stable_sort(
      summary.tables.begin(), summary.tables.end(),
      [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
}

std::string Assumption(const Graph& graph, const SymbolBindings& sizes) {
  std::vector<std::string> parts;
  for (const auto& [symbol, size] : sizes) {
    if (symbol == graph.batch_symbol) continue;
    // Sizes were made for a batch of kBatch1: a multiple of it is a number per
    // item.
    if (!graph.batch_symbol.empty() && size % kBatch1 == 0) {
      parts.push_back(absl::StrCat(symbol, " = ", size / kBatch1, " per item"));
    } else {
      parts.push_back(absl::StrCat(symbol, " = ", size));
    }
  }
  std::sort(parts.begin(), parts.end());
  return absl::StrJoin(parts, ", ");
}

std::vector<ShardSummary> SummarizeShards(const Graph& graph,
                                          const models::SplitPlan& plan) {
  std::vector<ShardSummary> result(plan.num_shards);
  for (const models::TableShards& shards : plan.shards) {
    const auto table = std::find_if(
        graph.values.begin(), graph.values.end(),
        [&](const Value& value) { return value.weight == shards.table; });
    if (table == graph.values.end()) continue;  // ValidatePlan() finds it
    const int64_t row_bytes =
        table->row_bytes > 0
            ? table->row_bytes
            : table->shape[1].constant().value_or(0) *
                  static_cast<int64_t>(base::SizeOf(table->dtype));
    for (size_t k = 0; k < result.size(); ++k) {
      const int64_t rows = shards.rows(k);
      result[k].bytes += static_cast<uint64_t>(rows * row_bytes);
      if (shards.by_ids) {
        result[k].bytes += models::IdIndex::MemoryFor(static_cast<size_t>(rows));
      }
      // One shard may own all rows of a table: the table is whole there, and
      // not divided.
      if (rows == shards.ends.back()) {
        ++result[k].whole_tables;
      } else if (rows > 0) {
        ++result[k].divided_tables;
      }
    }
  }
  return result;
}

PlanSummary SummarizePlan(const Graph& graph, const models::SplitPlan& plan,
                          const TwoSizes& sizes) {
  PlanSummary summary;
  summary.method = plan.method;
  summary.rows = plan.rows;
  summary.hn_rows = plan.hn_rows;
  summary.shards = SummarizeShards(graph, plan);
  for (int stage = 0; stage < 3; ++stage) {
    summary.stages[stage] = SumWork(graph, sizes, [&](size_t n) {
      return static_cast<int>(plan.stages[n]) == stage;
    });
  }
  summary.up = SummarizeValues(graph, plan.up, sizes);
  summary.down = SummarizeValues(graph, plan.down, sizes);
  return summary;
}

}  // namespace

ModelSummary Summarize(
    const models::LoadedModel& model, const models::SplitPlan* plan,
    const absl::flat_hash_map<std::string, int64_t>& per_item) {
  const Graph& graph = model.graph;
  const TwoSizes sizes = {partitioner::SizesForBatch(graph, kBatch1, per_item),
                          partitioner::SizesForBatch(graph, kBatch2, per_item)};
  ModelSummary summary;
  summary.name = model.name;
  summary.version = model.version;
  summary.digest = model.digest.ToHex();
  summary.source = graph.source == models::SourceFormat::kTorchExport
                       ? "torch.export"
                       : "TorchScript";
  summary.inputs = SummarizeValues(graph, graph.inputs, sizes);
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    summary.outputs.push_back(SummarizeTensor(graph.value(graph.outputs[i]),
                                              graph.output_names[i], sizes));
  }
  summary.batch_symbol = graph.batch_symbol;
  summary.min_batch = graph.min_batch;
  summary.rows = graph.rows;
  summary.operators = CountOperators(graph);
  for (const OperatorCount& count : summary.operators) {
    if (models::ClassOf(count.op) == models::OpClass::kUnknown) {
      summary.unknown_operators.push_back(count.op);
    }
  }
  SummarizeWeights(model, plan, summary);
  summary.work = SumWork(graph, sizes, [](size_t) { return true; });
  if (plan != nullptr) summary.plan = SummarizePlan(graph, *plan, sizes);
  summary.assumption = Assumption(graph, sizes.at_1);
  return summary;
}

}  // namespace refract::tools
