#include "tools/common_options.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::tools {
namespace {

using models::Graph;
using models::SymExpr;
using models::Value;
using models::ValueId;
using ::testing::HasSubstr;

ValueId Add(Graph& graph, std::string name, std::vector<SymExpr> shape) {
  Value value;
  value.name = std::move(name);
  value.dtype = base::DType::kFloat32;
  value.has_shape = true;
  value.shape = std::move(shape);
  graph.values.push_back(value);
  return static_cast<ValueId>(graph.values.size()) - 1;
}

// Convolves `steps` columns with a kernel of 3; `rows` ids besides.
Graph Sequence() {
  Graph graph;
  graph.batch_symbol = std::string("b");
  const SymExpr steps = SymExpr::Symbol("steps");
  graph.inputs = {Add(graph, "x", {SymExpr::Symbol("b"), steps}),
                  Add(graph, "ids", {SymExpr::Symbol("rows")})};
  models::Node conv;
  conv.name = std::string("conv");
  conv.op = std::string("aten.convolution.default");
  conv.outputs = {Add(graph, "y", {SymExpr::Symbol("b"), steps - 2})};
  graph.values[conv.outputs[0]].producer = 0;
  graph.nodes.push_back(conv);
  return graph;
}

std::string Refusal(const Graph& graph, const std::string& symbol,
                    int64_t size) {
  const absl::Status status = CheckGivenSizes(graph, {{symbol, size}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(CommonOptionsTest, ASizeMayBeCalledAsAnInput) {
  Graph graph = Sequence();
  EXPECT_EQ(ParseSizes({"ids=7", "x=9"}, graph)->at("rows"), 7);
  EXPECT_EQ(ParseSizes({"ids=7", "x=9"}, graph)->at("steps"), 9);
  EXPECT_EQ(ParseSizes({"ids=7/request"}, graph)->at("rows"), -7);
  graph.values[graph.inputs[1]].shape.push_back(SymExpr::Symbol("wide"));
  const absl::Status several = ParseSizes({"ids=7"}, graph).status();
  EXPECT_THAT(
      std::string(several.message()),
      testing::AllOf(HasSubstr("--size ids=7"), HasSubstr("rows, wide")));
  const absl::Status none = ParseSizes({"y=7"}, graph).status();
  EXPECT_THAT(
      std::string(none.message()),
      testing::AllOf(HasSubstr("--size y=7"), HasSubstr("steps, rows")));
}

TEST(CommonOptionsTest, SizesThatTheModelDoesNotRunAtAreRefusedWithTheRange) {
  Graph graph = Sequence();
  EXPECT_TRUE(CheckGivenSizes(graph, {}).ok());
  EXPECT_TRUE(CheckGivenSizes(graph, {{"steps", 2}, {"rows", 0}}).ok());
  EXPECT_THAT(Refusal(graph, "steps", 1),
              HasSubstr("--size steps=1: the model takes 2 and more: conv"));
  EXPECT_THAT(Refusal(graph, "steps", 0), HasSubstr("takes 2 and more"));

  graph.symbols = {{"steps", 4, 50}, {"rows", 2, 30}};
  EXPECT_TRUE(CheckGivenSizes(graph, {{"steps", 4}}).ok());
  EXPECT_TRUE(CheckGivenSizes(graph, {{"steps", 50}}).ok());
  EXPECT_EQ(Refusal(graph, "steps", 3),
            "--size steps=3: the model takes 4 to 50");
  EXPECT_EQ(Refusal(graph, "steps", 51),
            "--size steps=51: the model takes 4 to 50");
  // Given per item, limited per request.
  EXPECT_TRUE(CheckGivenSizes(graph, {{"rows", 1}}).ok());
  graph.symbols = {{"steps", 4}};
  EXPECT_EQ(Refusal(graph, "steps", 3),
            "--size steps=3: the model takes 4 and more");
}

}  // namespace
}  // namespace refract::tools
