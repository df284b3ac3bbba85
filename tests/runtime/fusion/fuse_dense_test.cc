// Products with fused neighbours: random graphs against LibTorch and against
// every cut, which leaves some of the operators unfused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Int;
using testing::List;
using testing::Must;
using testing::RandomTensor;
using testing::Ref;
using testing::Sym;

// cat of random pieces → linear → random element-wise operators, over rows [b]
// or [b, s]. Pieces: inputs; inputs expanded over s or over all rows; weights
// expanded; element-wise functions of these.
class RandomDense {
 public:
  RandomDense(unsigned seed, bool deep) : random_(seed), deep_(deep) {
    const int count = 2 + static_cast<int>(random_() % 5);
    std::vector<ValueId> pieces;
    int64_t width = 0;
    for (int i = 0; i < count; ++i) {
      // At least one full input, since expanded inputs do not show the rows.
      const int64_t piece = Width();
      pieces.push_back(i == count / 2 ? Full(piece) : Piece(piece));
      width += piece;
    }
    const auto joined = builder_.Node(
        "aten.cat.default",
        {List("tensors", pieces), Int("dim", deep_ && Chance() ? 2 : -1)},
        Like(width));
    const int64_t columns = Width();
    const auto weight = Weight({columns, width});
    std::vector<models::NamedArgument> args = {Ref("input", joined),
                                               Ref("weight", weight)};
    if (Chance()) args.push_back(Ref("bias", Weight({columns})));
    auto x = builder_.Node("aten.linear.default", args, Like(columns));
    const auto after = random_() % 4;
    if (after > 0) x = Unary(x, columns);
    if (after > 1) {
      const auto other = Chance() ? Weight({columns}) : Piece(columns);
      x = builder_.Node(Chance() ? "aten.mul.Tensor" : "aten.sub.Tensor",
                        {Ref("self", x), Ref("other", other)}, Like(columns));
      // The same operand twice.
      x = builder_.Node("aten.add.Tensor", {Ref("self", x), Ref("other", x)},
                        Like(columns));
    }
    builder_.Output(x);
    if (after > 2) {
      GraphBuilder::Result truth = Like(columns);
      truth.dtype = DType::kBool;
      builder_.Output(
          builder_.Node("aten.gt.Tensor",
                        {Ref("self", x), Ref("other", Full(columns))}, truth));
    }
    builder_.graph().batch_symbol = "b";
  }

  GraphBuilder& builder() { return builder_; }

  std::vector<base::Tensor> Request(int64_t batch, int64_t steps) {
    std::vector<base::Tensor> inputs;
    for (const std::vector<SymExpr>& shape : shapes_) {
      base::Dims dims;
      for (const SymExpr& dim : shape) {
        dims.push_back(*dim.Evaluate({{"b", batch}, {"s", steps}}));
      }
      inputs.push_back(RandomTensor(dims, random_));
    }
    return inputs;
  }

 private:
  bool Chance() { return random_() % 2 == 0; }
  // One panel and several; widths below and above the in-place threshold.
  int64_t Width() {
    static constexpr int64_t kWidths[] = {1, 5, 16, 33, 97, 128};
    return kWidths[random_() % std::size(kWidths)];
  }

  GraphBuilder::Result Like(int64_t width) const {
    if (deep_) return {DType::kFloat32, {Sym("b"), Sym("s"), width}};
    return {DType::kFloat32, {Sym("b"), width}};
  }

  ValueId Input(std::vector<SymExpr> shape) {
    shapes_.push_back(shape);
    return builder_.Input(absl::StrCat("x", shapes_.size()), DType::kFloat32,
                          std::move(shape));
  }
  ValueId Full(int64_t width) { return Input(Like(width).shape); }
  ValueId Weight(std::vector<int64_t> dims) {
    size_t count = 1;
    for (int64_t dim : dims) count *= static_cast<size_t>(dim);
    return builder_.Weight<float>(absl::StrCat("w", num_weights_++), dims,
                                  testing::RandomFloats(count, random_));
  }

  ValueId Expanded(int64_t width) {
    std::vector<SymExpr> shape(deep_ ? 2 : 1, SymExpr(1));
    if (deep_ && random_() % 3 > 0) shape[0] = Sym("b");
    if (deep_ && random_() % 6 == 0) shape = {SymExpr(1), Sym("s")};
    shape.push_back(width);
    const auto from = Input(shape);
    // An expansion to the width of a full input.
    return builder_.Node("aten.expand_as.default",
                         {Ref("self", from), Ref("other", Full(width))},
                         Like(width));
  }

  ValueId Unary(ValueId x, int64_t width) {
    static constexpr const char* kOps[] = {
        "aten.sigmoid.default", "aten.relu.default", "aten.tanh.default",
        "aten.abs.default"};
    return builder_.Node(kOps[random_() % std::size(kOps)], {Ref("self", x)},
                         Like(width));
  }

  ValueId Piece(int64_t width) {
    switch (random_() % 5) {
      case 0:
        return Full(width);
      case 1:
        return Expanded(width);
      case 2: {
        const auto expanded = Expanded(width);
        const auto full = Full(width);
        return builder_.Node("aten.sub.Tensor",
                             {Ref("self", expanded), Ref("other", full)},
                             Like(width));
      }
      case 3:
        return Unary(Expanded(width), width);
      default: {
        const auto product = builder_.Node(
            "aten.mul.Tensor",
            {Ref("self", Full(width)), Ref("other", Weight({width}))},
            Like(width));
        return Unary(product, width);
      }
    }
  }

  std::mt19937 random_;
  const bool deep_;
  GraphBuilder builder_;
  std::vector<std::vector<SymExpr>> shapes_;
  int num_weights_ = 0;
};

TEST(FuseDenseTest, RandomGraphsAreLibTorchsHoweverTheyAreCut) {
  const unsigned first = base::RandomSeed();
  for (unsigned round = 0; round < 16; ++round) {
    SCOPED_TRACE(absl::StrCat("seed ", first + round));
    RandomDense graph(first + round, round % 2 == 0);
    EXPECT_THAT(testing::KernelsOf(graph.builder()),
                Contains(HasSubstr("columns/")));
    for (const auto& [batch, steps] :
         {std::pair<int64_t, int64_t>{1, 1}, {2, 3}, {37, 19}, {3, 0}}) {
      SCOPED_TRACE(absl::StrCat("batch ", batch, ", steps ", steps));
      const auto request = graph.Request(batch, steps);
      testing::ExpectLibTorchs(graph.builder(), request, 5e-5f);
      if (batch != 2) continue;
      for (const auto form :
           {models::DenseWeights::kFloat32, models::DenseWeights::kBFloat16,
            models::DenseWeights::kInt8}) {
        CompileOptions options;
        options.config.dense_weights = form;
        testing::ExpectCutsChangeNothing(graph.builder(), request, options);
      }
    }
    if (HasFailure()) break;
  }
}

// DIN's attention: (query, step, their difference, their product) of every step
// of every user.
struct Attention {
  Attention() {
    const SymExpr b = Sym("b");
    const SymExpr s = Sym("s");
    const GraphBuilder::Result wide = {DType::kFloat32, {b, s, 32}};
    query = builder.Input("query", DType::kFloat32, {b, 32});
    steps = builder.Input("steps", DType::kFloat32, {b, s, 32});
    const auto row = builder.Node("aten.unsqueeze.default",
                                  {Ref("self", query), Int("dim", 1)},
                                  {DType::kFloat32, {b, SymExpr(1), 32}});
    expanded = builder.Node("aten.expand_as.default",
                            {Ref("self", row), Ref("other", steps)}, wide);
    const auto difference = builder.Node(
        "aten.sub.Tensor", {Ref("self", expanded), Ref("other", steps)}, wide);
    const auto product = builder.Node(
        "aten.mul.Tensor", {Ref("self", expanded), Ref("other", steps)}, wide);
    const auto joined =
        builder.Node("aten.cat.default",
                     {List("tensors", {expanded, steps, difference, product}),
                      Int("dim", 2)},
                     {DType::kFloat32, {b, s, 128}});
    std::mt19937 random(7);
    const auto weight = builder.Weight<float>(
        "w", {20, 128}, testing::RandomFloats(20 * 128, random));
    const auto bias =
        builder.Weight<float>("bias", {20}, testing::RandomFloats(20, random));
    const GraphBuilder::Result narrow = {DType::kFloat32, {b, s, 20}};
    const auto linear = builder.Node(
        "aten.linear.default",
        {Ref("input", joined), Ref("weight", weight), Ref("bias", bias)},
        narrow);
    builder.Output(
        builder.Node("aten.sigmoid.default", {Ref("self", linear)}, narrow));
    builder.graph().batch_symbol = "b";
  }

  static std::vector<base::Tensor> Request(int64_t batch, int64_t steps) {
    std::mt19937 random(static_cast<unsigned>(batch));
    std::vector<base::Tensor> inputs;
    inputs.push_back(RandomTensor({batch, 32}, random));
    inputs.push_back(RandomTensor({batch, steps, 32}, random));
    return inputs;
  }

  GraphBuilder builder;
  ValueId query;
  ValueId steps;
  ValueId expanded;
};

TEST(FuseDenseTest, AttentionOfPairsIsOneStep) {
  Attention attention;
  EXPECT_THAT(testing::KernelsOf(attention.builder),
              ElementsAre("view", "columns/4+sub+mul+linear+bias+sigmoid"));
  const auto request = Attention::Request(9, 50);
  testing::ExpectLibTorchs(attention.builder, request, 1e-5f);
  testing::ExpectCutsChangeNothing(attention.builder, request);
}

TEST(FuseDenseTest, WhatOthersReadIsMadeAsWell) {
  Attention attention;
  attention.builder.Output(attention.expanded);
  EXPECT_THAT(testing::KernelsOf(attention.builder),
              ElementsAre("view", "expand_as",
                          "columns/4+sub+mul+linear+bias+sigmoid"));
  const auto request = Attention::Request(3, 4);
  testing::ExpectLibTorchs(attention.builder, request, 1e-5f);
}

// The steps of one user do not show the number of users.
TEST(FuseDenseTest, ARowsResultDoesNotDependOnItsBatch) {
  Attention attention;
  const auto request = Attention::Request(5, 11);
  const auto all = Must(testing::RunWhole(attention.builder, request));
  for (int64_t user = 0; user < 5; ++user) {
    std::vector<base::Tensor> one;
    for (const base::Tensor& input : request) {
      base::TensorView view = input.view();
      view.bytes /= 5;
      view.dims[0] = 1;
      view.data += static_cast<size_t>(user) * view.bytes;
      one.push_back(Must(base::Tensor::CopyOf(view)));
    }
    const auto alone = Must(testing::RunWhole(attention.builder, one));
    EXPECT_EQ(std::memcmp(
                  alone[0].data(),
                  all[0].data() + static_cast<size_t>(user) * alone[0].bytes(),
                  alone[0].bytes()),
              0)
        << "user " << user;
  }
}

// DCN-v2's cross layers in the form with items as columns. Their matrices are
// not rounded by dense_weights.
TEST(FuseDenseTest, MatrixTimesAColumnIsALayer) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (const int64_t width : {3, 16, 53}) {
    GraphBuilder builder;
    const auto column = [](int64_t rows) {
      return GraphBuilder::Result{DType::kFloat32, {Sym("b"), rows, 1}};
    };
    const auto start = builder.Input("x", DType::kFloat32, column(width).shape);
    ValueId x = start;
    for (int layer = 0; layer < 2; ++layer) {
      const auto size = static_cast<size_t>(width);
      const auto matrix =
          builder.Weight<float>(absl::StrCat("w", layer), {width, width},
                                testing::RandomFloats(size * size, random));
      const auto bias =
          builder.Weight<float>(absl::StrCat("bias", layer), {width, 1},
                                testing::RandomFloats(size, random));
      const auto product =
          builder.Node("aten.matmul.default",
                       {Ref("self", matrix), Ref("other", x)}, column(width));
      const auto sum = builder.Node("aten.add.Tensor",
                                    {Ref("self", product), Ref("other", bias)},
                                    column(width));
      const auto crossed =
          builder.Node("aten.mul.Tensor",
                       {Ref("self", start), Ref("other", sum)}, column(width));
      x = builder.Node("aten.add.Tensor",
                       {Ref("self", crossed), Ref("other", x)}, column(width));
    }
    builder.Output(x);
    const auto narrow = builder.Weight<float>(
        "last", {2, width},
        testing::RandomFloats(2 * static_cast<size_t>(width), random));
    builder.Output(builder.Node("aten.matmul.default",
                                {Ref("self", narrow), Ref("other", x)},
                                column(2)));
    builder.graph().batch_symbol = "b";
    EXPECT_THAT(
        testing::KernelsOf(builder),
        ElementsAre("linear+add+mul+add", "linear+add+mul+add", "linear"));
    for (const int64_t batch : {1, 2, 37}) {
      std::vector<base::Tensor> request;
      request.push_back(RandomTensor({batch, width, 1}, random));
      testing::ExpectLibTorchs(builder, request, 5e-5f);
      for (const auto form :
           {models::DenseWeights::kFloat32, models::DenseWeights::kBFloat16,
            models::DenseWeights::kInt8}) {
        CompileOptions options;
        options.config.dense_weights = form;
        testing::ExpectCutsChangeNothing(builder, request, options);
      }
    }
    std::vector<base::Tensor> wrong;
    wrong.push_back(RandomTensor({2, width, 2}, random));
    EXPECT_EQ(testing::RunWhole(builder, wrong).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// The graph shows the same number of rows for both; a request may still differ.
TEST(FuseDenseTest, PiecesThatDoNotFitAreRefused) {
  GraphBuilder builder;
  const auto a = builder.Input("a", DType::kFloat32, {Sym("b"), Sym("x")});
  const auto c = builder.Input("c", DType::kFloat32, {Sym("d"), Sym("y")});
  const auto joined =
      builder.Node("aten.cat.default", {List("tensors", {a, c}), Int("dim", 1)},
                   {DType::kFloat32, {Sym("b"), Sym("x") + Sym("y")}});
  std::mt19937 random(1);
  const auto weight =
      builder.Weight<float>("w", {3, 5}, testing::RandomFloats(15, random));
  builder.Output(builder.Node("aten.linear.default",
                              {Ref("input", joined), Ref("weight", weight)},
                              {DType::kFloat32, {Sym("b"), 3}}));
  EXPECT_THAT(testing::KernelsOf(builder), ElementsAre("columns/2+linear"));
  const struct {
    base::Dims a;
    base::Dims c;
    const char* message;
  } cases[] = {{{4, 2}, {1, 3}, "cat: [1, 3] does not fit"},
               {{1, 2}, {4, 3}, "cat: [1, 2] does not fit"},
               {{4, 2}, {3, 3}, "do not broadcast"},
               {{4, 2}, {4, 2}, "of 4 columns and [5, 3]"}};
  for (const auto& wrong : cases) {
    std::vector<base::Tensor> inputs;
    inputs.push_back(RandomTensor(wrong.a, random));
    inputs.push_back(RandomTensor(wrong.c, random));
    const auto result = testing::RunWhole(builder, inputs);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(result.status().message()),
                ::testing::AllOf(HasSubstr("n1"), HasSubstr(wrong.message)));
  }
}

}  // namespace
}  // namespace refract::runtime
