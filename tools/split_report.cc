#include "tools/split_report.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "models/op_traits.h"
#include "nlohmann/json.hpp"
#include "partitioner/split_problem.h"

namespace refract::tools {
namespace {

using models::Graph;
using nlohmann::ordered_json;
using partitioner::Alternative;
using partitioner::Objective;
using partitioner::OptimalSplit;
using partitioner::Prediction;

std::string Seconds(double seconds) {
  if (seconds == 0) return "0";
  if (seconds < 1e-3) return absl::StrFormat("%.4g us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.4g ms", seconds * 1e3);
  return absl::StrFormat("%.4g s", seconds);
}

std::string Bytes(double bytes) {
  if (bytes < 1024) return absl::StrFormat("%.0f B", bytes);
  if (bytes < 0x1p20) return absl::StrFormat("%.4g KiB", bytes / 0x1p10);
  return absl::StrFormat("%.4g MiB", bytes / 0x1p20);
}

std::string Cost(Objective objective, double cost) {
  return objective == Objective::kPrice ? absl::StrFormat("%.4g", cost)
                                        : Seconds(cost);
}

absl::string_view ObjectiveText(Objective objective) {
  switch (objective) {
    case Objective::kLatency:
      return "the latency of one request";
    case Objective::kThroughput:
      return "the time of the slowest of CN, link and HN per request";
    case Objective::kPrice:
      return "the price of one request";
  }
  return "";
}

std::vector<const Alternative*> AllOf(const OptimalSplit& split) {
  std::vector<const Alternative*> all = {&split.best};
  for (const Alternative& other : split.others) all.push_back(&other);
  return all;
}

// Columns wide enough for their widest cell, all but the first and the last to
// the right.
void PrintTable(const std::vector<std::vector<std::string>>& rows,
                std::ostream& out) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  for (const auto& row : rows) {
    out << " ";
    for (size_t c = 0; c < row.size(); ++c) {
      if (c + 1 == row.size()) {
        if (!row[c].empty()) out << "  " << row[c];
        break;
      }
      const int width = static_cast<int>(widths[c]);
      out << absl::StreamFormat(c == 0 ? " %-*s" : "  %*s", width, row[c]);
    }
    out << "\n";
  }
}

// The first few names, and how many more there are.
template <typename Id, typename NameOf>
std::string Names(const std::vector<Id>& ids, NameOf name_of) {
  constexpr size_t kShown = 5;
  std::vector<std::string> names;
  for (size_t i = 0; i < ids.size() && i < kShown; ++i) {
    names.push_back(name_of(ids[i]));
  }
  std::string text = absl::StrJoin(names, ", ");
  if (ids.size() > kShown) {
    absl::StrAppend(&text, " and ", ids.size() - kShown, " more");
  }
  return text;
}

ordered_json ToJson(const Alternative& alternative) {
  const Prediction& prediction = alternative.prediction;
  ordered_json stages = ordered_json::array();
  for (const models::Stage stage : alternative.plan.stages) {
    stages.push_back(static_cast<int>(stage));
  }
  ordered_json json = {
      {"method", alternative.plan.method},
      {"cost", alternative.cost},
      {"over_budget", alternative.over},
      {"latency_s", prediction.latency_s()},
      {"cn_pre_s", prediction.cn_pre_s},
      {"up_s", prediction.up_s},
      {"hn_s", prediction.hn_s},
      {"down_s", prediction.down_s},
      {"cn_post_s", prediction.cn_post_s},
      {"round_trip_s", prediction.round_trip_s},
      {"bytes_up", prediction.bytes_up},
      {"bytes_down", prediction.bytes_down},
      {"cn_memory_bytes", prediction.cn_memory_bytes},
      {"hn_memory_bytes", prediction.hn_memory_bytes},
      {"requests_per_s", prediction.requests_per_s},
  };
  json["price"] =
      prediction.price ? ordered_json(*prediction.price) : ordered_json();
  json["stages"] = std::move(stages);
  return json;
}

ordered_json ToJson(const partitioner::Hardware& hardware) {
  ordered_json json = {
      {"name", hardware.name},
      {"description", hardware.description},
      {"units", hardware.units},
      {"operator_s", hardware.operator_s},
      {"flops_per_s", hardware.flops_per_s},
      {"bytes_per_s", hardware.bytes_per_s},
      {"memory_bytes", hardware.memory_bytes},
  };
  json["row_s"] =
      hardware.row_s ? ordered_json(*hardware.row_s) : ordered_json();
  return json;
}

ordered_json ConditionsToJson(const SplitConditions& given) {
  const partitioner::Conditions& conditions = given.conditions;
  const partitioner::Budget& budget = given.goal.budget;
  const auto or_null = [](const std::optional<double>& value) {
    return value ? ordered_json(*value) : ordered_json();
  };
  ordered_json json = {
      {"batch", given.options.batch},
      {"sizes", std::map<std::string, int64_t>(conditions.sizes.begin(),
                                               conditions.sizes.end())},
      {"cn", ToJson(given.cn)},
      {"hn", ToJson(given.hn)},
      {"link",
       {{"bytes_per_s", conditions.link.bytes_per_s},
        {"latency_s", conditions.link.latency_s}}},
      {"cn_units_per_hn", conditions.cn_units_per_hn},
      {"budget",
       {{"cn_memory_bytes", or_null(budget.cn_memory_bytes)},
        {"hn_memory_bytes", or_null(budget.hn_memory_bytes)},
        {"bytes_per_request", or_null(budget.bytes_per_request)}}},
  };
  json["prices"] =
      conditions.prices
          ? ordered_json{{"cn_unit_s", conditions.prices->cn_unit_s},
                         {"hn_unit_s", conditions.prices->hn_unit_s},
                         {"byte", conditions.prices->byte}}
          : ordered_json();
  return json;
}

ordered_json NodesToJson(const Graph& graph,
                         const partitioner::Conditions& conditions) {
  const partitioner::SplitProblem problem(graph);
  ordered_json nodes = ordered_json::array();
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const models::Node& node = graph.nodes[n];
    ordered_json allowed = ordered_json::array();
    for (int stage = 0; stage < 3; ++stage) {
      if (problem.problem().allowed[n] >> stage & 1) allowed.push_back(stage);
    }
    ordered_json inputs = ordered_json::array();
    for (const models::ValueId id : models::InputsOf(node)) {
      inputs.push_back(graph.value(id).name);
    }
    nodes.push_back({{"name", node.name},
                     {"op", node.op},
                     {"class", models::Name(models::ClassOf(graph, node))},
                     {"allowed", std::move(allowed)},
                     {"cn_s", conditions.costs.cn_s[n]},
                     {"hn_s", conditions.costs.hn_s[n]},
                     {"inputs", std::move(inputs)}});
  }
  return nodes;
}

ordered_json ValuesToJson(const Graph& graph,
                          const partitioner::Conditions& conditions) {
  const partitioner::ValueSizes sizes =
      partitioner::SizesOf(graph, conditions.sizes);
  std::vector<bool> is_output(graph.values.size(), false);
  for (const models::ValueId id : graph.outputs) is_output[id] = true;
  ordered_json values = ordered_json::array();
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const models::Value& value = graph.values[id];
    ordered_json entry = {{"name", value.name},
                          {"bytes", sizes.bytes[id]},
                          {"is_weight", value.is_weight()},
                          {"is_output", static_cast<bool>(is_output[id])},
                          {"may_cross", models::MayCross(value)}};
    entry["producer"] = value.producer == models::kNoNode
                            ? ordered_json()
                            : ordered_json(graph.nodes[value.producer].name);
    values.push_back(std::move(entry));
  }
  return values;
}

}  // namespace

void PrintSplit(const Graph& graph, const SplitConditions& conditions,
                const OptimalSplit& split, std::ostream& out) {
  const Objective objective = conditions.goal.objective;
  out << "minimised: " << ObjectiveText(objective) << "; batch "
      << conditions.options.batch << ", CN " << conditions.cn.name << ", HN "
      << conditions.hn.name
      << absl::StreamFormat(", link %g Gbit/s + %g us one way",
                            conditions.options.link_gbps,
                            conditions.options.link_latency_us)
      << "\n";
  std::vector<std::vector<std::string>> rows = {
      {"plan", "latency", "CN-pre", "up", "HN", "down", "CN-post", "sent up",
       "sent down", "requests/s per GPU", ""}};
  for (const Alternative* alternative : AllOf(split)) {
    const Prediction& prediction = alternative->prediction;
    rows.push_back(
        {alternative->plan.method, Seconds(prediction.latency_s()),
         Seconds(prediction.cn_pre_s), Seconds(prediction.up_s),
         Seconds(prediction.hn_s), Seconds(prediction.down_s),
         Seconds(prediction.cn_post_s), Bytes(prediction.bytes_up),
         Bytes(prediction.bytes_down),
         absl::StrFormat("%.4g", prediction.requests_per_s),
         alternative->over.empty()
             ? ""
             : absl::StrCat("over the limit on ", alternative->over)});
  }
  // Latency and the slowest station have columns already.
  if (objective == Objective::kPrice) {
    rows[0].insert(rows[0].begin() + 1, "price");
    size_t row = 1;
    for (const Alternative* alternative : AllOf(split)) {
      rows[row].insert(rows[row].begin() + 1,
                       Cost(objective, alternative->cost));
      ++row;
    }
  }
  PrintTable(rows, out);
  if (split.proven) {
    out << "the plan is optimal for these costs, proven with " << split.cuts
        << (split.cuts == 1 ? " minimum cut\n" : " minimum cuts\n");
  } else {
    out << absl::StreamFormat(
        "stopped after %d minimum cuts: no plan costs less than %s, so this "
        "one is at most %.3g %% above the optimum\n",
        split.cuts, Cost(objective, split.lower_bound), 100 * split.gap());
  }
  if (!split.unknown_operators.empty()) {
    out << "operators of unknown work, taken for free but for their launch: "
        << Names(split.unknown_operators,
                 [&](models::NodeId id) {
                   return absl::StrCat(graph.nodes[id].name, " (",
                                       graph.nodes[id].op, ")");
                 })
        << "\n";
  }
  if (!split.unknown_sizes.empty()) {
    out << "values of unknown size, taken for as large as the largest known: "
        << Names(split.unknown_sizes,
                 [&](models::ValueId id) { return graph.value(id).name; })
        << "\n";
  }
}

std::string SplitToJson(const Graph& graph, const SplitConditions& conditions,
                        const OptimalSplit& split) {
  ordered_json alternatives = ordered_json::array();
  for (const Alternative* alternative : AllOf(split)) {
    alternatives.push_back(ToJson(*alternative));
  }
  ordered_json unknown_operators = ordered_json::array();
  for (const models::NodeId id : split.unknown_operators) {
    unknown_operators.push_back(graph.nodes[id].name);
  }
  ordered_json unknown_sizes = ordered_json::array();
  for (const models::ValueId id : split.unknown_sizes) {
    unknown_sizes.push_back(graph.value(id).name);
  }
  const ordered_json json = {
      {"objective", conditions.options.objective},
      {"cost", split.best.cost},
      {"lower_bound", split.lower_bound},
      {"gap", split.gap()},
      {"proven", split.proven},
      {"minimum_cuts", split.cuts},
      {"branches", split.branches},
      {"conditions", ConditionsToJson(conditions)},
      {"alternatives", std::move(alternatives)},
      {"nodes", NodesToJson(graph, conditions.conditions)},
      {"values", ValuesToJson(graph, conditions.conditions)},
      {"unknown_operators", std::move(unknown_operators)},
      {"unknown_sizes", std::move(unknown_sizes)},
  };
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace refract::tools
