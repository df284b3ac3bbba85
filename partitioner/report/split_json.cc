#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/graph/constants.h"
#include "models/graph/op_traits.h"
#include "nlohmann/json.hpp"
#include "partitioner/report/graph_text.h"
#include "partitioner/report/split_report.h"
#include "partitioner/split/split_problem.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::Value;
using models::ValueId;
using nlohmann::ordered_json;

absl::string_view Name(Station station) {
  switch (station) {
    case Station::kCn:
      return "cn";
    case Station::kLinkUp:
      return "link_up";
    case Station::kHn:
      return "hn";
    case Station::kLinkDown:
      return "link_down";
  }
  return "";
}

ordered_json OrNull(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

// In the order of "up" and "down": bytes and form of each.
ordered_json SentToJson(const std::vector<Prediction::Sent>& sent) {
  ordered_json list = ordered_json::array();
  for (const Prediction::Sent& one : sent) {
    ordered_json entry = {{"bytes", one.bytes}};
    if (!one.form.is_plain()) {
      entry["form"] = models::Name(one.form.type);
      entry["unique_rows"] = one.form.unique_rows;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

ordered_json ToJson(const Graph& graph, const Alternative& alternative) {
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
      {"cn_crossing_s", prediction.cn_crossing_s},
      {"hn_crossing_s", prediction.hn_crossing_s},
      {"bytes_up", prediction.bytes_up},
      {"bytes_down", prediction.bytes_down},
      {"message_bytes_up", prediction.message_bytes_up},
      {"message_bytes_down", prediction.message_bytes_down},
      {"front_end_s", prediction.front_end_s},
      {"cn_memory_bytes", prediction.cn_memory_bytes},
      {"hn_memory_bytes", prediction.hn_memory_bytes},
      {"requests_per_s", prediction.requests_per_s},
      {"slowest", Name(prediction.slowest)},
      {"link_requests_per_s", OrNull(prediction.link_requests_per_s)},
      {"price", OrNull(prediction.price)},
      {"up", NamesOf(graph, alternative.plan.up)},
      {"down", NamesOf(graph, alternative.plan.down)},
      {"sent_up", SentToJson(prediction.sent_up)},
      {"sent_down", SentToJson(prediction.sent_down)},
  };
  json["stages"] = std::move(stages);
  return json;
}

ordered_json ToJson(const Hardware& hardware) {
  ordered_json json = {
      {"name", hardware.name},
      {"description", hardware.description},
      {"units", hardware.units},
      {"operator_s", hardware.operator_s},
      {"flops_per_s", hardware.flops_per_s},
      {"bytes_per_s", hardware.bytes_per_s},
      {"memory_bytes", hardware.memory_bytes},
  };
  json["row_s"] = OrNull(hardware.row_s);
  return json;
}

ordered_json ConditionsToJson(const SplitConditions& given) {
  const Conditions& conditions = given.conditions;
  const Budget& budget = given.goal.budget;
  ordered_json json = {
      {"batch", given.options.batch},
      {"sizes", std::map<std::string, int64_t>(conditions.sizes.begin(),
                                               conditions.sizes.end())},
      {"cn", ToJson(given.cn)},
      {"hn", ToJson(given.hn)},
      {"link",
       {{"bytes_per_s", conditions.link.bytes_per_s},
        {"latency_s", conditions.link.latency_s},
        {"tensor_s", conditions.link.tensor_s}}},
      {"front_end",
       {{"request_s", conditions.front_end.request_s},
        {"tensor_s", conditions.front_end.tensor_s},
        {"input_byte_s", conditions.front_end.input_byte_s},
        {"output_byte_s", conditions.front_end.output_byte_s}}},
      {"cn_units_per_hn", conditions.cn_units_per_hn},
      {"cn_run_s", conditions.costs.cn_run_s},
      {"hn_run_s", conditions.costs.hn_run_s},
      {"hn_table_bytes", given.options.hn_table_mib * 0x1p20},
      {"budget",
       {{"cn_memory_bytes", OrNull(budget.cn_memory_bytes)},
        {"hn_memory_bytes", OrNull(budget.hn_memory_bytes)},
        {"bytes_per_request", OrNull(budget.bytes_per_request)},
        {"bytes_per_message", OrNull(budget.bytes_per_message)},
        {"tensors_per_message", OrNull(budget.tensors_per_message)}}},
  };
  json["notes"] = given.notes;
  json["prices"] =
      conditions.prices
          ? ordered_json{{"cn_unit_s", conditions.prices->cn_unit_s},
                         {"hn_unit_s", conditions.prices->hn_unit_s},
                         {"byte", conditions.prices->byte}}
          : ordered_json();
  return json;
}

ordered_json NodesToJson(const Graph& graph, const Conditions& conditions) {
  // The rules of the search, with the look-ups that may move to the HN.
  const SplitProblem problem(graph, conditions.hn_look_ups);
  ordered_json nodes = ordered_json::array();
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const models::Node& node = graph.nodes[n];
    ordered_json allowed = ordered_json::array();
    // The stages that legal plans may choose for this operator.
    for (int stage = 0; stage < 3; ++stage) {
      if (problem.problem().allowed[n] >> stage & 1) allowed.push_back(stage);
    }
    ordered_json inputs = ordered_json::array();
    for (const ValueId id : models::InputsOf(node)) {
      inputs.push_back(graph.value(id).name);
    }
    ordered_json outputs = ordered_json::array();
    for (const ValueId id : node.outputs) {
      if (id != models::kNoValue) outputs.push_back(graph.value(id).name);
    }
    nodes.push_back({{"name", node.name},
                     {"op", node.op},
                     {"class", models::Name(models::ClassOf(graph, node))},
                     {"allowed", std::move(allowed)},
                     {"cn_s", conditions.costs.cn_s[n]},
                     {"hn_s", conditions.costs.hn_s[n]},
                     {"inputs", std::move(inputs)},
                     {"outputs", std::move(outputs)}});
  }
  return nodes;
}

ordered_json ValuesToJson(const Graph& graph, const Conditions& conditions) {
  const ValueSizes sizes = SizesOf(graph, conditions.sizes);
  std::vector<bool> is_output(graph.values.size(), false);
  for (const ValueId id : graph.outputs) is_output[id] = true;
  const std::vector<bool> constant = models::ConstantNodes(graph);
  ordered_json values = ordered_json::array();
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    ordered_json entry = {{"name", value.name},
                          {"dtype", TypeText(value)},
                          {"shape", ShapeText(value)},
                          {"bytes", sizes.bytes[id]},
                          {"is_weight", value.is_weight()},
                          {"is_output", static_cast<bool>(is_output[id])},
                          {"may_cross", models::MayCross(value)},
                          // Computed where it is read, never sent.
                          {"is_constant", value.producer != models::kNoNode &&
                                              constant[value.producer]}};
    // The time that a cut here costs, as CrossingOf() charges it: half of the
    // extra on the CN and half of that on the HN. Left out for values that lie
    // between steps, where it is 0.
    const auto of_cut = [id](const std::vector<double>& cut_s) {
      return cut_s.empty() ? 0 : cut_s[id] / 2;
    };
    const double cut_s =
        of_cut(conditions.costs.cn_cut_s) + of_cut(conditions.costs.hn_cut_s);
    if (cut_s > 0) entry["cut_s"] = cut_s;
    entry["producer"] = value.producer == models::kNoNode
                            ? ordered_json()
                            : ordered_json(graph.nodes[value.producer].name);
    values.push_back(std::move(entry));
  }
  return values;
}

ordered_json ToJson(const Graph& graph, const ForcedCut& cut) {
  ordered_json json = {
      {"value", graph.value(cut.value).name},
      {"direction", cut.up ? "up" : "down"},
      {"crosses", cut.crosses},
      {"alike", cut.alike},
      {"lower_bound", cut.lower_bound},
      {"gap", cut.gap()},
      {"proven", cut.proven},
  };
  // A forced cut has the fields of an alternative besides its own.
  json.update(ToJson(graph, cut.best));
  return json;
}

}  // namespace

std::vector<const Alternative*> AlternativesOf(const OptimalSplit& split) {
  std::vector<const Alternative*> all = {&split.best};
  for (const Alternative& other : split.others) all.push_back(&other);
  return all;
}

ordered_json SplitToJson(const Graph& graph, const SplitReport& report) {
  const OptimalSplit& split = report.split;
  const Conditions& conditions = report.conditions.conditions;
  ordered_json alternatives = ordered_json::array();
  for (const Alternative* alternative : AlternativesOf(split)) {
    alternatives.push_back(ToJson(graph, *alternative));
  }
  ordered_json forced_cuts = ordered_json::array();
  for (const ForcedCut& cut : report.forced_cuts) {
    forced_cuts.push_back(ToJson(graph, cut));
  }
  ordered_json unknown_operators = ordered_json::array();
  for (const models::NodeId id : split.unknown_operators) {
    unknown_operators.push_back(graph.nodes[id].name);
  }
  ordered_json json = {
      {"objective", report.conditions.options.objective},
      {"chosen", report.chosen},
      {"written", report.written},
      {"rows", RowsText(report.rows)},
      {"hn_rows", RowsText(report.hn_rows)},
      {"cost", split.best.cost},
      {"lower_bound", split.lower_bound},
      {"gap", split.gap()},
      {"proven", split.proven},
      {"minimum_cuts", split.cuts},
      {"branches", split.branches},
      {"conditions", ConditionsToJson(report.conditions)},
      {"alternatives", std::move(alternatives)},
      {"forced_cuts", std::move(forced_cuts)},
      {"nodes", NodesToJson(graph, conditions)},
      {"values", ValuesToJson(graph, conditions)},
      {"unknown_operators", std::move(unknown_operators)},
      {"unknown_sizes", NamesOf(graph, split.unknown_sizes)},
  };
  if (report.verification) {
    json["verification"] = VerificationToJson(graph, *report.verification,
                                              *report.conditions.calibration);
  }
  return json;
}

}  // namespace refract::partitioner
