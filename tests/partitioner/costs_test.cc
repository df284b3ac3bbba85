#include "partitioner/costs.h"

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

}  // namespace
}  // namespace refract::partitioner
