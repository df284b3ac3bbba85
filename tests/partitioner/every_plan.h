#ifndef REFRACT_TESTS_PARTITIONER_EVERY_PLAN_H_
#define REFRACT_TESTS_PARTITIONER_EVERY_PLAN_H_

// All legal plans of a small graph, and their costs by definition: the oracle
// of tests that look for the best plan.

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <variant>

#include "models/graph/graph.h"
#include "models/repository/split_plan.h"
#include "partitioner/costs/conditions.h"
#include "tests/partitioner/plan_oracle.h"

namespace refract::partitioner {

inline constexpr base::Digest kModel = {.low = 1, .high = 2};

// Calls `visit` with every legal plan of `graph`, for kModel, by the oracle.
inline void ForEachPlan(
    const models::Graph& graph,
    const std::function<void(const models::SplitPlan&)>& visit,
    bool look_ups_on_hn = false) {
  const PlanOracle oracle(graph, look_ups_on_hn);
  models::SplitPlan plan;
  plan.model = kModel;
  plan.stages.assign(graph.nodes.size(), models::Stage::kCnPre);
  while (true) {
    plan.up = oracle.Up(plan);
    plan.down = oracle.Down(plan);
    if (oracle.Check(plan).empty()) visit(plan);
    size_t n = 0;
    while (n < plan.stages.size() && plan.stages[n] == models::Stage::kCnPost) {
      plan.stages[n++] = models::Stage::kCnPre;
    }
    if (n == plan.stages.size()) return;
    plan.stages[n] =
        static_cast<models::Stage>(static_cast<int>(plan.stages[n]) + 1);
  }
}

// Bytes, seconds and money of a plan, from their definitions.
struct Sums {
  double cn_s = 0;
  double hn_s = 0;
  double up = 0;
  double down = 0;
  double tensors_up = 0;
  double tensors_down = 0;
  double hn_memory = 0;
  double cn_memory = 0;
  double front_end_s = 0;
  bool uses_hn = false;

  Sums(const models::Graph& graph, const models::SplitPlan& plan,
       const Conditions& conditions) {
    const auto bytes = [&](models::ValueId id) {
      const models::Value& value = graph.values[id];
      return value.kind == models::ValueKind::kTensor
                 ? 4.0 * static_cast<double>(*value.shape[0].constant())
                 : 8.0;
    };
    const PlanOracle oracle(graph);
    std::set<std::pair<bool, models::ValueId>> weights;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const bool on_hn = plan.stages[n] == models::Stage::kHn;
      uses_hn = uses_hn || on_hn;
      (on_hn ? hn_s : cn_s) +=
          on_hn ? conditions.costs.hn_s[n] : conditions.costs.cn_s[n];
      const auto operands =
          std::get<models::ValueList>(graph.nodes[n].args[0].value);
      if (oracle.IsConstant(graph.nodes[n].outputs[0])) continue;
      for (const models::ValueId id : operands) {
        for (const models::ValueId weight : oracle.WeightsBehind(id)) {
          weights.insert({on_hn, weight});
        }
      }
    }
    for (const auto& [on_hn, id] : weights) {
      (on_hn ? hn_memory : cn_memory) += bytes(id);
    }
    const WirePrices& wire = conditions.wire;
    for (const models::ValueId id : plan.up) {
      const bool plain =
          wire.up.empty() || wire.up[id].form == models::WireForm();
      up += plain ? bytes(id) : wire.up[id].bytes;
      cn_s += plain ? 0 : wire.up[id].encode_s;
      hn_s += plain ? 0 : wire.up[id].decode_s;
    }
    for (const models::ValueId id : plan.down) {
      const bool plain =
          wire.down.empty() || wire.down[id].form == models::WireForm();
      down += plain ? bytes(id) : wire.down[id].bytes;
      hn_s += plain ? 0 : wire.down[id].encode_s;
      cn_s += plain ? 0 : wire.down[id].decode_s;
    }
    for (const auto* crossing : {&plan.up, &plan.down}) {
      for (const models::ValueId id : *crossing) {
        if (conditions.costs.cn_cut_s.empty()) break;
        cn_s += conditions.costs.cn_cut_s[id] / 2;
        hn_s += conditions.costs.hn_cut_s[id] / 2;
      }
    }
    front_end_s =
        conditions.front_end.request_s +
        conditions.front_end.tensor_s *
            static_cast<double>(graph.inputs.size() + graph.outputs.size());
    tensors_up = static_cast<double>(plan.up.size());
    tensors_down = static_cast<double>(plan.down.size());
    // Every part that runs takes something besides its operators.
    cn_s += conditions.costs.cn_run_s * (uses_hn ? 2 : 1);
    hn_s += conditions.costs.hn_run_s * (uses_hn ? 1 : 0);
  }

  double Cost(Objective objective, const Conditions& conditions) const {
    const Link& link = conditions.link;
    switch (objective) {
      case Objective::kLatency:
        return cn_s + hn_s + (up + down) / link.bytes_per_s +
               (tensors_up + tensors_down) * link.tensor_s +
               (uses_hn ? 2 * link.latency_s : 0);
      case Objective::kThroughput:
        return std::max(
            {(front_end_s + cn_s) / conditions.cn_units_per_hn, hn_s,
             up / link.bytes_per_s + tensors_up * link.tensor_s,
             down / link.bytes_per_s + tensors_down * link.tensor_s});
      case Objective::kPrice:
        return (front_end_s + cn_s) * conditions.prices->cn_unit_s +
               hn_s * conditions.prices->hn_unit_s +
               (up + down) * conditions.prices->byte;
    }
    return 0;
  }
};

}  // namespace refract::partitioner

#endif  // REFRACT_TESTS_PARTITIONER_EVERY_PLAN_H_
