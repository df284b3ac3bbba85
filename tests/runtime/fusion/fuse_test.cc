// What is merged, that LibTorch agrees, and that a cut anywhere through a
// merged group changes no bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/base/random_seed.h"
#include "tests/runtime/testing/expect_right.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::SymExpr;
using models::ValueId;
using testing::Bool;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::Float;
using testing::GraphBuilder;
using testing::Int;
using testing::Ints;
using testing::List;
using testing::Must;
using testing::Ref;
using testing::Sym;

unsigned Seed() {
  static const unsigned seed = base::RandomSeed();
  return seed;
}

// Whole against LibTorch, and against every cut in two and in three.
void ExpectRight(GraphBuilder& builder, const std::vector<base::Tensor>& inputs,
                 float tolerance) {
  SCOPED_TRACE(absl::StrCat("seed ", Seed()));
  testing::ExpectLibTorchs(builder, inputs, tolerance);
  testing::ExpectCutsChangeNothing(builder, inputs);
}

base::Tensor RandomTensor(std::initializer_list<int64_t> dims,
                          std::mt19937& random) {
  size_t count = 1;
  for (int64_t dim : dims) count *= static_cast<size_t>(dim);
  return testing::MakeTensor<float>(dims, testing::RandomFloats(count, random));
}

// Bags of `tables` tables, their pairwise products with a dense vector, and a
// layer over them. `copies`: how often the model writes the products.
struct Dlrm {
  Dlrm(int tables, int64_t width, bool permute, int copies = 1) {
    std::mt19937 random(Seed());
    const SymExpr b = Sym("b");
    const GraphBuilder::Result rows = {DType::kFloat32, {b, width}};
    std::vector<ValueId> features = {
        builder.Input("dense", DType::kFloat32, {b, width})};
    inputs.push_back(RandomTensor({kBatch, width}, random));
    for (int t = 0; t < tables; ++t) {
      const auto table = builder.Weight<float>(
          absl::StrCat("table", t), {50, width},
          testing::RandomFloats(50 * static_cast<size_t>(width), random));
      const auto ids =
          builder.Input(absl::StrCat("ids", t), DType::kInt64, {b});
      std::vector<int64_t> values;
      for (int64_t i = 0; i < kBatch; ++i) {
        values.push_back(static_cast<int64_t>(random() % 50));
      }
      inputs.push_back(testing::MakeTensor<int64_t>({kBatch}, values));
      features.push_back(
          builder.Node("aten.embedding.default",
                       {Ref("weight", table), Ref("indices", ids)}, rows));
    }
    const int64_t count = tables + 1;
    std::vector<int64_t> places;
    for (int64_t i = 1; i < count; ++i) {
      for (int64_t j = 0; j < i; ++j) places.push_back(i * count + j);
    }
    const auto pairs = static_cast<int64_t>(places.size());
    const auto index = builder.Weight<int64_t>("places", {pairs}, places);
    std::vector<ValueId> pieces = {features[0]};
    for (int i = 0; i < copies; ++i) {
      pieces.push_back(Products(features, width, permute, index, pairs));
    }
    const int64_t columns = width + copies * pairs;
    const auto joined = builder.Node("aten.cat.default",
                                     {List("tensors", pieces), Int("dim", 1)},
                                     {DType::kFloat32, {b, columns}});
    const auto weight = builder.Weight<float>(
        "w", {20, columns},
        testing::RandomFloats(20 * static_cast<size_t>(columns), random));
    const auto bias =
        builder.Weight<float>("bias", {20}, testing::RandomFloats(20, random));
    const GraphBuilder::Result layer = {DType::kFloat32, {b, 20}};
    const auto linear = builder.Node(
        "aten.linear.default",
        {Ref("input", joined), Ref("weight", weight), Ref("bias", bias)},
        layer);
    builder.Output(
        builder.Node("aten.relu.default", {Ref("self", linear)}, layer));
    builder.graph().batch_symbol = "b";
  }

  ValueId Products(const std::vector<ValueId>& features, int64_t width,
                   bool permute, ValueId index, int64_t pairs) {
    const SymExpr b = Sym("b");
    const auto count = static_cast<int64_t>(features.size());
    const auto stacked = builder.Node(
        "aten.stack.default", {List("tensors", features), Int("dim", 1)},
        {DType::kFloat32, {b, count, width}});
    const GraphBuilder::Result turned_like = {DType::kFloat32,
                                              {b, width, count}};
    const auto turned =
        permute ? builder.Node("aten.permute.default",
                               {Ref("self", stacked), Ints("dims", {0, 2, 1})},
                               turned_like)
                : builder.Node(
                      "aten.transpose.int",
                      {Ref("self", stacked), Int("dim0", -2), Int("dim1", -1)},
                      turned_like);
    const auto products = builder.Node(
        "aten.bmm.default", {Ref("self", stacked), Ref("mat2", turned)},
        {DType::kFloat32, {b, count, count}});
    const auto flat = builder.Node("aten.flatten.using_ints",
                                   {Ref("self", products), Int("start_dim", 1)},
                                   {DType::kFloat32, {b, count * count}});
    return builder.Node("aten.index_select.default",
                        {Ref("self", flat), Int("dim", 1), Ref("index", index)},
                        {DType::kFloat32, {b, pairs}});
  }

  static constexpr int64_t kBatch = 9;
  GraphBuilder builder;
  std::vector<base::Tensor> inputs;
};

TEST(FuseTest, DlrmIsThreeSteps) {
  for (const bool permute : {false, true}) {
    Dlrm dlrm(3, 8, permute);
    EXPECT_THAT(
        testing::KernelsOf(dlrm.builder),
        ElementsAre("look_ups/3", "interaction", "columns/2+linear+bias+relu"));
    ExpectRight(dlrm.builder, dlrm.inputs, 1e-5f);
  }
}

TEST(FuseTest, ATransposeMayBeReadBySeveralProducts) {
  std::mt19937 random(Seed());
  for (const bool is_output : {false, true}) {
    GraphBuilder builder;
    const SymExpr b = Sym("b");
    const auto keys = builder.Input("keys", DType::kFloat32, {b, 7, 20});
    std::vector<base::Tensor> inputs;
    inputs.push_back(RandomTensor({3, 7, 20}, random));
    for (const int64_t rows : {2, 5}) {
      const auto queries = builder.Input(absl::StrCat("queries", rows),
                                         DType::kFloat32, {b, rows, 20});
      inputs.push_back(RandomTensor({3, rows, 20}, random));
      const auto turned =
          builder.Node("aten.transpose.int",
                       {Ref("self", keys), Int("dim0", 1), Int("dim1", 2)},
                       {DType::kFloat32, {b, 20, 7}});
      builder.Output(builder.Node("aten.bmm.default",
                                  {Ref("self", queries), Ref("mat2", turned)},
                                  {DType::kFloat32, {b, rows, 7}}));
      if (is_output) builder.Output(turned);
    }
    builder.graph().batch_symbol = "b";
    if (is_output) {
      EXPECT_THAT(testing::KernelsOf(builder),
                  ElementsAre("permute", "bmm", "bmm"));
    } else {
      EXPECT_THAT(testing::KernelsOf(builder), ElementsAre("bmm", "bmm"));
    }
    ExpectRight(builder, inputs, 1e-5f);
  }
}

TEST(FuseTest, InteractionOfMoreVectorsThanAPanel) {
  Dlrm dlrm(26, 24, false);
  EXPECT_THAT(testing::KernelsOf(dlrm.builder), Contains("interaction"));
  ExpectRight(dlrm.builder, dlrm.inputs, 1e-5f);
}

TEST(FuseTest, StackThatIsReadElsewhereStays) {
  Dlrm dlrm(2, 4, false);
  const models::Graph& graph = dlrm.builder.graph();
  dlrm.builder.Output(graph.nodes[2].outputs[0]);  // the stack
  EXPECT_THAT(testing::KernelsOf(dlrm.builder), Contains("stack"));
  EXPECT_THAT(testing::KernelsOf(dlrm.builder), Contains("interaction"));
  ExpectRight(dlrm.builder, dlrm.inputs, 1e-5f);
}

TEST(FuseTest, ErrorsNameTheTableOfAMergedLookUp) {
  Dlrm dlrm(3, 4, false);
  dlrm.inputs[2].as<int64_t>()[1] = 50;
  const auto result = testing::RunWhole(dlrm.builder, dlrm.inputs);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()),
              ::testing::AllOf(::testing::HasSubstr("table1"),
                               ::testing::HasSubstr("50")));
}

// What a factorisation machine, attention and products of pairs sum: chains
// with operands that broadcast, over the last dimensions, others and all.
TEST(FuseTest, ChainsAreSummedWithoutBeingStored) {
  SCOPED_TRACE(absl::StrCat("seed ", Seed()));
  std::mt19937 random(Seed());
  const std::vector<std::pair<std::vector<int64_t>, bool>> sums = {
      {{1}, false}, {{1}, true},  {{2}, false}, {{1, 2}, false},
      {{-1}, true}, {{0}, false}, {{}, false}};
  for (const auto& [dims, keep] : sums) {
    // Some sums to a block, one, and parts of one.
    for (const auto& [steps, width] : std::vector<std::pair<int64_t, int64_t>>{
             {5, 7}, {26, 16}, {1, 33}, {40, 150}, {3, 2500}, {9, 1}}) {
      SCOPED_TRACE(absl::StrCat(steps, " × ", width));
      for (const char* op : {"sum.dim_IntList", "mean.dim"}) {
        GraphBuilder builder;
        const SymExpr b = Sym("b");
        const GraphBuilder::Result like = {DType::kFloat32, {b, steps, width}};
        const auto x = builder.Input("x", DType::kFloat32, {b, steps, width});
        const auto w = builder.Input("w", DType::kFloat32, {b, steps, 1});
        const auto squares =
            builder.Node("aten.pow.Tensor_Scalar",
                         {Ref("self", x), Int("exponent", 2)}, like);
        const auto weighted = builder.Node(
            "aten.mul.Tensor", {Ref("self", squares), Ref("other", w)}, like);
        std::vector<SymExpr> result;
        for (int64_t d = 0; d < 3; ++d) {
          const bool summed =
              dims.empty() ||
              std::any_of(dims.begin(), dims.end(),
                          [&](int64_t dim) { return (dim + 3) % 3 == d; });
          if (!summed) result.push_back(like.shape[static_cast<size_t>(d)]);
          if (summed && keep) result.push_back(1);
        }
        builder.Output(builder.Node(
            absl::StrCat("aten.", op),
            {Ref("self", weighted), Ints("dim", dims), Bool("keepdim", keep)},
            {DType::kFloat32, result}));
        builder.graph().batch_symbol = "b";
        EXPECT_THAT(
            testing::KernelsOf(builder),
            ElementsAre(op[0] == 's' ? "square+mul+sum" : "square+mul+mean"));
        for (const int64_t batch : {4, 1}) {
          std::vector<base::Tensor> inputs;
          inputs.push_back(RandomTensor({batch, steps, width}, random));
          inputs.push_back(RandomTensor({batch, steps, 1}, random));
          // Terms of one sign: what cancels leaves the rounding of the others.
          for (float& each : inputs[1].as<float>()) each = std::abs(each);
          testing::ExpectLibTorchs(builder, inputs, 2e-5f);
          // Sums over the batch are no rows of it, and so no part's.
          if (dims.empty() || dims[0] == 0) continue;
          testing::ExpectCutsChangeNothing(builder, inputs);
        }
      }
    }
  }
}

// Models slice the columns of one matrix wherever they use them.
TEST(FuseTest, WhatIsAskedForTwiceIsMadeOnce) {
  std::mt19937 random(Seed());
  GraphBuilder builder;
  const SymExpr b = Sym("b");
  const auto x = builder.Input("x", DType::kFloat32, {b, 4});
  const auto table = builder.Weight<float>("t", {3, 2}, {0, 1, 2, 3, 4, 5});
  const auto row = [&](int64_t column) {
    const auto one =
        builder.Node("aten.slice.Tensor",
                     {Ref("self", x), Int("dim", 1), Int("start", column),
                      Int("end", column + 1)},
                     {DType::kFloat32, {b, 1}});
    const auto ids = builder.Node("aten.to.dtype",
                                  {Ref("self", one), {"dtype", DType::kInt64}},
                                  {DType::kInt64, {b, 1}});
    return builder.Node("aten.embedding.default",
                        {Ref("weight", table), Ref("indices", ids)},
                        {DType::kFloat32, {b, 1, 2}});
  };
  const auto scaled = [&](ValueId rows, double factor) {
    return builder.Node("aten.mul.Tensor",
                        {Ref("self", rows), Float("other", factor)},
                        {DType::kFloat32, {b, 1, 2}});
  };
  const auto first = row(1);
  const auto again = row(1);
  const auto other = row(2);
  builder.Output(first);
  builder.Output(again);  // another place for the same
  builder.Output(builder.Node("aten.add.Tensor",
                              {Ref("self", again), Ref("other", other)},
                              {DType::kFloat32, {b, 1, 2}}));
  builder.Output(scaled(first, 0.0));
  builder.Output(scaled(first, -0.0));  // not the same
  builder.graph().batch_symbol = "b";
  EXPECT_THAT(testing::KernelsOf(builder),
              ElementsAre("slice", "cast", "slice", "cast", "look_ups/2", "add",
                          "mul", "mul"));
  std::vector<base::Tensor> inputs;
  inputs.push_back(
      testing::MakeTensor<float>({3, 4}, {0, 1, 2, 0, 0, 2, 0, 0, 0, 0, 1, 0}));
  ExpectRight(builder, inputs, 0);
}

// A 0 that one operator of a merged chain reads is not another's −0.
TEST(FuseTest, NumbersOfAChainKeepTheirSign) {
  GraphBuilder builder;
  const SymExpr b = Sym("b");
  const GraphBuilder::Result like = {DType::kFloat32, {b, 2}};
  const auto x = builder.Input("x", DType::kFloat32, {b, 2});
  const auto same = builder.Node("aten.add.Tensor",
                                 {Ref("self", x), Float("other", 0.0)}, like);
  const auto zero = builder.Node(
      "aten.mul.Tensor", {Ref("self", same), Float("other", -0.0)}, like);
  builder.Output(
      builder.Node("aten.reciprocal.default", {Ref("self", zero)}, like));
  builder.graph().batch_symbol = "b";
  EXPECT_EQ(testing::KernelsOf(builder).size(), 1);
  std::vector<base::Tensor> inputs;
  inputs.push_back(testing::MakeTensor<float>({2, 2}, {1, 2, 3, 4}));
  ExpectRight(builder, inputs, 0);
}

// A sum over anything but the last dimension takes its terms in one order,
// whether one row or many lie after it.
TEST(FuseTest, SumsOfOneRowAreThoseOfARowAmongOthers) {
  SCOPED_TRACE(absl::StrCat("seed ", Seed()));
  std::mt19937 random(Seed());
  constexpr int64_t kTerms = 26;
  for (const bool chain : {false, true}) {
    GraphBuilder builder;
    const SymExpr b = Sym("b");
    const auto x = builder.Input("x", DType::kFloat32, {b, kTerms});
    const auto turned = builder.Node("aten.t.default", {Ref("self", x)},
                                     {DType::kFloat32, {kTerms, b}});
    const auto terms =
        chain ? builder.Node("aten.square.default", {Ref("self", turned)},
                             {DType::kFloat32, {kTerms, b}})
              : turned;
    builder.Output(builder.Node("aten.sum.dim_IntList",
                                {Ref("self", terms), Ints("dim", {0})},
                                {DType::kFloat32, {b}}));
    builder.graph().batch_symbol = "b";
    std::vector<base::Tensor> inputs;
    inputs.push_back(RandomTensor({40, kTerms}, random));
    ExpectRight(builder, inputs, 1e-5f);
    const auto all = Must(testing::RunWhole(builder, inputs));
    for (size_t row = 0; row < 40; ++row) {
      std::vector<base::Tensor> alone;
      const float* const first = inputs[0].as<float>().data() + row * kTerms;
      alone.push_back(testing::MakeTensor<float>(
          {1, kTerms}, std::vector<float>(first, first + kTerms)));
      const auto one = Must(testing::RunWhole(builder, alone));
      ASSERT_EQ(one[0].view().as<float>()[0], all[0].view().as<float>()[row])
          << row;
    }
  }
}

TEST(FuseTest, ChainsThatAreReadElsewhereAreStored) {
  std::mt19937 random(Seed());
  GraphBuilder builder;
  const SymExpr b = Sym("b");
  const auto x = builder.Input("x", DType::kFloat32, {b, 6});
  const auto square = builder.Node("aten.square.default", {Ref("self", x)},
                                   {DType::kFloat32, {b, 6}});
  builder.Output(square);
  builder.Output(builder.Node("aten.sum.dim_IntList",
                              {Ref("self", square), Ints("dim", {1})},
                              {DType::kFloat32, {b}}));
  builder.graph().batch_symbol = "b";
  EXPECT_THAT(testing::KernelsOf(builder), ElementsAre("square", "sum"));
  std::vector<base::Tensor> inputs;
  inputs.push_back(RandomTensor({3, 6}, random));
  ExpectRight(builder, inputs, 1e-5f);
}

// The ways in which models write the pairs of an item's vectors.
enum class Pieces { kFlatCat, kStackedCat, kWhole };

struct Pairs {
  // `copies`: how often the model writes them.
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

TEST(FuseTest, PairsOfVectorsThatComeInPieces) {
  for (const auto& [pieces, kernels] :
       std::vector<std::pair<Pieces, std::vector<std::string>>>{
           {Pieces::kFlatCat, {"interaction"}},
           {Pieces::kStackedCat, {"view", "view", "interaction"}},
           {Pieces::kWhole, {"view", "interaction"}}}) {
    for (const bool upper : {false, true}) {
      for (const bool flatten : {false, true}) {
        Pairs pairs(pieces, upper, flatten, Seed());
        EXPECT_THAT(testing::KernelsOf(pairs.builder),
                    ::testing::ElementsAreArray(kernels));
        ExpectRight(pairs.builder, pairs.inputs, 1e-5f);
      }
    }
  }
}

// Equal nodes are one step before anything is fused.
TEST(FuseTest, PairsThatAreWrittenTwiceAreMadeOnce) {
  Dlrm dlrm(3, 8, false, 2);
  EXPECT_THAT(
      testing::KernelsOf(dlrm.builder),
      ElementsAre("look_ups/3", "interaction", "columns/3+linear+bias+relu"));
  ExpectRight(dlrm.builder, dlrm.inputs, 1e-5f);
  for (const bool flatten : {false, true}) {
    Pairs pairs(Pieces::kFlatCat, false, flatten, Seed(), 2);
    EXPECT_THAT(testing::KernelsOf(pairs.builder), ElementsAre("interaction"));
    ExpectRight(pairs.builder, pairs.inputs, 1e-5f);
  }
}

TEST(FuseTest, VectorsThatAreReadElsewhereAreReadAsTheyLie) {
  Pairs pairs(Pieces::kStackedCat, false, false, Seed());
  const models::Graph& graph = pairs.builder.graph();
  pairs.builder.Output(graph.nodes[2].outputs[0]);  // the cat
  EXPECT_THAT(testing::KernelsOf(pairs.builder),
              ElementsAre("view", "view", "cat", "interaction"));
  ExpectRight(pairs.builder, pairs.inputs, 1e-5f);
}

// Rows and columns that broadcast are LibTorch's, none with one as well.
TEST(FuseTest, PairsThatBroadcastAreNoPairs) {
  std::mt19937 random(Seed());
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

// Columns of products that are flattened otherwise are no pairs.
TEST(FuseTest, RowsOfProductsAreNoPairs) {
  std::mt19937 random(Seed());
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

// A look-up whose ids are rows of another's: no group.
TEST(FuseTest, LookUpsThatNeedEachOtherStayApart) {
  GraphBuilder builder;
  const SymExpr b = Sym("b");
  const auto next = builder.Weight<int64_t>("next", {4, 1}, {3, 2, 1, 0});
  const auto table =
      builder.Weight<float>("t", {4, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  const auto ids = builder.Input("ids", DType::kInt64, {b});
  const auto hop = builder.Node("aten.embedding.default",
                                {Ref("weight", next), Ref("indices", ids)},
                                {DType::kInt64, {b, 1}});
  const auto flat =
      builder.Node("aten.squeeze.dim", {Ref("self", hop), Int("dim", 1)},
                   {DType::kInt64, {b}});
  builder.Output(builder.Node("aten.embedding.default",
                              {Ref("weight", table), Ref("indices", flat)},
                              {DType::kFloat32, {b, 2}}));
  builder.graph().batch_symbol = "b";
  EXPECT_THAT(testing::KernelsOf(builder),
              ElementsAre("embedding", "view", "embedding"));
  std::vector<base::Tensor> inputs;
  inputs.push_back(testing::MakeTensor<int64_t>({3}, {0, 3, 1}));
  ExpectRight(builder, inputs, 0);
}

// A cross layer of DCN-v2, low rank: x' = x0 × (U (V x) + b) + x.
TEST(FuseTest, CrossLayer) {
  std::mt19937 random(Seed());
  GraphBuilder builder;
  const SymExpr b = Sym("b");
  const GraphBuilder::Result wide = {DType::kFloat32, {b, 37}};
  const auto start = builder.Input("x", DType::kFloat32, {b, 37});
  auto x = start;
  for (int layer = 0; layer < 2; ++layer) {
    const auto down = builder.Weight<float>(absl::StrCat("v", layer), {5, 37},
                                            testing::RandomFloats(185, random));
    const auto up = builder.Weight<float>(absl::StrCat("u", layer), {37, 5},
                                          testing::RandomFloats(185, random));
    const auto bias = builder.Weight<float>(absl::StrCat("b", layer), {37},
                                            testing::RandomFloats(37, random));
    const auto low = builder.Node("aten.linear.default",
                                  {Ref("input", x), Ref("weight", down)},
                                  {DType::kFloat32, {b, 5}});
    const auto high = builder.Node(
        "aten.linear.default",
        {Ref("input", low), Ref("weight", up), Ref("bias", bias)}, wide);
    const auto product = builder.Node(
        "aten.mul.Tensor", {Ref("self", start), Ref("other", high)}, wide);
    x = builder.Node("aten.add.Tensor", {Ref("self", product), Ref("other", x)},
                     wide);
  }
  builder.Output(x);
  builder.graph().batch_symbol = "b";
  EXPECT_THAT(testing::KernelsOf(builder),
              ElementsAre("linear", "linear+bias+mul+add", "linear",
                          "linear+bias+mul+add"));
  std::vector<base::Tensor> inputs;
  inputs.push_back(RandomTensor({11, 37}, random));
  ExpectRight(builder, inputs, 1e-5f);
}

// Every form in which a product is written, over odd shapes.
TEST(FuseTest, ProductsAreLibTorchs) {
  std::mt19937 random(Seed());
  const struct {
    const char* op;
    std::vector<int64_t> a;
    std::vector<int64_t> b;
    const char* other;
  } cases[] = {
      {"aten.mm.default", {7, 19}, {19, 33}, "mat2"},
      {"aten.matmul.default", {7, 19}, {19, 33}, "other"},
      {"aten.matmul.default", {3, 5, 19}, {19, 4}, "other"},
      {"aten.matmul.default", {3, 5, 19}, {3, 19, 17}, "other"},
      {"aten.matmul.default", {2, 3, 5, 8}, {2, 3, 8, 6}, "other"},
      {"aten.bmm.default", {4, 1, 6}, {4, 6, 21}, "mat2"},
      {"aten.bmm.default", {4, 1, 6}, {4, 6, 48}, "mat2"},
      {"aten.bmm.default", {2, 3, 7}, {2, 7, 16}, "mat2"},
      {"aten.bmm.default", {3, 17, 7}, {3, 7, 16}, "mat2"},
      {"aten.linear.default", {2, 3, 9}, {18, 9}, "weight"},
      {"aten.linear.default", {0, 9}, {18, 9}, "weight"},
  };
  for (const auto& product : cases) {
    for (const bool constant : {false, true}) {
      if (constant && product.b.size() > 2) continue;
      SCOPED_TRACE(product.op);
      GraphBuilder builder;
      std::vector<base::Tensor> inputs;
      ValueId ids[2];
      for (int t = 0; t < 2; ++t) {
        const auto& dims = t == 0 ? product.a : product.b;
        std::vector<SymExpr> shape;
        size_t count = 1;
        for (int64_t dim : dims) {
          shape.push_back(dim);
          count *= static_cast<size_t>(dim);
        }
        const auto values = testing::RandomFloats(count, random);
        if (t == 1 && constant) {
          ids[t] = builder.Weight<float>("w", dims, values);
          continue;
        }
        ids[t] = builder.Input(absl::StrCat("x", t), DType::kFloat32, shape);
        inputs.push_back(Must(base::Tensor::Allocate(
            DType::kFloat32, base::Dims(dims.begin(), dims.end()))));
        std::copy(values.begin(), values.end(),
                  inputs.back().as<float>().begin());
      }
      std::vector<SymExpr> shape;
      for (size_t d = 0; d + 1 < product.a.size(); ++d) {
        shape.push_back(product.a[d]);
      }
      const bool linear = std::string(product.op) == "aten.linear.default";
      shape.push_back(linear ? product.b[0] : product.b.back());
      const char* self = linear ? "input" : "self";
      builder.Output(builder.Node(
          product.op, {Ref(self, ids[0]), Ref(product.other, ids[1])},
          {DType::kFloat32, shape}));
      ASSERT_NE(testing::KernelsOf(builder)[0], "libtorch");
      ExpectRight(builder, inputs, 1e-5f);
    }
  }
}

TEST(FuseTest, ProductsThatDoNotFitAreRefused) {
  GraphBuilder builder;
  const auto a = builder.Input("a", DType::kFloat32, {Sym("x"), Sym("y")});
  const auto b = builder.Input("b", DType::kFloat32, {Sym("z"), Sym("w")});
  builder.Output(builder.Node("aten.mm.default",
                              {Ref("self", a), Ref("mat2", b)},
                              {DType::kFloat32, {Sym("x"), Sym("w")}}));
  std::mt19937 random(1);
  std::vector<base::Tensor> inputs;
  inputs.push_back(RandomTensor({2, 3}, random));
  inputs.push_back(RandomTensor({4, 5}, random));
  const auto result = testing::RunWhole(builder, inputs);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()),
              ::testing::AllOf(::testing::HasSubstr("n0"),
                               ::testing::HasSubstr("[2, 3]"),
                               ::testing::HasSubstr("[4, 5]")));
}

// Rows of one request do not change a row's result: it is that of the row
// alone, bit for bit, where every step is native.
TEST(FuseTest, ARowsResultDoesNotDependOnItsBatch) {
  Dlrm dlrm(5, 16, false);
  const auto all = Must(testing::RunWhole(dlrm.builder, dlrm.inputs));
  for (int64_t row = 0; row < Dlrm::kBatch; ++row) {
    std::vector<base::Tensor> one;
    for (const base::Tensor& input : dlrm.inputs) {
      base::TensorView view = input.view();
      const size_t bytes = view.bytes / Dlrm::kBatch;
      view.dims[0] = 1;
      view.data += static_cast<size_t>(row) * bytes;
      view.bytes = bytes;
      one.push_back(Must(base::Tensor::CopyOf(view)));
    }
    const auto alone = Must(testing::RunWhole(dlrm.builder, one));
    EXPECT_EQ(
        std::memcmp(alone[0].data(),
                    all[0].data() + static_cast<size_t>(row) * alone[0].bytes(),
                    alone[0].bytes()),
        0)
        << "row " << row;
  }
}

}  // namespace
}  // namespace refract::runtime
