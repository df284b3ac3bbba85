#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "models/rows/row_dependence.h"
#include "nlohmann/json.hpp"
#include "partitioner/report/graph_text.h"
#include "tools/inspect/model_summary.h"

namespace refract::tools {
namespace {

using nlohmann::ordered_json;
using partitioner::BytesText;
using partitioner::PerItem;
using partitioner::RowsText;

// "1.23 M"; FLOPs by thousands, as they are usually quoted.
std::string CountText(double count) {
  const char* const units[] = {"", " k", " M", " G", " T"};
  int unit = 0;
  while (std::abs(count) >= 1000 && unit < 4) {
    count /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.4g%s", count, units[unit]);
}

std::string PerItemBytesText(const std::optional<PerItem>& bytes) {
  if (!bytes) return "size unknown";
  std::string text = absl::StrCat(BytesText(bytes->per_item), " per item");
  // Below half a byte a part is rounding of the slope.
  if (std::abs(bytes->per_request) < 0.5) return text;
  if (std::abs(bytes->per_item) < 0.5) {
    return absl::StrCat(BytesText(bytes->per_request), " per request");
  }
  return absl::StrCat(text, " + ", BytesText(bytes->per_request),
                      " per request");
}

void PrintTensors(absl::string_view title,
                  const std::vector<TensorSummary>& tensors,
                  std::ostream& out) {
  size_t width = 0;
  for (const TensorSummary& tensor : tensors) {
    width = std::max(width, tensor.name.size());
  }
  out << title << "\n";
  for (const TensorSummary& tensor : tensors) {
    out << absl::StreamFormat("  %-*s  %-8s %s  %s\n", static_cast<int>(width),
                              tensor.name, tensor.dtype, tensor.shape,
                              PerItemBytesText(tensor.bytes));
  }
}

// A model of a thousand features has a thousand tensors that cross; the first
// screen shows the largest.
constexpr size_t kShownCrossings = 10;

// Prints the tensors that grow fastest with the batch, and the number and bytes
// of the omitted tensors.
void PrintCrossings(absl::string_view title,
                    const std::vector<TensorSummary>& tensors,
                    std::ostream& out) {
  // Omitting a single tensor saves no line: a line would count the omitted
  // tensors.
  if (tensors.size() <= kShownCrossings + 1) {
    return PrintTensors(title, tensors, out);
  }
  std::vector<TensorSummary> sorted = tensors;
  // Unknown sizes first: they may be the largest.
  const auto order = [](const TensorSummary& tensor) {
    const PerItem bytes = tensor.bytes.value_or(PerItem());
    return std::tuple(!tensor.bytes, bytes.per_item, bytes.per_request);
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const TensorSummary& a, const TensorSummary& b) {
                     return order(a) > order(b);
                   });
  PerItem total;
  size_t unknown = 0;
  for (const TensorSummary& tensor : tensors) {
    const PerItem bytes = tensor.bytes.value_or(PerItem());
    total.per_item += bytes.per_item;
    total.per_request += bytes.per_request;
    if (!tensor.bytes) ++unknown;
  }
  // The total is over all tensors, not only the omitted ones: it can be
  // compared with the bytes of a request.
  sorted.resize(kShownCrossings);
  PrintTensors(title, sorted, out);
  out << "  ... " << tensors.size() - kShownCrossings << " more, "
      << PerItemBytesText(total) << " in all " << tensors.size();
  if (unknown > 0) out << " (" << unknown << " of unknown size not counted)";
  out << "\n";
}

void PrintWork(const WorkSummary& work, std::ostream& out) {
  out << CountText(work.flops.per_item) << " FLOP and "
      << BytesText(work.bytes.per_item) << " per item, "
      << BytesText(work.weight_bytes) << " of weights per request";
  if (work.not_counted > 0) {
    out << " (" << work.not_counted << " operators not counted)";
  }
  out << "\n";
}

ordered_json ToJson(const PerItem& value) {
  return {{"per_item", value.per_item}, {"per_request", value.per_request}};
}

ordered_json ToJson(const std::vector<TensorSummary>& tensors) {
  ordered_json list = ordered_json::array();
  for (const TensorSummary& tensor : tensors) {
    ordered_json entry = {{"name", tensor.name},
                          {"dtype", tensor.dtype},
                          {"shape", tensor.shape}};
    entry["bytes"] = tensor.bytes ? ToJson(*tensor.bytes) : ordered_json();
    list.push_back(std::move(entry));
  }
  return list;
}

ordered_json ToJson(const WorkSummary& work) {
  return {{"operators", work.operators},
          {"flops", ToJson(work.flops)},
          {"bytes", ToJson(work.bytes)},
          {"weight_bytes_per_request", work.weight_bytes},
          {"operators_not_counted", work.not_counted}};
}

ordered_json ToJson(const models::RowDependence& rows) {
  return {{"use", Name(rows.use)},
          {"may_split", rows.may_split},
          {"may_coalesce", rows.may_coalesce},
          {"node", rows.node},
          {"why", rows.why}};
}

ordered_json ToJson(const std::vector<ShardSummary>& shards) {
  ordered_json list = ordered_json::array();
  for (const ShardSummary& shard : shards) {
    list.push_back({{"bytes", shard.bytes},
                    {"whole_tables", shard.whole_tables},
                    {"divided_tables", shard.divided_tables}});
  }
  return list;
}

ordered_json ToJson(const PlanSummary& plan) {
  return {{"method", plan.method},        {"cn_pre", ToJson(plan.stages[0])},
          {"hn", ToJson(plan.stages[1])}, {"cn_post", ToJson(plan.stages[2])},
          {"up", ToJson(plan.up)},        {"down", ToJson(plan.down)},
          {"rows", ToJson(plan.rows)},    {"hn_rows", ToJson(plan.hn_rows)},
          {"shards", ToJson(plan.shards)}};
}

}  // namespace

void PrintPlan(const PlanSummary& plan, std::ostream& out) {
  const char* const names[] = {"CN-pre ", "HN     ", "CN-post"};
  out << "split plan: " << plan.method << "\n";
  for (int stage = 0; stage < 3; ++stage) {
    const WorkSummary& work = plan.stages[stage];
    out << absl::StreamFormat("  %s %5d operators", names[stage],
                              work.operators);
    if (work.operators == 0) {
      out << "\n";
      continue;
    }
    out << ", ";
    PrintWork(work, out);
  }
  for (size_t k = 0; k < plan.shards.size(); ++k) {
    const ShardSummary& shard = plan.shards[k];
    out << absl::StreamFormat(
        "  shard %d of %d: %s of tables, %d whole and rows of %d\n", k,
        plan.shards.size(), BytesText(static_cast<double>(shard.bytes)),
        shard.whole_tables, shard.divided_tables);
  }
  if (plan.up.empty() && plan.down.empty()) {
    out << "nothing crosses: the whole model runs on the CN\n";
    return;
  }
  PrintCrossings("crossing CN to HN", plan.up, out);
  PrintCrossings("crossing HN to CN", plan.down, out);
  out << "rows on the HN: " << RowsText(plan.hn_rows) << "\n";
}

void PrintSummary(const ModelSummary& summary, std::ostream& out) {
  out << "model " << summary.name << ", version " << summary.version << ", "
      << summary.source << ", digest " << summary.digest << "\n";
  if (summary.batch_symbol.empty()) {
    out << "no batch dimension\n";
  } else {
    out << "batch " << summary.batch_symbol << ", from " << summary.min_batch
        << " up\n";
  }
  out << "rows: " << RowsText(summary.rows) << "\n";
  PrintTensors("inputs", summary.inputs, out);
  PrintTensors("outputs", summary.outputs, out);

  out << "operators\n";
  for (const OperatorCount& count : summary.operators) {
    out << absl::StreamFormat("  %5d  %-48s %s\n", count.count, count.op,
                              count.op_class);
  }
  out << "unknown operators: "
      << (summary.unknown_operators.empty()
              ? "none"
              : absl::StrJoin(summary.unknown_operators, ", "))
      << "\n";

  size_t width = 0;
  for (const TableSummary& table : summary.tables) {
    width = std::max(width, table.name.size());
  }
  out << "tables: " << summary.tables.size() << ", "
      << BytesText(static_cast<double>(summary.table_bytes))
      << "; other weights "
      << BytesText(static_cast<double>(summary.other_weight_bytes)) << "\n";
  for (const TableSummary& table : summary.tables) {
    out << absl::StreamFormat(
        "  %-*s  %d rows x %d %s = %s  %s\n", static_cast<int>(width),
        table.name, table.rows, table.dim,
        table.format.empty()
            ? table.dtype
            : absl::StrCat(table.format, " (", table.row_bytes, " bytes)"),
        BytesText(static_cast<double>(table.bytes)), table.file);
  }
  out << "table memory of a CPU node: map "
      << BytesText(static_cast<double>(summary.cpu_node_table_bytes))
      << " of page cache, load "
      << BytesText(static_cast<double>(summary.cpu_node_table_bytes))
      << " of memory, disk its --row-cache-mib";
  if (summary.id_index_bytes > 0) {
    out << "; and " << BytesText(static_cast<double>(summary.id_index_bytes))
        << " for ids (each id that deltas add: up to " << summary.new_id_bytes
        << " bytes)";
  }
  out << "\n";
  out << "work: ";
  PrintWork(summary.work, out);
  if (!summary.assumption.empty()) {
    out << "  at " << summary.assumption << " (--size changes it)\n";
  }
  if (summary.plan) {
    PrintPlan(*summary.plan, out);
  } else {
    out << "split plan: none yet (refract partition makes one)\n";
  }
}

std::string ToJson(const ModelSummary& summary) {
  ordered_json operators = ordered_json::array();
  for (const OperatorCount& count : summary.operators) {
    operators.push_back(
        {{"op", count.op}, {"class", count.op_class}, {"count", count.count}});
  }
  ordered_json tables = ordered_json::array();
  for (const TableSummary& table : summary.tables) {
    tables.push_back({{"name", table.name},
                      {"rows", table.rows},
                      {"dim", table.dim},
                      {"dtype", table.dtype},
                      {"format", table.format},
                      {"row_bytes", table.row_bytes},
                      {"bytes", table.bytes},
                      {"file", table.file}});
  }
  ordered_json json = {
      {"name", summary.name},
      {"version", summary.version},
      {"digest", summary.digest},
      {"source", summary.source},
      {"batch_symbol", summary.batch_symbol},
      {"min_batch", summary.min_batch},
      {"rows", ToJson(summary.rows)},
      {"inputs", ToJson(summary.inputs)},
      {"outputs", ToJson(summary.outputs)},
      {"operators", std::move(operators)},
      {"unknown_operators", summary.unknown_operators},
      {"tables", std::move(tables)},
      {"table_bytes", summary.table_bytes},
      {"table_memory",
       {{"map", {{"page_cache_bytes", summary.cpu_node_table_bytes}}},
        {"load", {{"memory_bytes", summary.cpu_node_table_bytes}}},
        {"id_index_bytes", summary.id_index_bytes},
        {"new_id_bytes", summary.new_id_bytes}}},
      {"other_weight_bytes", summary.other_weight_bytes},
      {"work", ToJson(summary.work)},
      {"assumption", summary.assumption},
  };
  json["plan"] = summary.plan ? ToJson(*summary.plan) : ordered_json();
  // Names come out of users' files: bytes that are no UTF-8 are replaced.
  return base::FormatJson(json, 2) + "\n";
}

}  // namespace refract::tools
