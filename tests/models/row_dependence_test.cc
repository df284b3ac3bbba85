#include "models/row_dependence.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::models {
namespace {

using ::testing::HasSubstr;

// One operator on float inputs "self" [B, 4] and, where it reads it, "other".
struct Case {
  std::string op;
  std::vector<NamedArgument> args;
  std::vector<SymExpr> self = {SymExpr::Symbol("B"), SymExpr(4)};
  std::vector<SymExpr> result = {SymExpr::Symbol("B"), SymExpr(4)};
  base::DType dtype = base::DType::kFloat32;
};

std::string Find(const Case& given) {
  Graph graph;
  graph.batch_symbol = "B";
  Value self;
  self.name = "x";
  self.dtype = given.dtype;
  self.has_shape = true;
  self.shape = given.self;
  const ValueId input = graph.AddValue(self);
  graph.inputs = {input};
  Value result = self;
  result.name = "y";
  result.shape = given.result;
  result.producer = 0;
  Node node;
  node.name = "node";
  node.op = given.op;
  node.args = given.args;
  node.args.push_back({"self", ValueRef{input}});
  node.outputs = {graph.AddValue(result)};
  graph.nodes.push_back(std::move(node));
  graph.outputs = {1};
  graph.output_names = {"output_0"};
  EXPECT_TRUE(ValidateGraph(graph).ok());
  return FindRowDependence(graph);
}

IntList Dims(std::vector<int64_t> dims) {
  IntList list;
  for (const int64_t dim : dims) list.push_back({.literal = dim});
  return list;
}

TEST(FindRowDependenceTest, OperatorsAlongTheBatchMixRows) {
  const SymExpr batch = SymExpr::Symbol("B");
  for (const Case& given : std::vector<Case>{
           {"aten.softmax.int", {{"dim", int64_t{0}}}},
           {"aten._softmax.default", {{"dim", int64_t{-2}}}},
           {"aten.mean.dim", {{"dim", Dims({0})}}},
           {"aten.mean.default", {}},
           {"aten.sum.dim_IntList", {{"dim", Dims({1, 0})}}},
           {"aten.cumsum.default", {{"dim", int64_t{0}}}},
           {"aten.roll.default", {{"dims", Dims({0})}}},
           {"aten.select.int", {{"dim", int64_t{0}}, {"index", int64_t{0}}}},
           {"aten.mm.default", {}, {SymExpr(4), batch}},
           {"aten.mm.default", {}, {batch, SymExpr(4)}, {batch, batch}}}) {
    EXPECT_THAT(Find(given), HasSubstr("node (" + given.op)) << given.op;
  }
}

TEST(FindRowDependenceTest, OperatorsWithinRowsDoNot) {
  const SymExpr batch = SymExpr::Symbol("B");
  for (const Case& given : std::vector<Case>{
           {"aten.softmax.int", {{"dim", int64_t{1}}}},
           {"aten.mean.dim", {{"dim", Dims({-1})}}},
           {"aten.topk.default", {}},
           {"aten.mm.default", {}},
           {"aten.relu.default", {}},
           {"aten.select.int", {{"dim", int64_t{1}}, {"index", int64_t{0}}}},
           // Offsets of bags are sums of lengths.
           {"aten.cumsum.default",
            {{"dim", int64_t{0}}},
            {batch},
            {batch},
            base::DType::kInt64}}) {
    EXPECT_EQ(Find(given), "") << given.op;
  }
}

}  // namespace
}  // namespace refract::models
