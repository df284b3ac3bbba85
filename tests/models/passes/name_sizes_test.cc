#include "models/passes/name_sizes.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::models {
namespace {

using ::testing::ElementsAre;

void Add(Graph& graph, std::string name,
         const std::vector<std::string>& shape) {
  Value value;
  value.name = std::move(name);
  value.has_shape = true;
  for (const std::string& size : shape) {
    value.shape.push_back(*SymExpr::Parse(size));
  }
  graph.inputs.push_back(static_cast<ValueId>(graph.values.size()));
  graph.values.push_back(std::move(value));
}

std::vector<std::string> Shapes(const Graph& graph) {
  std::vector<std::string> shapes;
  for (const Value& value : graph.values) {
    std::string text;
    for (const SymExpr& size : value.shape) {
      text += (text.empty() ? "" : ", ") + size.ToString();
    }
    shapes.push_back(text.empty() ? value.sym_value.ToString() : text);
  }
  return shapes;
}

TEST(NameSizesTest, SizesAreCalledAsTheFirstInputThatHasThem) {
  Graph graph;
  graph.batch_symbol = "s36";
  Add(graph, "dense", {"s36", "13"});
  Add(graph, "hist", {"s2"});
  Add(graph, "hist_weights", {"s2"});
  Add(graph, "hist_offsets", {"s36 + 1"});
  Add(graph, "steps", {"s36", "s7", "2*s7 + s2"});
  Add(graph, "x.y", {"s11"});
  Add(graph, "own", {"N"});
  graph.symbols = {{"s36", 1, 100}, {"s2", 0, 7}, {"u0", 0, 1}};
  Value number;
  number.kind = ValueKind::kSymInt;
  number.sym_value = *SymExpr::Parse("s2*s36 + u0");
  graph.values.push_back(number);

  NameSizes(graph);
  EXPECT_EQ(graph.batch_symbol, "batch");
  EXPECT_THAT(
      Shapes(graph),
      ElementsAre("batch, 13", "hist", "hist", "batch + 1",
                  SymExpr::Parse("batch")->ToString() + ", steps_1, " +
                      SymExpr::Parse("2*steps_1 + hist")->ToString(),
                  "x_y", "N", SymExpr::Parse("hist*batch + u0")->ToString()));
  EXPECT_EQ(graph.symbols[0].symbol, "batch");
  EXPECT_EQ(graph.symbols[0].max, 100);
  EXPECT_EQ(graph.symbols[1].symbol, "hist");
  EXPECT_EQ(graph.symbols[2].symbol, "u0");
}

// Names that are taken, or no names, leave PyTorch's.
TEST(NameSizesTest, NoTwoSizesShareAName) {
  Graph graph;
  graph.batch_symbol = "s0";
  Add(graph, "x", {"s0", "batch"});
  Add(graph, "a.b", {"s1"});
  Add(graph, "a_b", {"s2"});
  Add(graph, "7", {"s3"});
  NameSizes(graph);
  EXPECT_EQ(graph.batch_symbol, "s0");
  EXPECT_THAT(Shapes(graph), ElementsAre("s0, batch", "a_b", "s2", "s3"));
}

}  // namespace
}  // namespace refract::models
