#include "partitioner/costs/measured_costs.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partitioner/costs/prediction.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::NodeId;
using models::SymExpr;
using models::ValueId;
using models::ValueRef;
using testing::ElementsAre;
using testing::IsEmpty;

// x [b, 100] → linear (w 50 × 100) → relu → view → secret; and neg(w), which
// nothing reads.
Graph Chain() {
  Graph graph;
  const auto tensor = [&](std::vector<SymExpr> shape, std::string weight = "") {
    models::Value value;
    value.name = absl::StrCat("v", graph.values.size());
    value.dtype = base::DType::kFloat32;
    value.has_shape = true;
    value.shape = std::move(shape);
    value.weight = std::move(weight);
    return graph.AddValue(std::move(value));
  };
  const auto add = [&](std::string op, std::vector<models::NamedArgument> args,
                       ValueId output) {
    models::Node node;
    node.name = absl::StrCat("n", graph.nodes.size());
    node.op = std::move(op);
    node.args = std::move(args);
    node.outputs = {output};
    graph.values[output].producer = static_cast<NodeId>(graph.nodes.size());
    graph.nodes.push_back(std::move(node));
  };
  const SymExpr b = SymExpr::Symbol("b");
  const SymExpr s = SymExpr::Symbol("s");
  const ValueId x = tensor({b, s, 100});
  const ValueId w = tensor({50, 100}, "w");
  graph.inputs = {x};
  graph.batch_symbol = "b";
  const ValueId y = tensor({b, s, 50});
  add("aten.linear.default", {{"input", ValueRef{x}}, {"weight", ValueRef{w}}},
      y);
  const ValueId z = tensor({b, s, 50});
  add("aten.relu.default", {{"self", ValueRef{y}}}, z);
  const ValueId view = tensor({b, s * 50});
  add("aten.view.default", {{"self", ValueRef{z}}}, view);
  const ValueId secret = tensor({b, s * 50});
  add("mylib.secret.default", {{"self", ValueRef{view}}}, secret);
  add("aten.neg.default", {{"self", ValueRef{w}}}, tensor({50, 100}));
  graph.outputs = {secret};
  graph.output_names = {"out"};
  return graph;
}

Hardware FastToy() {
  Hardware toy;
  toy.name = "toy";
  toy.operator_s = 1e-6;
  toy.flops_per_s = 1e9;
  toy.bytes_per_s = 1e15;
  toy.row_s = 0;
  toy.memory_bytes = 1e9;
  return toy;
}

Timing Straight(double fixed_s, double item_s) {
  std::vector<Timing::Sample> samples;
  for (const int64_t batch : {1, 16, 256}) {
    const double seconds = fixed_s + item_s * static_cast<double>(batch);
    samples.push_back({batch, {seconds, seconds, seconds, seconds}});
  }
  return MakeTiming(std::move(samples));
}

models::SymbolBindings Sizes(int64_t b, int64_t s) {
  return {{"b", b}, {"s", s}};
}

class MeasuredCostsTest : public testing::Test {
 protected:
  MeasuredCostsTest() {
    profile_.batches = {1, 16, 256};
    profile_.run = Straight(3e-6, 0);
    profile_.operators = {{{0}, "linear", Straight(10e-6, 2e-6)},
                          {{1}, "relu", Straight(1e-6, 1e-6)},
                          {{2}, "view", Straight(20e-9, 0)},
                          {{3}, "libtorch", Straight(5e-6, 0)}};
    profile_.free_nodes = {4};
  }
  MeasuredCosts At(int64_t batch, int64_t s = 1) const {
    return MeasuredSeconds(graph_, profile_, {batch, Sizes(batch, s)},
                           Sizes(batch, 1), FastToy());
  }
  const Graph graph_ = Chain();
  Profile profile_;
};

TEST_F(MeasuredCostsTest, AreThoseOfTheProfileAtTheBatch) {
  const MeasuredCosts costs = At(100);
  ASSERT_EQ(costs.node_s.size(), 5u);
  EXPECT_NEAR(costs.node_s[0], 210e-6, 1e-12);
  EXPECT_NEAR(costs.node_s[1], 101e-6, 1e-12);
  EXPECT_NEAR(costs.node_s[2], 20e-9, 1e-12);
  EXPECT_NEAR(costs.node_s[3], 5e-6, 1e-12);
  EXPECT_EQ(costs.node_s[4], 0);
  EXPECT_NEAR(costs.run_s, 3e-6, 1e-12);
  EXPECT_THAT(costs.estimated, IsEmpty());
  EXPECT_THAT(costs.unknown, IsEmpty());
  EXPECT_FALSE(costs.rescaled);
}

// The linear takes 2·b·100·50 flop at 1 GFLOP/s + 1 us, the relu 50 b flop.
TEST_F(MeasuredCostsTest, OneStepsNodesShareItByTheirWork) {
  profile_.operators = {{{0, 1, 2}, "linear/relu", Straight(10e-6, 2e-6)},
                        {{3}, "libtorch", Straight(5e-6, 0)}};
  const MeasuredCosts costs = At(16);
  const double measured = 42e-6;
  const double linear = 161e-6;
  const double relu = 1.8e-6;
  EXPECT_NEAR(costs.node_s[0], measured * linear / (linear + relu), 1e-12);
  EXPECT_NEAR(costs.node_s[1], measured * relu / (linear + relu), 1e-12);
  EXPECT_EQ(costs.node_s[2], 0);  // a view
  EXPECT_NEAR(costs.node_s[0] + costs.node_s[1] + costs.node_s[2], measured,
              1e-15);
}

// Together 42 us at batch 16; apart linear 40, relu 15 and the view 5 us. So
// linear has 2/3 of the step; and who cuts at its result, or at relu's, of
// which the view is no other memory, pays for one of two equal tensors.
TEST_F(MeasuredCostsTest, PiecesShareTheStepAndPriceACutThroughIt) {
  profile_.operators = {{{0, 1, 2},
                         "linear/relu/view",
                         Straight(10e-6, 2e-6),
                         {{{0}, Straight(40e-6, 0)},
                          {{1}, Straight(15e-6, 0)},
                          {{2}, Straight(5e-6, 0)}}},
                        {{3}, "libtorch", Straight(5e-6, 0)}};
  const MeasuredCosts costs = At(16);
  EXPECT_NEAR(costs.node_s[0], 28e-6, 1e-12);
  EXPECT_NEAR(costs.node_s[1], 10.5e-6, 1e-12);
  EXPECT_NEAR(costs.node_s[2], 3.5e-6, 1e-12);
  ASSERT_EQ(costs.cut_s.size(), graph_.values.size());
  const ValueId y = graph_.nodes[0].outputs[0];
  const ValueId z = graph_.nodes[1].outputs[0];
  for (size_t id = 0; id < costs.cut_s.size(); ++id) {
    const bool inner =
        static_cast<ValueId>(id) == y || static_cast<ValueId>(id) == z;
    EXPECT_NEAR(costs.cut_s[id], inner ? 9e-6 : 0, 1e-12) << id;
  }
  // A plan that cuts there takes it on top, half on either side.
  Conditions conditions;
  conditions.sizes = Sizes(16, 1);
  conditions.costs.cn_s = conditions.costs.hn_s = costs.node_s;
  conditions.costs.cn_cut_s = conditions.costs.hn_cut_s = costs.cut_s;
  models::SplitPlan plan;
  using models::Stage;
  plan.stages = {Stage::kCnPre, Stage::kHn, Stage::kHn, Stage::kCnPost,
                 Stage::kCnPre};
  models::ComputeCrossings(graph_, plan);
  const Prediction split = Predict(graph_, plan, conditions);
  EXPECT_NEAR(split.cn_crossing_s, 4.5e-6, 1e-12);
  EXPECT_NEAR(split.hn_crossing_s, 4.5e-6, 1e-12);
  plan.stages[0] = Stage::kHn;
  models::ComputeCrossings(graph_, plan);
  EXPECT_EQ(Predict(graph_, plan, conditions).cn_crossing_s, 0);
}

// Noise may have them quicker apart.
TEST_F(MeasuredCostsTest, NobodyGainsByACutThroughAStep) {
  profile_.operators[0] = {
      {0, 1},
      "linear/relu",
      Straight(10e-6, 2e-6),
      {{{0}, Straight(30e-6, 0)}, {{1}, Straight(5e-6, 0)}}};
  profile_.operators.erase(profile_.operators.begin() + 1);
  for (const double seconds : At(16).cut_s) EXPECT_EQ(seconds, 0);
}

TEST_F(MeasuredCostsTest, StepsOfViewsAloneKeepTheirTime) {
  profile_.operators[2].timing = Straight(1e-6, 0);
  EXPECT_NEAR(At(16).node_s[2], 1e-6, 1e-15);
}

TEST_F(MeasuredCostsTest, WhatTheProfileLacksIsEstimated) {
  profile_.operators.erase(profile_.operators.begin() + 2,
                           profile_.operators.end());
  profile_.operators.erase(profile_.operators.begin());
  profile_.free_nodes.clear();
  const MeasuredCosts costs = At(16);
  EXPECT_NEAR(costs.node_s[0], 161e-6, 1e-12);
  EXPECT_NEAR(costs.node_s[1], 17e-6, 1e-12);
  EXPECT_EQ(costs.node_s[2], 0);
  EXPECT_NEAR(costs.node_s[3], 1e-6, 1e-15);  // unknown work
  EXPECT_EQ(costs.node_s[4], 0);              // of weights alone
  EXPECT_THAT(costs.estimated, ElementsAre(0, 3));
  EXPECT_THAT(costs.unknown, ElementsAre(3));
}

// Twice the steps: twice the time beyond the fixed, where the work is known.
TEST_F(MeasuredCostsTest, OtherSizesScaleWhatGrowsByTheWork) {
  const MeasuredCosts costs = At(100, 2);
  EXPECT_TRUE(costs.rescaled);
  EXPECT_NEAR(costs.node_s[0], 10e-6 + 2 * 200e-6, 1e-9);
  EXPECT_NEAR(costs.node_s[1], 1e-6 + 2 * 100e-6, 1e-9);
  EXPECT_NEAR(costs.node_s[3], 5e-6, 1e-12);
}

// CN-pre [linear], HN [relu, view], CN-post [secret]: each part takes its
// operators and a run.
TEST_F(MeasuredCostsTest, PartsTakeTheirOperatorsAndARun) {
  Conditions conditions;
  conditions.sizes = Sizes(16, 1);
  const MeasuredCosts costs = At(16);
  conditions.costs.cn_s = costs.node_s;
  conditions.costs.hn_s = costs.node_s;
  conditions.costs.cn_run_s = costs.run_s;
  conditions.costs.hn_run_s = 2 * costs.run_s;
  models::SplitPlan plan;
  using models::Stage;
  plan.stages = {Stage::kCnPre, Stage::kHn, Stage::kHn, Stage::kCnPost,
                 Stage::kCnPre};
  models::ComputeCrossings(graph_, plan);
  const Prediction split = Predict(graph_, plan, conditions);
  EXPECT_NEAR(split.cn_pre_s, 42e-6 + 3e-6, 1e-12);
  EXPECT_NEAR(split.hn_s, 17e-6 + 20e-9 + 6e-6, 1e-12);
  EXPECT_NEAR(split.cn_post_s, 5e-6 + 3e-6, 1e-12);
  plan.stages.assign(5, Stage::kCnPre);
  models::ComputeCrossings(graph_, plan);
  const Prediction whole = Predict(graph_, plan, conditions);
  EXPECT_NEAR(whole.cn_pre_s, 42e-6 + 17e-6 + 20e-9 + 5e-6 + 3e-6, 1e-12);
  EXPECT_EQ(whole.hn_s, 0);
  EXPECT_EQ(whole.cn_post_s, 0);
}

}  // namespace
}  // namespace refract::partitioner
