#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/html_page.h"
#include "base/json.h"
#include "nlohmann/json.hpp"
#include "partitioner/report/graph_layout.h"
#include "partitioner/report/page_files.h"
#include "partitioner/report/split_report.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::kNoNode;
using models::NodeId;
using models::SplitPlan;
using models::Stage;
using models::ValueId;
using nlohmann::ordered_json;

// From left to right.
enum Band : int { kPre = 0, kUp = 1, kHn = 2, kDown = 3, kPost = 4 };

int BandOf(Stage stage) {
  switch (stage) {
    case Stage::kCnPre:
      return kPre;
    case Stage::kHn:
      return kHn;
    case Stage::kCnPost:
      return kPost;
  }
  return kPre;
}

// Inputs of the request that an operator reads or that are outputs, in id
// order.
std::vector<ValueId> DrawnInputs(const Graph& graph) {
  const std::vector<std::vector<NodeId>> users = models::UsersOf(graph);
  std::vector<ValueId> result;
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const models::Value& value = graph.values[id];
    if (value.producer == kNoNode && !value.is_weight() && !users[id].empty()) {
      result.push_back(static_cast<ValueId>(id));
    }
  }
  return result;
}

// Drawn are, in this order: DrawnInputs(), the graph's nodes, one gate for each
// of plan.up and plan.down, which stands on the border where the value crosses.
// graph.js relies on the order.
std::vector<DrawnNode> Drawing(const Graph& graph, const SplitPlan& plan) {
  const std::vector<ValueId> inputs = DrawnInputs(graph);
  const int first_node = static_cast<int>(inputs.size());
  const int first_gate = first_node + static_cast<int>(graph.nodes.size());
  constexpr int kNotDrawn = -1;
  std::vector<int> maker(graph.values.size(), kNotDrawn);
  for (size_t i = 0; i < inputs.size(); ++i) {
    maker[inputs[i]] = static_cast<int>(i);
  }
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const NodeId producer = graph.values[id].producer;
    if (producer != kNoNode) maker[id] = first_node + producer;
  }
  std::map<ValueId, int> up_gate;
  std::map<ValueId, int> down_gate;
  int next_gate = first_gate;
  for (const ValueId id : plan.up) up_gate[id] = next_gate++;
  for (const ValueId id : plan.down) down_gate[id] = next_gate++;
  // Constants go from one stage to another without a gate: they do not cross
  // but are computed where they are read.
  const auto gate_or_maker = [&](const std::map<ValueId, int>& gates,
                                 ValueId id) {
    const auto gate = gates.find(id);
    return gate == gates.end() ? maker[id] : gate->second;
  };

  std::vector<DrawnNode> drawn(next_gate);
  const auto stage_of_maker = [&](ValueId id) {
    const NodeId producer = graph.values[id].producer;
    return producer == kNoNode ? Stage::kCnPre : plan.stages[producer];
  };
  for (const auto& [id, gate] : up_gate) {
    drawn[gate].band = kUp;
    if (maker[id] != kNotDrawn) drawn[gate].after.push_back(maker[id]);
  }
  for (const auto& [id, gate] : down_gate) {
    drawn[gate].band = kDown;
    if (maker[id] != kNotDrawn) drawn[gate].after.push_back(maker[id]);
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    DrawnNode& node = drawn[first_node + n];
    node.band = BandOf(plan.stages[n]);
    for (const ValueId id : models::InputsOf(graph.nodes[n])) {
      if (maker[id] == kNotDrawn) continue;
      const Stage made = stage_of_maker(id);
      int from = maker[id];
      if (plan.stages[n] == Stage::kHn && made == Stage::kCnPre) {
        from = gate_or_maker(up_gate, id);
      } else if (plan.stages[n] == Stage::kCnPost && made == Stage::kHn) {
        from = gate_or_maker(down_gate, id);
      }
      node.after.push_back(from);
    }
  }
  return drawn;
}

// Column and row × 10 of every drawn node, in the order of Drawing().
ordered_json PlacesToJson(const Graph& graph, const SplitPlan& plan) {
  ordered_json places = ordered_json::array();
  for (const Place& place : LayOut(Drawing(graph, plan))) {
    places.push_back(place.column);
    places.push_back(std::llround(10 * place.row));
  }
  return places;
}

// One drawing per plan of the JSON: alternatives, then forced cuts. Equal plans
// share one.
ordered_json DrawingsToJson(const Graph& graph, const SplitReport& report) {
  std::vector<const SplitPlan*> plans;
  for (const Alternative* alternative : AlternativesOf(report.split)) {
    plans.push_back(&alternative->plan);
  }
  for (const ForcedCut& cut : report.forced_cuts) {
    plans.push_back(&cut.best.plan);
  }
  std::map<std::vector<Stage>, size_t> known;
  ordered_json places = ordered_json::array();
  ordered_json of_plan = ordered_json::array();
  for (const SplitPlan* plan : plans) {
    const auto [at, is_new] = known.emplace(plan->stages, places.size());
    if (is_new) places.push_back(PlacesToJson(graph, *plan));
    of_plan.push_back(at->second);
  }
  ordered_json inputs = ordered_json::array();
  for (const ValueId id : DrawnInputs(graph)) {
    inputs.push_back(graph.value(id).name);
  }
  return {{"inputs", std::move(inputs)},
          {"places", std::move(places)},
          {"of_plan", std::move(of_plan)}};
}

}  // namespace

std::string SplitToHtml(const models::LoadedModel& model,
                        const models::SplitPlan& chosen,
                        const SplitReport& report) {
  ordered_json data = {
      {"model",
       {{"name", model.name},
        {"version", model.version},
        {"digest", model.digest.ToHex()}}},
      {"partition", SplitToJson(model.graph, report)},
      {"drawing", DrawingsToJson(model.graph, report)},
  };
  data["wire"] = report.wire ? WireToJson(model.graph, chosen, *report.wire)
                             : ordered_json();
  return base::FillPage(SplitPageFiles(), base::FormatJson(data));
}

}  // namespace refract::partitioner
