#include "partitioner/split/split_problem.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "models/graph/constants.h"
#include "models/graph/op_traits.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::kNoNode;
using models::NodeId;
using models::OpClass;
using models::Stage;
using models::Value;
using models::ValueId;

static_assert(static_cast<int>(Stage::kCnPre) == cut::kPre &&
              static_cast<int>(Stage::kHn) == cut::kHn &&
              static_cast<int>(Stage::kCnPost) == cut::kPost);

// The costs of one measure add up to about this value: large enough that
// thousands of roundings to integers stay below 10^-9 of it, small enough that
// weighted sums of several measures still fit (cut::kMaxTotal).
constexpr double kTotal = 0x1p40;

cut::StageSet AllowedStages(const Graph& graph, const models::Node& node) {
  const OpClass op_class = models::ClassOf(graph, node);
  if (op_class == OpClass::kEmbedding) return cut::kOnPre;
  return models::MayRunOnHn(op_class) ? cut::kAnyStage : cut::kOnCn;
}

}  // namespace

struct SplitProblem::Real {
  std::vector<std::array<double, cut::kNumStages>> stage;
  std::vector<double> up;
  std::vector<double> down;
  double hn_used = 0;

  // Cost that every plan has. It is added to all three stages of the first
  // node, since each plan has that node in one of them.
  void AddConstant(double cost) {
    if (stage.empty()) return;
    for (double& on_stage : stage.front()) on_stage += cost;
  }
};

SplitProblem::SplitProblem(const Graph& graph,
                           const std::vector<bool>& hn_look_ups) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    cut::StageSet allowed = AllowedStages(graph, graph.nodes[n]);
    if (n < hn_look_ups.size() && hn_look_ups[n]) allowed |= cut::kOnHn;
    problem_.allowed.push_back(allowed);
  }
  std::vector<bool> is_result(graph.values.size(), false);
  for (const ValueId id : graph.outputs) is_result[id] = true;
  const std::vector<std::vector<NodeId>> users = models::UsersOf(graph);
  const std::vector<std::vector<NodeId>> weight_readers =
      models::ReadersOfWeights(graph);
  const std::vector<bool> constant = models::ConstantNodes(graph);
  for (size_t id = 0; id < graph.values.size(); ++id) {
    const Value& value = graph.values[id];
    if (value.is_weight()) {
      // A weight takes memory once on the CN and once on the HN, however many
      // operators read it there.
      if (weight_readers[id].empty()) continue;
      problem_.shared.push_back({std::vector<int>(weight_readers[id].begin(),
                                                  weight_readers[id].end())});
      shared_.push_back(static_cast<ValueId>(id));
      continue;
    }
    // A value that nobody reads crosses in no plan.
    if (users[id].empty() && !is_result[id]) continue;
    cut::Tensor tensor;
    // A tensor: computed by a node or brought by the request, read by
    // `readers`, and a result where the answer contains it.
    tensor.producer =
        value.producer == kNoNode ? cut::Tensor::kRequest : value.producer;
    tensor.readers.assign(users[id].begin(), users[id].end());
    tensor.is_result = is_result[id];
    // Each node computes the constants that it reads: they may go both ways and
    // cost nothing (Cross).
    const bool free = value.producer != kNoNode && constant[value.producer];
    tensor.may_go_up = tensor.may_come_down = free || models::MayCross(value);
    crosses_.push_back(!free);
    problem_.tensors.push_back(std::move(tensor));
    tensors_.push_back(static_cast<ValueId>(id));
  }
}

int SplitProblem::TensorOf(ValueId value) const {
  // In order of value ids.
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), value);
  return at != tensors_.end() && *at == value
             ? static_cast<int>(at - tensors_.begin())
             : -1;
}

Crossing SplitProblem::Cross(size_t tensor, bool up,
                             const Conditions& conditions,
                             const ValueSizes& sizes) const {
  if (!crosses_[tensor]) return {};
  const ValueId id = tensors_[tensor];
  return CrossingOf(conditions, id, up, sizes.bytes[id]);
}

cut::Measure SplitProblem::CnMemory(const ValueSizes& sizes) const {
  cut::Measure measure(problem_);
  for (size_t s = 0; s < shared_.size(); ++s) {
    measure.shared_on_cn[s] = std::llround(sizes.bytes[shared_[s]]);
  }
  return measure;
}

cut::Measure SplitProblem::HnMemory(const ValueSizes& sizes) const {
  cut::Measure measure(problem_);
  for (size_t s = 0; s < shared_.size(); ++s) {
    measure.shared_on_hn[s] = std::llround(sizes.bytes[shared_[s]]);
  }
  return measure;
}

SplitProblem::Real SplitProblem::Zero() const {
  Real real;
  real.stage.resize(problem_.allowed.size());
  real.up.resize(problem_.tensors.size());
  real.down.resize(problem_.tensors.size());
  return real;
}

SplitProblem::Quantised SplitProblem::Quantise(
    std::vector<Real> measures) const {
  // Stages that no legal plan can choose are excluded: their costs may be far
  // larger than the rest, which would then be rounded coarsely.
  cut::Domains domains = problem_.allowed;
  cut::Propagate(problem_, domains);
  const auto may_be_on_hn = [&](int node) {
    return node != cut::Tensor::kRequest && (domains[node] & cut::kOnHn) != 0;
  };
  for (Real& real : measures) {
    for (size_t n = 0; n < real.stage.size(); ++n) {
      for (int s = 0; s < cut::kNumStages; ++s) {
        if ((domains[n] >> s & 1) == 0) real.stage[n][s] = 0;
      }
    }
    for (size_t t = 0; t < problem_.tensors.size(); ++t) {
      const cut::Tensor& tensor = problem_.tensors[t];
      // A tensor that no plan makes on the HN never comes down; a tensor
      // without a possible reader there never goes up.
      if (!may_be_on_hn(tensor.producer)) real.down[t] = 0;
      if (std::none_of(tensor.readers.begin(), tensor.readers.end(),
                       may_be_on_hn)) {
        real.up[t] = 0;
      }
    }
  }
  // One unit for all measures, because the search compares their sums. It
  // follows from the largest total that a plan can have.
  double largest = 0;
  for (const Real& real : measures) {
    double total = real.hn_used;
    for (const auto& stage : real.stage) {
      total += *std::max_element(stage.begin(), stage.end());
    }
    for (const double cost : real.up) total += cost;
    for (const double cost : real.down) total += cost;
    largest = std::max(largest, total);
  }
  Quantised result;
  if (largest > 0) result.unit = largest / kTotal;
  const auto whole = [&](double cost) {
    return static_cast<cut::Cost>(std::llround(cost / result.unit));
  };
  for (const Real& real : measures) {
    cut::Measure measure(problem_);
    for (size_t n = 0; n < real.stage.size(); ++n) {
      for (int s = 0; s < cut::kNumStages; ++s) {
        measure.stage[n][s] = whole(real.stage[n][s]);
      }
    }
    for (size_t t = 0; t < real.up.size(); ++t) {
      measure.up[t] = whole(real.up[t]);
      measure.down[t] = whole(real.down[t]);
    }
    measure.hn_used = whole(real.hn_used);
    result.measures.push_back(std::move(measure));
  }
  return result;
}

SplitProblem::Quantised SplitProblem::BytesCrossing(
    const Conditions& conditions, const ValueSizes& sizes, bool up,
    bool down) const {
  Real real = Zero();
  for (size_t t = 0; t < tensors_.size(); ++t) {
    if (up) real.up[t] = Cross(t, true, conditions, sizes).bytes;
    if (down) real.down[t] = Cross(t, false, conditions, sizes).bytes;
  }
  return Quantise({real});
}

cut::Measure SplitProblem::TensorsCrossing(bool up) const {
  cut::Measure measure(problem_);
  for (size_t t = 0; t < tensors_.size(); ++t) {
    (up ? measure.up : measure.down)[t] = crosses_[t] ? 1 : 0;
  }
  return measure;
}

SplitProblem::Quantised SplitProblem::Latency(const Conditions& conditions,
                                              const ValueSizes& sizes) const {
  Real real = Zero();
  for (size_t n = 0; n < real.stage.size(); ++n) {
    const double cn_s = conditions.costs.cn_s[n];
    // In the order of cut::Stage: CN-pre, HN, CN-post.
    real.stage[n] = {cn_s, conditions.costs.hn_s[n], cn_s};
  }
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const auto seconds = [&](bool up) {
      const Crossing crossing = Cross(t, up, conditions, sizes);
      return crossing.link_s + crossing.cn_s + crossing.hn_s;
    };
    real.up[t] = seconds(true);
    real.down[t] = seconds(false);
  }
  // With the HN a request has three runs instead of one: CN-pre, HN, CN-post.
  const OperatorCosts& costs = conditions.costs;
  real.AddConstant(costs.cn_run_s);
  real.hn_used =
      2 * conditions.link.latency_s + costs.cn_run_s + costs.hn_run_s;
  return Quantise({real});
}

SplitProblem::Quantised SplitProblem::Stations(const Conditions& conditions,
                                               const ValueSizes& sizes,
                                               double front_end_s) const {
  // One measure per station; the objective is the largest of the four sums.
  Real cn = Zero();
  Real up = Zero();
  Real hn = Zero();
  Real down = Zero();
  for (size_t n = 0; n < problem_.allowed.size(); ++n) {
    // An HN unit has cn_units_per_hn CN units, which work on different
    // requests: per request the CN station is busy for that part of its time.
    const double cn_s = conditions.costs.cn_s[n] / conditions.cn_units_per_hn;
    cn.stage[n] = {cn_s, 0, cn_s};
    hn.stage[n][cut::kHn] = conditions.costs.hn_s[n];
  }
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const Crossing rising = Cross(t, true, conditions, sizes);
    const Crossing falling = Cross(t, false, conditions, sizes);
    up.up[t] = rising.link_s;
    down.down[t] = falling.link_s;
    cn.up[t] = rising.cn_s / conditions.cn_units_per_hn;
    cn.down[t] = falling.cn_s / conditions.cn_units_per_hn;
    hn.up[t] = rising.hn_s;
    hn.down[t] = falling.hn_s;
  }
  const double run_s = conditions.costs.cn_run_s / conditions.cn_units_per_hn;
  cn.AddConstant(run_s + front_end_s / conditions.cn_units_per_hn);
  // With the HN there is a second run on the CN (CN-post).
  cn.hn_used = run_s;
  hn.hn_used = conditions.costs.hn_run_s;
  return Quantise({cn, up, hn, down});
}

SplitProblem::Quantised SplitProblem::Price(const Conditions& conditions,
                                            const ValueSizes& sizes,
                                            double front_end_s) const {
  const Prices& prices = *conditions.prices;
  Real real = Zero();
  for (size_t n = 0; n < real.stage.size(); ++n) {
    // Money: seconds of units times their prices, and bytes. The link is paid
    // by the byte, so its time has no price.
    const double on_cn = conditions.costs.cn_s[n] * prices.cn_unit_s;
    real.stage[n] = {on_cn, conditions.costs.hn_s[n] * prices.hn_unit_s, on_cn};
  }
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const auto money = [&](bool up) {
      const Crossing crossing = Cross(t, up, conditions, sizes);
      return crossing.bytes * prices.byte + crossing.cn_s * prices.cn_unit_s +
             crossing.hn_s * prices.hn_unit_s;
    };
    real.up[t] = money(true);
    real.down[t] = money(false);
  }
  const double run = conditions.costs.cn_run_s * prices.cn_unit_s;
  real.AddConstant(run + front_end_s * prices.cn_unit_s);
  real.hn_used = run + conditions.costs.hn_run_s * prices.hn_unit_s;
  return Quantise({real});
}

cut::Stages SplitProblem::StagesOf(const models::SplitPlan& plan) {
  cut::Stages stages;
  for (const Stage stage : plan.stages) {
    stages.push_back(static_cast<cut::Stage>(stage));
  }
  return stages;
}

void SplitProblem::ToPlan(const Graph& graph, const cut::Stages& stages,
                          models::SplitPlan& plan) {
  plan.stages.clear();
  for (const cut::Stage stage : stages) {
    plan.stages.push_back(static_cast<Stage>(stage));
  }
  models::ComputeCrossings(graph, plan);
}

}  // namespace refract::partitioner
