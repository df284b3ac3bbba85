#include "partitioner/costs/work.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::partitioner {
namespace {

using models::Graph;
using models::Node;
using models::SymbolBindings;
using models::SymExpr;
using models::Value;
using models::ValueId;
using models::ValueRef;

// Numbers below are worked out by hand from the shapes.
class WorkTest : public testing::Test {
 protected:
  ValueId Tensor(std::vector<SymExpr> shape,
                 base::DType dtype = base::DType::kFloat32,
                 std::string weight = "") {
    Value value;
    value.name = "v" + std::to_string(graph_.values.size());
    value.dtype = dtype;
    value.has_shape = true;
    value.shape = std::move(shape);
    value.weight = std::move(weight);
    graph_.values.push_back(std::move(value));
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  std::optional<Work> Of(std::string op,
                         std::vector<models::NamedArgument> args,
                         std::vector<ValueId> outputs) {
    Node node;
    node.name = "n";
    node.op = std::move(op);
    node.args = std::move(args);
    node.outputs = std::move(outputs);
    return WorkOf(graph_, node, sizes_);
  }

  const SymExpr b_ = SymExpr::Symbol("b");
  const SymbolBindings sizes_ = {{"b", 10}, {"n", 40}};
  Graph graph_;
};

TEST_F(WorkTest, LinearIsTwoFlopsPerWeightAndRow) {
  const ValueId x = Tensor({b_, 64});
  const ValueId w = Tensor({32, 64}, base::DType::kFloat32, "w");
  const ValueId bias = Tensor({32}, base::DType::kFloat32, "bias");
  const ValueId y = Tensor({b_, 32});
  const std::optional<Work> work = Of("aten.linear.default",
                                      {{"input", ValueRef{x}},
                                       {"weight", ValueRef{w}},
                                       {"bias", ValueRef{bias}}},
                                      {y});
  ASSERT_TRUE(work);
  EXPECT_EQ(work->flops, 2 * 10 * 64 * 32);
  EXPECT_EQ(work->weight_bytes, 4 * (32 * 64 + 32));
  EXPECT_EQ(work->bytes, 4 * (10 * 64 + 32 * 64 + 32 + 10 * 32));
}

TEST_F(WorkTest, TransposedWeightsAreWeights) {
  const ValueId w = Tensor({32, 64}, base::DType::kFloat32, "w");
  const ValueId transposed = Tensor({64, 32});
  Node permute;
  permute.name = "permute";
  permute.op = "aten.permute.default";
  permute.args = {{"self", ValueRef{w}}};
  permute.outputs = {transposed};
  graph_.nodes.push_back(permute);
  graph_.values[transposed].producer = 0;
  const ValueId x = Tensor({b_, 64});
  const ValueId y = Tensor({b_, 32});
  const std::optional<Work> work =
      Of("aten.mm.default",
         {{"self", ValueRef{x}}, {"mat2", ValueRef{transposed}}}, {y});
  ASSERT_TRUE(work);
  EXPECT_EQ(work->weight_bytes, 4 * 32 * 64);
}

TEST_F(WorkTest, BatchedProducts) {
  const ValueId p = Tensor({b_, 27, 16});
  const ValueId q = Tensor({b_, 16, 27});
  const ValueId y = Tensor({b_, 27, 27});
  const double flops = 2.0 * 10 * 27 * 27 * 16;
  EXPECT_EQ(Of("aten.bmm.default",
               {{"self", ValueRef{p}}, {"mat2", ValueRef{q}}}, {y})
                ->flops,
            flops);
  EXPECT_EQ(Of("aten.einsum.default",
               {{"equation", std::string("bik, bkj -> bij")},
                {"tensors", models::ValueList{p, q}}},
               {y})
                ->flops,
            flops);
}

TEST_F(WorkTest, ConvolutionsCountTheWeightsBehindEachElement) {
  // Two groups: 6 channels in, 4 out, a window of 3.
  const ValueId x = Tensor({b_, 6, 20});
  const ValueId y = Tensor({b_, 4, 18});
  const ValueId w = Tensor({4, 3, 3}, base::DType::kFloat32, "w");
  EXPECT_EQ(Of("aten.conv1d.default",
               {{"input", ValueRef{x}}, {"weight", ValueRef{w}}}, {y})
                ->flops,
            2.0 * 10 * 4 * 18 * (3 * 3));
  // Back from 18 to 20 steps: each of 4 channels in gives 3 of a group.
  const ValueId back = Tensor({4, 3, 3}, base::DType::kFloat32, "back");
  for (const bool decomposed : {false, true}) {
    EXPECT_EQ(Of(decomposed ? "aten.convolution.default"
                            : "aten.conv_transpose1d.default",
                 {{"input", ValueRef{y}},
                  {"weight", ValueRef{back}},
                  {"transposed", decomposed}},
                 {x})
                  ->flops,
              2.0 * 10 * 4 * 18 * (3 * 3));
  }
  // Time first: a window of 3, 6 channels in, 4 out.
  const ValueId time = Tensor({20, b_, 6});
  const ValueId out = Tensor({18, b_, 4});
  const ValueId tbc = Tensor({3, 6, 4}, base::DType::kFloat32, "tbc");
  EXPECT_EQ(Of("aten.conv_tbc.default",
               {{"self", ValueRef{time}}, {"weight", ValueRef{tbc}}}, {out})
                ->flops,
            2.0 * 18 * 10 * 4 * (3 * 6));
}

TEST_F(WorkTest, Attention) {
  const ValueId q = Tensor({b_, 4, 7, 8});
  const ValueId k = Tensor({b_, 4, 50, 8});
  const ValueId v = Tensor({b_, 4, 50, 16});
  const ValueId y = Tensor({b_, 4, 7, 16});
  EXPECT_EQ(
      Of("aten.scaled_dot_product_attention.default",
         {{"query", ValueRef{q}}, {"key", ValueRef{k}}, {"value", ValueRef{v}}},
         {y})
          ->flops,
      2.0 * 10 * 4 * 7 * 50 * (8 + 16));
}

TEST_F(WorkTest, TensordotSumsOverTheDimensionsItNames) {
  const ValueId x = Tensor({b_, 8, 16});
  const ValueId w = Tensor({8, 16, 5}, base::DType::kFloat32, "w");
  const ValueId y = Tensor({b_, 5});
  const models::IntList summed = {{1}, {-1}};
  const models::IntList others = {{0}, {1}};
  EXPECT_EQ(Of("aten.tensordot.default",
               {{"self", ValueRef{x}},
                {"other", ValueRef{w}},
                {"dims_self", summed},
                {"dims_other", others}},
               {y})
                ->flops,
            2.0 * 10 * 5 * 8 * 16);
}

TEST_F(WorkTest, RecurrentLayersApplyEveryWeightAtEveryStep) {
  const ValueId x = Tensor({b_, 7, 16});
  const ValueId h = Tensor({1, b_, 32});
  const ValueId w_ih = Tensor({96, 16}, base::DType::kFloat32, "w_ih");
  const ValueId w_hh = Tensor({96, 32}, base::DType::kFloat32, "w_hh");
  const ValueId y = Tensor({b_, 7, 32});
  EXPECT_EQ(Of("aten.gru.input",
               {{"input", ValueRef{x}},
                {"hx", ValueRef{h}},
                {"params", models::ValueList{w_ih, w_hh}}},
               {y})
                ->flops,
            2.0 * 10 * 7 * (96 * 16 + 96 * 32));
}

TEST_F(WorkTest, LookUpsReadTheirRowsAndNotTheTable) {
  const ValueId table = Tensor({1000000, 16}, base::DType::kFloat32, "table");
  const ValueId ids = Tensor({SymExpr::Symbol("n")}, base::DType::kInt64);
  const ValueId offsets = Tensor({b_}, base::DType::kInt64);
  const ValueId y = Tensor({b_, 16});
  const std::optional<Work> bag = Of("aten.embedding_bag.padding_idx",
                                     {{"weight", ValueRef{table}},
                                      {"indices", ValueRef{ids}},
                                      {"offsets", ValueRef{offsets}}},
                                     {y, models::kNoValue});
  ASSERT_TRUE(bag);
  EXPECT_EQ(bag->flops, 40 * 16);
  EXPECT_EQ(bag->bytes, 40 * 16 * 4 + 40 * 8 + 10 * 16 * 4);
  EXPECT_EQ(bag->weight_bytes, 0);
  EXPECT_EQ(bag->rows, 40);
}

TEST_F(WorkTest, ViewsAreFreeAndElementwiseIsOnePerElement) {
  const ValueId x = Tensor({b_, 8});
  const ValueId y = Tensor({b_, 8});
  EXPECT_EQ(Of("aten.view.default", {{"self", ValueRef{x}}}, {y})->bytes, 0);
  const std::optional<Work> relu =
      Of("aten.relu.default", {{"self", ValueRef{x}}}, {y});
  EXPECT_EQ(relu->flops, 80);
  EXPECT_EQ(relu->bytes, 2 * 80 * 4);
}

TEST_F(WorkTest, WhatIsNotKnownIsNotCounted) {
  const ValueId x = Tensor({SymExpr()});
  const ValueId other = Tensor({SymExpr::Symbol("unbound")});
  const ValueId y = Tensor({b_});
  EXPECT_FALSE(Of("aten.relu.default", {{"self", ValueRef{x}}}, {y}));
  EXPECT_FALSE(Of("aten.relu.default", {{"self", ValueRef{other}}}, {y}));
  EXPECT_FALSE(Of("mylib.op.default", {{"self", ValueRef{y}}}, {y}));
  EXPECT_FALSE(Of("aten.gru.input", {{"input", ValueRef{y}}}, {y}));
}

TEST_F(WorkTest, SizesFollowTheBatchWhereTheyCountRows) {
  graph_.batch_symbol = "b";
  graph_.symbols = {{"steps", 1, 40}};
  graph_.inputs = {Tensor({b_, SymExpr::Symbol("steps")}),
                   Tensor({SymExpr::Symbol("n")}), Tensor({b_ + 1}),
                   Tensor({SymExpr::Symbol("m")})};
  const SymbolBindings sizes =
      SizesForBatch(graph_, 128, {{"n", 3}, {"steps", 50}});
  EXPECT_EQ(sizes.at("b"), 128);
  EXPECT_EQ(sizes.at("n"), 3 * 128);
  EXPECT_EQ(sizes.at("m"), 128);
  EXPECT_EQ(sizes.at("steps"), 40);  // the declared maximum
}

// TorchRec's list of the ids of two tables, and Meta's matrix with a row of ids
// for each table.
TEST_F(WorkTest, IdsInBagsGrowWithTheItems) {
  graph_.batch_symbol = "b";
  const ValueId list = Tensor({SymExpr::Symbol("n")}, base::DType::kInt64);
  const ValueId lengths = Tensor({2, b_}, base::DType::kInt64);
  const ValueId matrix = Tensor({2, SymExpr::Symbol("k")}, base::DType::kInt64);
  const ValueId offsets = Tensor({2, b_}, base::DType::kInt64);
  graph_.inputs = {list, lengths, matrix, offsets};
  const ValueId table = Tensor({10, 4}, base::DType::kFloat32, "t");
  const auto call = [&](const std::string& op,
                        std::vector<models::NamedArgument> args,
                        int results = 1) {
    Node node{.name = op, .op = op, .args = std::move(args)};
    for (int i = 0; i < results; ++i) {
      const ValueId result = Tensor({b_}, base::DType::kInt64);
      graph_.values[result].producer =
          static_cast<models::NodeId>(graph_.nodes.size());
      node.outputs.push_back(result);
    }
    graph_.nodes.push_back(std::move(node));
    return graph_.nodes.back().outputs;
  };
  const auto bags = [&](ValueId ids, ValueId of) {
    call("aten.embedding_bag.default", {{"weight", ValueRef{table}},
                                        {"indices", ValueRef{ids}},
                                        {"offsets", ValueRef{of}}});
  };
  const ValueId ends =
      call("aten.cumsum.default", {{"self", ValueRef{lengths}}})[0];
  for (const ValueId piece :
       call("aten.split_with_sizes.default", {{"self", ValueRef{list}}}, 2)) {
    bags(piece, ends);
  }
  for (int64_t row = 0; row < 2; ++row) {
    const auto part = [&](ValueId of) {
      return call(
          "aten.select.int",
          {{"self", ValueRef{of}}, {"dim", int64_t{0}}, {"index", row}})[0];
    };
    bags(part(matrix), part(offsets));
  }
  EXPECT_THAT(
      RowSymbols(graph_),
      ::testing::ElementsAre(::testing::Pair("k", 1), ::testing::Pair("n", 2)));
  EXPECT_EQ(SizesForBatch(graph_, 5, {}).at("n"), 10);
  EXPECT_EQ(SizesForBatch(graph_, 5, {}).at("k"), 5);
  EXPECT_EQ(SizesForBatch(graph_, 5, {{"k", 3}}).at("k"), 15);
}

TEST_F(WorkTest, StepsThatNobodySaidAreEnoughForEveryTensor) {
  graph_.batch_symbol = "b";
  const SymExpr steps = SymExpr::Symbol("steps");
  graph_.inputs = {Tensor({b_, steps})};
  Node conv;
  conv.name = "conv";
  conv.op = "aten.convolution.default";
  conv.outputs = {Tensor({b_, 4, steps - 2})};  // a kernel of 3
  graph_.values[conv.outputs[0]].producer = 0;
  graph_.nodes.push_back(conv);
  EXPECT_EQ(SizesForBatch(graph_, 7, {}).at("steps"), 3);
  EXPECT_EQ(SizesForBatch(graph_, 7, {}).at("b"), 7);
  EXPECT_EQ(SizesForBatch(graph_, 7, {{"steps", 9}}).at("steps"), 9);
  EXPECT_TRUE(CheckSizes(graph_, SizesForBatch(graph_, 7, {})).ok());

  // Given sizes are kept, and refused if the model cannot run with them.
  const SymbolBindings few = SizesForBatch(graph_, 7, {{"steps", 1}});
  EXPECT_EQ(few.at("steps"), 1);
  const absl::Status status = CheckSizes(graph_, few);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "conv (aten.convolution.default): size -1 in dimension 2 at "
            "steps = 1 (--size changes it)");

  graph_.symbols = {{"steps", 1, 2}};  // no size helps
  EXPECT_EQ(SizesForBatch(graph_, 7, {}).at("steps"), 2);
}

TEST_F(WorkTest, SlopeParts) {
  const PerItem slope = Slope(7 + 3 * 128, 7 + 3 * 256, 128, 256);
  EXPECT_EQ(slope.per_item, 3);
  EXPECT_EQ(slope.per_request, 7);
}

}  // namespace
}  // namespace refract::partitioner
