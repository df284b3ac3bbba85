// Element-wise chains and sums over them: no intermediate result is stored,
// LibTorch agrees, and no cut changes a bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/fusion/expect_fused.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::SymExpr;
using testing::Bool;
using ::testing::ElementsAre;
using testing::ExpectFused;
using testing::Float;
using testing::GraphBuilder;
using testing::Int;
using testing::Ints;
using testing::Must;
using testing::RandomTensor;
using testing::Ref;
using testing::Sym;

// The sums of factorisation machines, attention and products of pairs: chains
// with operands that broadcast, over the last dimensions, others and all.
TEST(FuseChainTest, ChainsAreSummedWithoutBeingStored) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
  const std::vector<std::pair<std::vector<int64_t>, bool>> sums = {
      {{1}, false}, {{1}, true},  {{2}, false}, {{1, 2}, false},
      {{-1}, true}, {{0}, false}, {{}, false}};
  for (const auto& [dims, keep] : sums) {
    // A block with several sums, with one, and with a part of a sum.
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
          // Terms of one sign, because cancellation would leave only rounding
          // errors.
          for (float& each : inputs[1].as<float>()) each = std::abs(each);
          testing::ExpectLibTorchs(builder, inputs, 2e-5f);
          // Sums over the batch have no rows, so parts cannot be compared by
          // row.
          if (dims.empty() || dims[0] == 0) continue;
          testing::ExpectCutsChangeNothing(builder, inputs);
        }
      }
    }
  }
}

// 0 and −0 as inputs of a fused chain stay distinct.
TEST(FuseChainTest, NumbersOfAChainKeepTheirSign) {
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
  ExpectFused(builder, inputs, 0);
}

// A sum over a dimension other than the last adds its terms in one order,
// whether one row or many follow the dimension.
TEST(FuseChainTest, SumsOfOneRowAreThoseOfARowAmongOthers) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
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
    ExpectFused(builder, inputs, 1e-5f);
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

TEST(FuseChainTest, ChainsThatAreReadElsewhereAreStored) {
  std::mt19937 random(base::ProgramSeed());
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
  ExpectFused(builder, inputs, 1e-5f);
}

}  // namespace
}  // namespace refract::runtime
