#include "models/graph/graph.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// x, w → linear → y; (y, x) → add → z; z is the output.
Graph SmallGraph() {
  Graph graph;
  const ValueId x = graph.AddValue({.name = "x"});
  const ValueId w = graph.AddValue({.name = "w", .weight = "fc.weight"});
  const ValueId y = graph.AddValue({.name = "y", .producer = 0});
  const ValueId z = graph.AddValue({.name = "z", .producer = 1});
  graph.nodes.push_back({.name = "linear",
                         .op = "aten.linear.default",
                         .args = {{"input", ValueRef{x}},
                                  {"weight", ValueRef{w}},
                                  {"bias", None{}}},
                         .outputs = {y}});
  graph.nodes.push_back(
      {.name = "add",
       .op = "aten.add.Tensor",
       .args = {{"self", ValueRef{y}}, {"other", ValueRef{x}}},
       .outputs = {z}});
  graph.inputs = {x};
  graph.outputs = {z};
  graph.output_names = {"output_0"};
  graph.symbols = {{"s0", 1, 4096}};
  return graph;
}

TEST(GraphTest, FindsArgumentsAndValues) {
  const Graph graph = SmallGraph();
  ASSERT_NE(graph.nodes[0].FindArg("weight"), nullptr);
  EXPECT_EQ(std::get<ValueRef>(*graph.nodes[0].FindArg("weight")).id, 1);
  EXPECT_EQ(graph.nodes[0].FindArg("absent"), nullptr);
  EXPECT_EQ(graph.FindValue("z"), 3);
  EXPECT_EQ(graph.FindValue("absent"), kNoValue);
}

TEST(GraphTest, InputsCoverEveryKindOfReferenceAndSkipHoles) {
  Node node;
  node.args = {{"a", ValueRef{4}},
               {"b", ValueList{1, kNoValue, 4}},
               {"c", IntList{{.literal = 7}, {.literal = 0, .value = 2}}},
               {"d", int64_t{4}},
               {"e", None{}}};
  EXPECT_THAT(InputsOf(node), ElementsAre(4, 1, 4, 2));
  ReplaceInput(node, 4, 9);
  EXPECT_THAT(InputsOf(node), ElementsAre(9, 1, 9, 2));
  EXPECT_EQ(std::get<int64_t>(node.args[3].value), 4);
}

TEST(GraphTest, UsersAreListedOncePerNodeInOrder) {
  Graph graph = SmallGraph();
  graph.nodes[1].args.push_back({"alpha", ValueRef{2}});
  const auto users = UsersOf(graph);
  EXPECT_THAT(users[0], ElementsAre(0, 1));
  EXPECT_THAT(users[2], ElementsAre(1));
  EXPECT_THAT(users[3], IsEmpty());
}

TEST(ValidateGraphTest, AcceptsASmallGraph) {
  EXPECT_TRUE(ValidateGraph(SmallGraph()).ok());
  EXPECT_TRUE(ValidateGraph(Graph()).ok());
}

struct BrokenCase {
  std::string name;
  std::function<void(Graph&)> breakage;
  std::string message;
};

class BrokenGraphTest : public ::testing::TestWithParam<BrokenCase> {};

TEST_P(BrokenGraphTest, IsRefusedByName) {
  Graph graph = SmallGraph();
  GetParam().breakage(graph);
  const absl::Status status = ValidateGraph(graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BrokenGraphTest,
    ::testing::Values(
        BrokenCase{"UnnamedValue", [](Graph& g) { g.values[2].name.clear(); },
                   "value 2 has no name"},
        BrokenCase{"DuplicateValue", [](Graph& g) { g.values[2].name = "x"; },
                   "two values are named x"},
        BrokenCase{"UnnamedNode", [](Graph& g) { g.nodes[1].name.clear(); },
                   "node 1 has no name"},
        BrokenCase{"DuplicateNode",
                   [](Graph& g) { g.nodes[1].name = "linear"; },
                   "two nodes are named linear"},
        BrokenCase{"NoOperator", [](Graph& g) { g.nodes[1].op.clear(); },
                   "node add has no operator"},
        BrokenCase{"WrongOrder",
                   [](Graph& g) {
                     std::swap(g.nodes[0], g.nodes[1]);
                     g.values[2].producer = 1;
                     g.values[3].producer = 0;
                   },
                   "node add, argument self: y is not computed before it"},
        BrokenCase{"InputOutOfRange",
                   [](Graph& g) { g.nodes[0].args[0].value = ValueRef{77}; },
                   "node linear, argument input: value 77 is out of range"},
        BrokenCase{"NegativeInput",
                   [](Graph& g) { g.nodes[0].args[0].value = ValueRef{-5}; },
                   "value -5 is out of range"},
        BrokenCase{
            "NoneAsReference",
            [](Graph& g) { g.nodes[0].args[0].value = ValueRef{kNoValue}; },
            "value -1 is out of range"},
        BrokenCase{"OutputOutOfRange",
                   [](Graph& g) { g.nodes[0].outputs = {40}; },
                   "output 40 is out of range"},
        BrokenCase{"WrongProducer", [](Graph& g) { g.values[2].producer = 1; },
                   "y names another producer"},
        BrokenCase{"ProducerOutOfRange",
                   [](Graph& g) { g.values[2].producer = 9; },
                   "unknown producer"},
        BrokenCase{"ProducerDoesNotListIt",
                   [](Graph& g) { g.values[0].producer = 1; }, "input x"},
        BrokenCase{"Dangling",
                   [](Graph& g) { g.AddValue({.name = "d", .producer = 0}); },
                   "value d is not an output of its producer"},
        BrokenCase{"TwiceComputed",
                   [](Graph& g) {
                     g.nodes[0].outputs = {2, 2};
                   },
                   "y is computed twice"},
        BrokenCase{"ComputedWeight", [](Graph& g) { g.values[2].weight = "w"; },
                   "weight y is also computed"},
        BrokenCase{"WeightAsInput", [](Graph& g) { g.inputs = {1}; },
                   "input w is also computed or a weight"},
        BrokenCase{"InputTwice",
                   [](Graph& g) {
                     g.inputs = {0, 0};
                   },
                   "input x is listed twice"},
        BrokenCase{
            "OutputNotComputed",
            [](Graph& g) { g.outputs = {g.AddValue({.name = "loose"})}; },
            "output output_0 is not computed"},
        BrokenCase{"OutputNamesMissing",
                   [](Graph& g) { g.output_names.clear(); },
                   "1 outputs but 0 output names"},
        BrokenCase{"OutputNamesTwice",
                   [](Graph& g) {
                     g.outputs = {2, 3};
                     g.output_names = {"p", "p"};
                   },
                   "two outputs are named p"},
        BrokenCase{"NegativeDimension",
                   [](Graph& g) {
                     g.values[0].has_shape = true;
                     g.values[0].shape = {SymExpr(-2)};
                   },
                   "x has a negative dimension"},
        BrokenCase{"EmptyRange", [](Graph& g) { g.symbols[0].min = 5000; },
                   "symbol s0 has the empty range 5000..4096"},
        BrokenCase{"MinBatch", [](Graph& g) { g.min_batch = 0; },
                   "min_batch is 0"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace refract::models
