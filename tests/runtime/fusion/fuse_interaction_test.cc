// The pairwise products of an item's vectors in all forms that models use: each
// is one step, LibTorch agrees, and no cut changes a bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/fusion/dlrm.h"
#include "tests/runtime/fusion/expect_fused.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::SymExpr;
using models::ValueId;
using ::testing::Contains;
using testing::Dlrm;
using ::testing::ElementsAre;
using testing::ExpectFused;
using testing::GraphBuilder;
using testing::Int;
using testing::Ints;
using testing::List;
using testing::RandomTensor;
using testing::Ref;
using testing::Sym;

TEST(FuseInteractionTest, DlrmIsThreeSteps) {
  for (const bool permute : {false, true}) {
    Dlrm dlrm(3, 8, permute);
    EXPECT_THAT(
        testing::KernelsOf(dlrm.builder),
        ElementsAre("look_ups/3", "interaction", "columns/2+linear+bias+relu"));
    ExpectFused(dlrm.builder, dlrm.inputs, 1e-5f);
  }
}

TEST(FuseInteractionTest, InteractionOfMoreVectorsThanAPanel) {
  Dlrm dlrm(26, 24, false);
  EXPECT_THAT(testing::KernelsOf(dlrm.builder), Contains("interaction"));
  ExpectFused(dlrm.builder, dlrm.inputs, 1e-5f);
}

TEST(FuseInteractionTest, StackThatIsReadElsewhereStays) {
  Dlrm dlrm(2, 4, false);
  const models::Graph& graph = dlrm.builder.graph();
  dlrm.builder.Output(graph.nodes[2].outputs[0]);  // the stack
  EXPECT_THAT(testing::KernelsOf(dlrm.builder), Contains("stack"));
  EXPECT_THAT(testing::KernelsOf(dlrm.builder), Contains("interaction"));
  ExpectFused(dlrm.builder, dlrm.inputs, 1e-5f);
}

// The stack of two vectors of `width` values, and the pair `place` of its four
// products.
void StackedPair(GraphBuilder& builder, const SymExpr& width, int64_t place) {
  const SymExpr b = Sym("b");
  const auto x = builder.Input("x", DType::kFloat32, {b, width});
  const auto y = builder.Input("y", DType::kFloat32, {b, width});
  const auto both = builder.Node("aten.stack.default",
                                 {List("tensors", {x, y}), Int("dim", 1)},
                                 {DType::kFloat32, {b, 2, width}});
  const auto turned = builder.Node(
      "aten.transpose.int", {Ref("self", both), Int("dim0", 1), Int("dim1", 2)},
      {DType::kFloat32, {b, width, 2}});
  const auto products =
      builder.Node("aten.bmm.default", {Ref("self", both), Ref("mat2", turned)},
                   {DType::kFloat32, {b, 2, 2}});
  const auto flat = builder.Node("aten.flatten.using_ints",
                                 {Ref("self", products), Int("start_dim", 1)},
                                 {DType::kFloat32, {b, 4}});
  const auto index = builder.Weight<int64_t>("places", {1}, {place});
  builder.Output(
      builder.Node("aten.index_select.default",
                   {Ref("self", flat), Int("dim", 1), Ref("index", index)},
                   {DType::kFloat32, {b, 1}}));
}

TEST(FuseInteractionTest, RequestsMayBringTheWidth) {
  std::mt19937 random(base::ProgramSeed());
  GraphBuilder builder;
  StackedPair(builder, Sym("w"), 2);
  EXPECT_THAT(testing::KernelsOf(builder), ElementsAre("interaction"));
  for (const int64_t width : {0, 1, 20}) {
    std::vector<base::Tensor> inputs;
    inputs.push_back(RandomTensor({3, width}, random));
    inputs.push_back(RandomTensor({3, width}, random));
    ExpectFused(builder, inputs, 1e-5f);
  }
}

// index.Tensor counts negative places from the end, index_select refuses them.
TEST(FuseInteractionTest, NegativePlacesAreRefused) {
  std::mt19937 random(base::ProgramSeed());
  GraphBuilder builder;
  StackedPair(builder, 5, -2);
  std::vector<base::Tensor> inputs;
  inputs.push_back(RandomTensor({3, 5}, random));
  inputs.push_back(RandomTensor({3, 5}, random));
  EXPECT_EQ(testing::RunWhole(builder, inputs).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(FuseInteractionTest, ErrorsNameTheTableOfAMergedLookUp) {
  Dlrm dlrm(3, 4, false);
  dlrm.inputs[2].as<int64_t>()[1] = 50;
  const auto result = testing::RunWhole(dlrm.builder, dlrm.inputs);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()),
              ::testing::AllOf(::testing::HasSubstr("table1"),
                               ::testing::HasSubstr("50")));
}

// The forms in which models select the pairs of an item's vectors.
enum class Pieces { kFlatCat, kStackedCat, kWhole };

struct Pairs {
  // `copies`: number of times that the model has them.
  Pairs(Pieces pieces, bool upper, bool flatten, unsigned seed,
        int copies = 1) {
    std::mt19937 random(seed);
    const SymExpr b = Sym("b");
    const int64_t width = 12;
    const int64_t block = 20;  // vectors of the second piece
    const int64_t count = pieces == Pieces::kWhole ? block : block + 1;
    const auto dense = builder.Input("dense", DType::kFloat32, {b, width});
    inputs.push_back(RandomTensor({kBatch, width}, random));
    const auto all = builder.Input("all", DType::kFloat32, {b, block * width});
    inputs.push_back(RandomTensor({kBatch, block * width}, random));
    const GraphBuilder::Result like = {DType::kFloat32, {b, count, width}};
    const auto view = [&](ValueId from, int64_t vectors) {
      return builder.Node(
          "aten.view.default",
          {Ref("self", from), Ints("size", {-1, vectors, width})},
          {DType::kFloat32, {b, vectors, width}});
    };
    ValueId vectors = models::kNoValue;
    switch (pieces) {
      case Pieces::kFlatCat:
        vectors =
            view(builder.Node("aten.cat.default",
                              {List("tensors", {dense, all}), Int("dim", 1)},
                              {DType::kFloat32, {b, count * width}}),
                 count);
        break;
      case Pieces::kStackedCat: {
        const auto one = builder.Node("aten.unsqueeze.default",
                                      {Ref("self", dense), Int("dim", 1)},
                                      {DType::kFloat32, {b, 1, width}});
        vectors = builder.Node(
            "aten.cat.default",
            {List("tensors", {one, view(all, block)}), Int("dim", -2)}, like);
        break;
      }
      case Pieces::kWhole:
        vectors = view(all, block);
        break;
    }
    std::vector<int64_t> rows, columns, places;
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        rows.push_back(upper ? j : i);
        columns.push_back(upper ? i : j - count);  // from the end
        places.push_back(i * count + j);
      }
    }
    const auto pairs = static_cast<int64_t>(rows.size());
    std::vector<ValueId> indices = {models::kNoValue};
    if (flatten) {
      indices.push_back(builder.Weight<int64_t>("places", {pairs}, places));
    } else {
      indices.push_back(builder.Weight<int64_t>("rows", {pairs}, rows));
      indices.push_back(builder.Weight<int64_t>("columns", {pairs}, columns));
    }
    for (int i = 0; i < copies; ++i) {
      const auto turned =
          builder.Node("aten.transpose.int",
                       {Ref("self", vectors), Int("dim0", 1), Int("dim1", 2)},
                       {DType::kFloat32, {b, width, count}});
      auto products = builder.Node("aten.bmm.default",
                                   {Ref("self", vectors), Ref("mat2", turned)},
                                   {DType::kFloat32, {b, count, count}});
      if (flatten) {
        products = builder.Node("aten.flatten.using_ints",
                                {Ref("self", products), Int("start_dim", 1)},
                                {DType::kFloat32, {b, count * count}});
      }
      builder.Output(
          builder.Node("aten.index.Tensor",
                       {Ref("self", products), List("indices", indices)},
                       {DType::kFloat32, {b, pairs}}));
    }
    builder.graph().batch_symbol = "b";
  }

  static constexpr int64_t kBatch = 5;
  GraphBuilder builder;
  std::vector<base::Tensor> inputs;
};

TEST(FuseInteractionTest, PairsOfVectorsThatComeInPieces) {
  for (const auto& [pieces, kernels] :
       std::vector<std::pair<Pieces, std::vector<std::string>>>{
           {Pieces::kFlatCat, {"interaction"}},
           {Pieces::kStackedCat, {"view", "view", "interaction"}},
           {Pieces::kWhole, {"view", "interaction"}}}) {
    for (const bool upper : {false, true}) {
      for (const bool flatten : {false, true}) {
        Pairs pairs(pieces, upper, flatten, base::ProgramSeed());
        EXPECT_THAT(testing::KernelsOf(pairs.builder),
                    ::testing::ElementsAreArray(kernels));
        ExpectFused(pairs.builder, pairs.inputs, 1e-5f);
      }
    }
  }
}

// Equal nodes are one step before anything is fused.
TEST(FuseInteractionTest, PairsThatAreWrittenTwiceAreMadeOnce) {
  Dlrm dlrm(3, 8, false, 2);
  EXPECT_THAT(
      testing::KernelsOf(dlrm.builder),
      ElementsAre("look_ups/3", "interaction", "columns/3+linear+bias+relu"));
  ExpectFused(dlrm.builder, dlrm.inputs, 1e-5f);
  for (const bool flatten : {false, true}) {
    Pairs pairs(Pieces::kFlatCat, false, flatten, base::ProgramSeed(), 2);
    EXPECT_THAT(testing::KernelsOf(pairs.builder), ElementsAre("interaction"));
    ExpectFused(pairs.builder, pairs.inputs, 1e-5f);
  }
}

TEST(FuseInteractionTest, VectorsThatAreReadElsewhereAreReadAsTheyLie) {
  Pairs pairs(Pieces::kStackedCat, false, false, base::ProgramSeed());
  const models::Graph& graph = pairs.builder.graph();
  pairs.builder.Output(graph.nodes[2].outputs[0]);  // the cat
  EXPECT_THAT(testing::KernelsOf(pairs.builder),
              ElementsAre("view", "view", "cat", "interaction"));
  ExpectFused(pairs.builder, pairs.inputs, 1e-5f);
}

// Rows and columns that broadcast are left to LibTorch, also together with
// plain ones.
TEST(FuseInteractionTest, PairsThatBroadcastAreNoPairs) {
  std::mt19937 random(base::ProgramSeed());
  for (const int64_t rows : {0, 3}) {
    for (const bool swapped : {false, true}) {
      SCOPED_TRACE(absl::StrCat(rows, " ", swapped));
      GraphBuilder builder;
      const SymExpr b = Sym("b");
      const auto x = builder.Input("x", DType::kFloat32, {b, 4, 5});
      const auto turned =
          builder.Node("aten.transpose.int",
                       {Ref("self", x), Int("dim0", 1), Int("dim1", 2)},
                       {DType::kFloat32, {b, 5, 4}});
      const auto products = builder.Node("aten.bmm.default",
                                         {Ref("self", x), Ref("mat2", turned)},
                                         {DType::kFloat32, {b, 4, 4}});
      const auto many = builder.Weight<int64_t>(
          "many", {rows}, std::vector<int64_t>(static_cast<size_t>(rows), 2));
      const auto one = builder.Weight<int64_t>("one", {1}, {1});
      builder.Output(builder.Node(
          "aten.index.Tensor",
          {Ref("self", products),
           List("indices",
                swapped ? std::vector<ValueId>{models::kNoValue, one, many}
                        : std::vector<ValueId>{models::kNoValue, many, one})},
          {DType::kFloat32, {b, rows}}));
      std::vector<base::Tensor> inputs;
      inputs.push_back(RandomTensor({3, 4, 5}, random));
      testing::ExpectLibTorchs(builder, inputs, 1e-5f);
    }
  }
}

// Columns of products in another flattening are not pairs.
TEST(FuseInteractionTest, RowsOfProductsAreNoPairs) {
  std::mt19937 random(base::ProgramSeed());
  for (const bool block : {false, true}) {
    GraphBuilder builder;
    const SymExpr b = Sym("b");
    const auto x = builder.Input("x", DType::kFloat32, {b, 4});
    const auto y = builder.Input("y", DType::kFloat32, {b, 4});
    const auto both = builder.Node("aten.stack.default",
                                   {List("tensors", {x, y}), Int("dim", 1)},
                                   {DType::kFloat32, {b, 2, 4}});
    const auto turned =
        builder.Node("aten.transpose.int",
                     {Ref("self", both), Int("dim0", 1), Int("dim1", 2)},
                     {DType::kFloat32, {b, 4, 2}});
    const auto products = builder.Node("aten.bmm.default",
                                       {Ref("self", both), Ref("mat2", turned)},
                                       {DType::kFloat32, {b, 2, 2}});
    const auto rows = builder.Node(
        "aten.view.default", {Ref("self", products), Ints("size", {-1, 2})},
        {DType::kFloat32, {b * 2, 2}});
    const auto index = builder.Weight<int64_t>("i", {1}, {1});
    builder.Output(
        block ? builder.Node("aten.index.Tensor",
                             {Ref("self", rows),
                              List("indices", {models::kNoValue, index})},
                             {DType::kFloat32, {b * 2, 1}})
              : builder.Node(
                    "aten.index_select.default",
                    {Ref("self", rows), Int("dim", 1), Ref("index", index)},
                    {DType::kFloat32, {b * 2, 1}}));
    std::vector<base::Tensor> inputs;
    inputs.push_back(RandomTensor({3, 4}, random));
    inputs.push_back(RandomTensor({3, 4}, random));
    testing::ExpectLibTorchs(builder, inputs, 1e-5f);
  }
}

}  // namespace
}  // namespace refract::runtime
