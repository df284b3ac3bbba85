// Dense layers with rounded weights: the specified values, and the same bits
// wherever a model is cut.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/base/random_seed.h"
#include "tests/runtime/testing/expect_right.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::DenseWeights;
using models::SymExpr;
using models::ValueId;
using ::testing::ElementsAre;
using testing::GraphBuilder;
using testing::Must;
using testing::Ref;
using testing::Sym;

constexpr int64_t kInputs = 37;
constexpr int64_t kHidden = 21;
constexpr int64_t kRows = 5;

// Nearest bfloat16, ties to even, by looking at both neighbours.
float ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto below = std::bit_cast<float>(bits & 0xffff0000u);
  const auto above = std::bit_cast<float>((bits & 0xffff0000u) + 0x10000u);
  const double down = std::abs(static_cast<double>(value) - below);
  const double up = std::abs(static_cast<double>(value) - above);
  if (down != up) return down < up ? below : above;
  return (bits & 0x10000u) == 0 ? below : above;
}

// Weights [outputs, inputs] rounded to the form.
std::vector<float> Rounded(std::vector<float> weights, int64_t inputs,
                           DenseWeights form) {
  const auto outputs = static_cast<int64_t>(weights.size()) / inputs;
  for (int64_t o = 0; o < outputs; ++o) {
    float* const row = weights.data() + o * inputs;
    float most = 0;
    for (int64_t i = 0; i < inputs; ++i)
      most = std::max(most, std::abs(row[i]));
    for (int64_t i = 0; i < inputs; ++i) {
      if (form == DenseWeights::kBFloat16) row[i] = ToBFloat16(row[i]);
      if (form == DenseWeights::kInt8 && most > 0) {
        row[i] = std::nearbyint(row[i] / (most / 127)) * (most / 127);
      }
    }
  }
  return weights;
}

// A layer whose weight is transposed by a separate node, and a usual layer.
struct TwoLayers {
  TwoLayers() : seed(base::RandomSeed()) {
    std::mt19937 random(seed);
    const SymExpr b = Sym("b");
    x = testing::RandomFloats(kRows * kInputs, random);
    first = testing::RandomFloats(kHidden * kInputs, random);
    second = testing::RandomFloats(3 * kHidden, random);
    const ValueId input = builder.Input("x", DType::kFloat32, {b, kInputs});
    const ValueId turned = builder.Node(
        "aten.t.default",
        {Ref("self", builder.Weight<float>("w", {kHidden, kInputs}, first))},
        {DType::kFloat32, {kInputs, kHidden}});
    const ValueId product = builder.Node(
        "aten.mm.default", {Ref("self", input), Ref("mat2", turned)},
        {DType::kFloat32, {b, kHidden}});
    const ValueId hidden =
        builder.Node("aten.relu.default", {Ref("self", product)},
                     {DType::kFloat32, {b, kHidden}});
    builder.Output(builder.Node(
        "aten.linear.default",
        {Ref("input", hidden),
         Ref("weight", builder.Weight<float>("v", {3, kHidden}, second))},
        {DType::kFloat32, {b, 3}}));
    inputs.push_back(testing::MakeTensor<float>({kRows, kInputs}, x));
  }

  // In double precision with the rounded weights.
  std::vector<double> Expected(DenseWeights form) const {
    const auto w = Rounded(first, kInputs, form);
    const auto v = Rounded(second, kHidden, form);
    std::vector<double> out;
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<double> hidden(kHidden, 0.0);
      for (int64_t h = 0; h < kHidden; ++h) {
        for (int64_t i = 0; i < kInputs; ++i) {
          hidden[h] +=
              static_cast<double>(x[r * kInputs + i]) * w[h * kInputs + i];
        }
        hidden[h] = std::max(hidden[h], 0.0);
      }
      for (int64_t o = 0; o < 3; ++o) {
        double sum = 0;
        for (int64_t h = 0; h < kHidden; ++h) {
          sum += hidden[h] * v[o * kHidden + h];
        }
        out.push_back(sum);
      }
    }
    return out;
  }

  static CompileOptions Options(DenseWeights form) {
    CompileOptions options;
    options.config.dense_weights = form;
    return options;
  }

  unsigned seed;
  GraphBuilder builder;
  std::vector<float> x;
  std::vector<float> first;
  std::vector<float> second;
  std::vector<base::Tensor> inputs;
};

class DenseWeightsTest : public ::testing::TestWithParam<DenseWeights> {};

TEST_P(DenseWeightsTest, MultiplyWhatRoundingLeaves) {
  TwoLayers model;
  SCOPED_TRACE(absl::StrCat("seed ", model.seed));
  const auto out = Must(testing::RunWhole(model.builder, model.inputs,
                                          TwoLayers::Options(GetParam())));
  const std::vector<double> expected = model.Expected(GetParam());
  const auto got = out[0].view().as<float>();
  ASSERT_EQ(got.size(), expected.size());
  double scale = 1;
  for (double value : expected) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 1e-5 * scale) << i;
  }
}

TEST_P(DenseWeightsTest, GiveTheSameBitsWhereverTheModelIsCut) {
  TwoLayers model;
  SCOPED_TRACE(absl::StrCat("seed ", model.seed));
  const CompileOptions options = TwoLayers::Options(GetParam());
  const auto whole =
      Must(testing::RunWhole(model.builder, model.inputs, options));
  const models::Graph& graph = model.builder.graph();
  const int count = static_cast<int>(graph.nodes.size());
  // Includes the transpose alone on one node: its result then crosses with each
  // request and is rounded there.
  for (int first = 0; first <= count; ++first) {
    for (int second = first; second <= count; ++second) {
      std::vector<int> stages(count, 0);
      for (int i = first; i < count; ++i) stages[i] = i < second ? 1 : 2;
      auto runner =
          Must(RequestRunner::Split(graph, testing::PlanOf(graph, stages),
                                    model.builder.Weights(), options));
      const auto split = Must(runner->Run(testing::Views(model.inputs)));
      EXPECT_TRUE(testing::SameBits(whole[0], split[0]))
          << "cut before " << first << " and " << second;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, DenseWeightsTest,
                         ::testing::Values(DenseWeights::kFloat32,
                                           DenseWeights::kBFloat16,
                                           DenseWeights::kInt8));

// Every spelling of the layer against linear, bit for bit, and cut before and
// after the node that transposes its weight.
TEST_P(DenseWeightsTest, AreThoseOfProductsThatAreWrittenOtherwise) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (const int64_t width : {int64_t{1}, kInputs}) {
    GraphBuilder builder;
    const SymExpr b = Sym("b");
    const ValueId x = builder.Input("x", DType::kFloat32, {b, 2, width});
    const ValueId weight = builder.Weight<float>(
        "w", {kHidden, width},
        testing::RandomFloats(static_cast<size_t>(kHidden * width), random));
    const ValueId turned = builder.Node("aten.t.default", {Ref("self", weight)},
                                        {DType::kFloat32, {width, kHidden}});
    const GraphBuilder::Result like = {DType::kFloat32, {b, 2, kHidden}};
    builder.Output(builder.Node(
        "aten.linear.default", {Ref("input", x), Ref("weight", weight)}, like));
    for (const ValueId right : {weight, turned}) {
      const bool straight = right == turned;
      builder.Output(builder.Node(
          "aten.einsum.default",
          {{"equation", std::string(straight ? "bik,kj->bij" : "bik,jk->bij")},
           testing::List("tensors", {x, right})},
          like));
      builder.Output(
          builder.Node("aten.tensordot.default",
                       {Ref("self", x), Ref("other", right),
                        testing::Ints("dims_self", {-1}),
                        testing::Ints("dims_other", {straight ? 0 : 1})},
                       like));
    }
    builder.graph().batch_symbol = "b";
    std::vector<base::Tensor> inputs;
    inputs.push_back(testing::MakeTensor<float>(
        {kRows, 2, width},
        testing::RandomFloats(static_cast<size_t>(kRows * 2 * width), random)));
    const CompileOptions options = TwoLayers::Options(GetParam());
    const auto whole = Must(testing::RunWhole(builder, inputs, options));
    for (size_t i = 1; i < whole.size(); ++i) {
      EXPECT_TRUE(testing::SameBits(whole[0], whole[i])) << i;
    }
    testing::ExpectCutsChangeNothing(builder, inputs, options);
  }
}

TEST(DenseWeightsTest, KeepNanAndInfinitiesInSight) {
  for (const float spoilt : {std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::infinity()}) {
    for (const DenseWeights form :
         {DenseWeights::kBFloat16, DenseWeights::kInt8}) {
      SCOPED_TRACE(absl::StrCat(spoilt, " in form ", static_cast<int>(form)));
      GraphBuilder builder;
      const SymExpr b = Sym("b");
      std::vector<float> weights(2 * kInputs, 0.5f);
      weights[3] = spoilt;
      builder.Output(builder.Node(
          "aten.linear.default",
          {Ref("input", builder.Input("x", DType::kFloat32, {b, kInputs})),
           Ref("weight", builder.Weight<float>("w", {2, kInputs}, weights))},
          {DType::kFloat32, {b, 2}}));
      std::vector<base::Tensor> inputs;
      inputs.push_back(testing::MakeTensor<float>(
          {2, kInputs}, std::vector<float>(2 * kInputs, 0.5f)));
      const auto out =
          Must(testing::RunWhole(builder, inputs, TwoLayers::Options(form)));
      const auto got = out[0].view().as<float>();
      for (const int row : {0, 1}) {
        EXPECT_FALSE(std::isfinite(got[2 * row])) << got[2 * row];
        EXPECT_NEAR(got[2 * row + 1], 0.25f * kInputs, 0.1f);
      }
    }
  }
}

TEST(DenseWeightsTest, AreNamedAndTakeLess) {
  TwoLayers model;
  EXPECT_THAT(testing::KernelsOf(model.builder,
                                 TwoLayers::Options(DenseWeights::kBFloat16)),
              ElementsAre("linear/bf16+relu", "linear/bf16"));
  const models::Graph& graph = model.builder.graph();
  std::vector<size_t> bytes;
  for (DenseWeights form :
       {DenseWeights::kFloat32, DenseWeights::kBFloat16, DenseWeights::kInt8}) {
    bytes.push_back(Must(Program::Compile(graph, Part::Whole(graph),
                                          model.builder.Weights(),
                                          TwoLayers::Options(form)))
                        ->packed_weight_bytes());
  }
  // Panels of 16 columns: 32 for 21, 16 for 3.
  EXPECT_EQ(bytes[0], (32 * kInputs + 16 * kHidden) * sizeof(float));
  EXPECT_LE(bytes[1], bytes[0] / 2 + 128);
  EXPECT_LE(bytes[2], bytes[0] / 4 + 128);
}

}  // namespace
}  // namespace refract::runtime
