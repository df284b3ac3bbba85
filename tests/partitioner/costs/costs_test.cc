#include "partitioner/costs/costs.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::Node;
using models::SymExpr;
using models::Value;
using models::ValueId;
using models::ValueRef;

Hardware Toy() {
  Hardware toy;
  toy.name = "toy";
  toy.operator_s = 1e-6;
  toy.flops_per_s = 1e9;
  toy.bytes_per_s = 1e8;
  toy.row_s = 1e-5;
  toy.memory_bytes = 1e9;
  return toy;
}

TEST(CostsTest, TheSlowerOfArithmeticAndTrafficOnTopOfTheLaunch) {
  EXPECT_DOUBLE_EQ(RooflineSeconds(Toy(), {.flops = 1e9, .bytes = 1e4}),
                   1e-6 + 1);
  EXPECT_DOUBLE_EQ(RooflineSeconds(Toy(), {.flops = 1, .bytes = 1e8}),
                   1e-6 + 1);
  EXPECT_DOUBLE_EQ(RooflineSeconds(Toy(), {.bytes = 100, .rows = 10}),
                   1e-6 + 1e-4 + 1e-6);
  EXPECT_DOUBLE_EQ(RooflineSeconds(Toy(), {}), 1e-6);
}

TEST(CostsTest, WhatTheCacheHoldsComesFromThere) {
  Hardware toy = Toy();
  EXPECT_EQ(CachedShare(toy, 10), 0);
  EXPECT_DOUBLE_EQ(RooflineSeconds(toy, {.bytes = 1e8}, 1), 1e-6 + 1);
  toy.cache = {.bytes = 1e6, .bytes_per_s = 1e9};
  EXPECT_EQ(CachedShare(toy, 1e6), 1);
  EXPECT_EQ(CachedShare(toy, 4e6), 0.25);
  EXPECT_EQ(CachedShare(toy, 0), 1);
  EXPECT_DOUBLE_EQ(RooflineSeconds(toy, {.bytes = 1e8}, 1), 1e-6 + 0.1);
  EXPECT_DOUBLE_EQ(RooflineSeconds(toy, {.bytes = 1e8}, 0.25),
                   1e-6 + 0.025 + 0.75);
  // Rows are others each time.
  EXPECT_DOUBLE_EQ(RooflineSeconds(toy, {.bytes = 1e8, .rows = 1}, 1),
                   1e-6 + 1e-5 + 1);
}

class GraphCostsTest : public testing::Test {
 protected:
  ValueId Tensor(std::vector<SymExpr> shape, std::string weight = "") {
    Value value;
    value.name = absl::StrCat("v", graph_.values.size());
    value.dtype = base::DType::kFloat32;
    value.has_shape = true;
    value.shape = std::move(shape);
    value.weight = std::move(weight);
    return graph_.AddValue(std::move(value));
  }
  void Add(std::string op, std::vector<models::NamedArgument> args,
           ValueId output) {
    Node node;
    node.name = absl::StrCat("n", graph_.nodes.size());
    node.op = std::move(op);
    node.args = std::move(args);
    node.outputs = {output};
    graph_.values[output].producer =
        static_cast<models::NodeId>(graph_.nodes.size());
    graph_.nodes.push_back(std::move(node));
  }
  Graph graph_;
};

// Two operators, each three launches of 1 us and 400 bytes at 100 MB/s.
TEST_F(GraphCostsTest, RegionsOfTheInterpreterAreAssumedToRunEachOperatorOnce) {
  const ValueId x = Tensor({100});
  graph_.inputs = {x};
  const ValueId y = Tensor({10});
  Add("refract.script.default",
      {{"input_0", ValueRef{x}},
       {"operators", models::StringList{"aten::mul", "prim::Loop"}}},
      y);
  graph_.outputs = {y};
  const OperatorCosts costs = RooflineCosts(graph_, {}, Toy(), Toy());
  EXPECT_DOUBLE_EQ(costs.cn_s[0], 2 * (3e-6 + 4e-6));
  EXPECT_EQ(costs.regions, (std::vector<models::NodeId>{0}));
  EXPECT_TRUE(costs.unknown.empty());
}

TEST_F(GraphCostsTest, FollowTheBatchAndSkipWhatIsFree) {
  const SymExpr b = SymExpr::Symbol("b");
  const ValueId x = Tensor({b, 100});
  const ValueId w = Tensor({50, 100}, "w");
  graph_.inputs = {x};
  const ValueId constant = Tensor({50, 100});
  Add("aten.neg.default", {{"self", ValueRef{w}}}, constant);
  const ValueId view = Tensor({b, 100});
  Add("aten.view.default", {{"self", ValueRef{x}}}, view);
  const ValueId y = Tensor({b, 50});
  Add("aten.linear.default",
      {{"input", ValueRef{view}}, {"weight", ValueRef{constant}}}, y);
  const ValueId secret = Tensor({b, 50});
  Add("mylib.secret.default", {{"self", ValueRef{y}}}, secret);

  Hardware fast = Toy();
  fast.flops_per_s = 1e12;
  fast.bytes_per_s = 1e12;
  fast.operator_s = 2e-6;
  const OperatorCosts costs = RooflineCosts(graph_, {{"b", 8}}, Toy(), fast);
  const double bytes = 4.0 * (8 * 100 + 50 * 100 + 8 * 50);
  const double flops = 2.0 * 8 * 100 * 50;
  ASSERT_EQ(costs.cn_s.size(), 4u);
  EXPECT_EQ(costs.cn_s[0], 0);  // a constant
  EXPECT_EQ(costs.hn_s[0], 0);
  EXPECT_EQ(costs.cn_s[1], 0);  // a view
  EXPECT_DOUBLE_EQ(costs.cn_s[2], 1e-6 + bytes / 1e8);
  EXPECT_DOUBLE_EQ(costs.hn_s[2], 2e-6 + flops / 1e12);
  EXPECT_EQ(costs.cn_s[3], 1e-6);  // unknown
  EXPECT_EQ(costs.hn_s[3], 2e-6);
  EXPECT_EQ(costs.unknown, (std::vector<models::NodeId>{3}));
}

// x [b, 100] → linear → relu → view → sigmoid, of which the first three are one
// step: one launch, and neither the layer's result nor what relu reads counts.
TEST_F(GraphCostsTest, StepsTakeOneLaunchAndWriteNothingInside) {
  const SymExpr b = SymExpr::Symbol("b");
  const ValueId x = Tensor({b, 100});
  const ValueId w = Tensor({50, 100}, "w");
  graph_.inputs = {x};
  const ValueId y = Tensor({b, 50});
  Add("aten.linear.default", {{"input", ValueRef{x}}, {"weight", ValueRef{w}}},
      y);
  const ValueId relu = Tensor({b, 50});
  Add("aten.relu.default", {{"self", ValueRef{y}}}, relu);
  const ValueId view = Tensor({b, 50});
  Add("aten.view.default", {{"self", ValueRef{relu}}}, view);
  const ValueId score = Tensor({b, 50});
  Add("aten.sigmoid.default", {{"self", ValueRef{view}}}, score);
  graph_.outputs = {score};
  const models::SymbolBindings sizes = {{"b", 8}};
  const std::vector<std::vector<models::NodeId>> steps = {{0, 1, 2}, {3}};
  const OperatorCosts apart = RooflineCosts(graph_, sizes, Toy(), Toy());
  EXPECT_TRUE(apart.cn_cut_s.empty());
  const OperatorCosts costs = RooflineCosts(graph_, sizes, Toy(), Toy(), steps);
  const double layer = 4.0 * 8 * 50;  // bytes of a layer's result
  const double in = 4.0 * (8 * 100 + 50 * 100);
  EXPECT_DOUBLE_EQ(apart.cn_s[0], 1e-6 + (in + layer) / 1e8);
  EXPECT_DOUBLE_EQ(apart.cn_s[1], 1e-6 + 2 * layer / 1e8);
  const double together = 1e-6 + (in + layer) / 1e8;
  EXPECT_NEAR(costs.cn_s[0] + costs.cn_s[1], together, 1e-15);
  EXPECT_NEAR(costs.cn_s[0] / costs.cn_s[1], apart.cn_s[0] / apart.cn_s[1],
              1e-9);
  EXPECT_EQ(costs.cn_s[2], 0);
  EXPECT_DOUBLE_EQ(costs.cn_s[3], apart.cn_s[3]);
  // A cut through the step writes and reads the layer's result, and launches
  // once more.
  EXPECT_NEAR(costs.cn_cut_s[y] + costs.cn_cut_s[relu],
              apart.cn_s[0] + apart.cn_s[1] - together, 1e-15);
  EXPECT_EQ(costs.cn_cut_s[view], 0);
  EXPECT_EQ(costs.hn_cut_s, costs.cn_cut_s);
}

// The layer's result is read by the step and by somebody else: it is written,
// and not read.
TEST_F(GraphCostsTest, WhatLeavesAStepIsWritten) {
  const ValueId x = Tensor({1000});
  graph_.inputs = {x};
  const ValueId a = Tensor({1000});
  Add("aten.relu.default", {{"self", ValueRef{x}}}, a);
  const ValueId view = Tensor({1000});
  Add("aten.view.default", {{"self", ValueRef{a}}}, view);
  const ValueId c = Tensor({1000});
  Add("aten.sigmoid.default", {{"self", ValueRef{view}}}, c);
  const ValueId d = Tensor({1000});
  Add("aten.tanh.default", {{"self", ValueRef{view}}}, d);
  graph_.outputs = {c, d};
  const OperatorCosts costs =
      RooflineCosts(graph_, {}, Toy(), Toy(), {{0, 1, 2}});
  EXPECT_NEAR(costs.cn_s[0] + costs.cn_s[2], 1e-6 + 3 * 4000 / 1e8, 1e-15);
  EXPECT_NEAR(costs.cn_s[3], 1e-6 + 2 * 4000 / 1e8, 1e-15);
}

// Rows of several tables in one step: each look-up has a launch of its own.
TEST_F(GraphCostsTest, LookUpsOfAGroupLaunchEach) {
  const SymExpr b = SymExpr::Symbol("b");
  std::vector<models::NodeId> step;
  for (int t = 0; t < 3; ++t) {
    const ValueId ids = Tensor({b});
    graph_.values[ids].dtype = base::DType::kInt64;
    graph_.inputs.push_back(ids);
    const ValueId table = Tensor({1000, 16}, absl::StrCat("t", t));
    const ValueId rows = Tensor({b, 16});
    step.push_back(static_cast<models::NodeId>(graph_.nodes.size()));
    Add("aten.embedding.default",
        {{"weight", ValueRef{table}}, {"indices", ValueRef{ids}}}, rows);
    graph_.outputs.push_back(rows);
  }
  const models::SymbolBindings sizes = {{"b", 8}};
  const OperatorCosts apart = RooflineCosts(graph_, sizes, Toy(), Toy());
  const OperatorCosts group =
      RooflineCosts(graph_, sizes, Toy(), Toy(), {step});
  for (int t = 0; t < 3; ++t) {
    EXPECT_NEAR(group.cn_s[t], apart.cn_s[t], 1e-15);
  }
  EXPECT_EQ(group.cn_cut_s, std::vector<double>(graph_.values.size(), 0.0));
}

}  // namespace
}  // namespace refract::partitioner
