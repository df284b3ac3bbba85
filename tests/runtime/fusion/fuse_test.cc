// Fusion: which nodes become one step, agreement with LibTorch, and no cut
// through a fused group changes a bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
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
using testing::Dlrm;
using ::testing::ElementsAre;
using testing::ExpectFused;
using testing::Float;
using testing::GraphBuilder;
using testing::Int;
using testing::List;
using testing::Must;
using testing::RandomTensor;
using testing::Ref;
using testing::Sym;

TEST(FuseTest, ATransposeMayBeReadBySeveralProducts) {
  std::mt19937 random(base::ProgramSeed());
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
    ExpectFused(builder, inputs, 1e-5f);
  }
}

// Models slice the columns of one matrix at every use.
TEST(FuseTest, WhatIsAskedForTwiceIsMadeOnce) {
  std::mt19937 random(base::ProgramSeed());
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
  ExpectFused(builder, inputs, 0);
}

// Bags of two tables and an embedding, side by side with a dense input.
struct JoinedLookUps {
  explicit JoinedLookUps(std::mt19937& random) {
    const SymExpr b = Sym("b");
    const auto ids = [&](const std::string& name, int64_t count) {
      inputs.push_back(testing::MakeTensor<int64_t>(
          {count}, std::vector<int64_t>(static_cast<size_t>(count), 2)));
      return builder.Input(name, DType::kInt64, {Sym(name)});
    };
    std::vector<ValueId> parts;
    for (const std::string name : {"t", "u"}) {
      const int64_t dim = name == "t" ? 16 : 5;
      const auto table = builder.Weight<float>(
          name, {4, dim},
          testing::RandomFloats(static_cast<size_t>(4 * dim), random));
      const auto bag_ids = ids(absl::StrCat("ids_", name), 7);
      inputs.push_back(testing::MakeTensor<int64_t>({3}, {0, 2, 2}));
      const auto offsets =
          builder.Input(absl::StrCat("offsets_", name), DType::kInt64, {b});
      parts.push_back(
          builder.Nodes("aten.embedding_bag.default",
                        {Ref("weight", table), Ref("indices", bag_ids),
                         Ref("offsets", offsets)},
                        {{DType::kFloat32, {b, dim}}})[0]);
    }
    for (models::Node& node : builder.graph().nodes) {
      node.outputs.resize(4, models::kNoValue);
    }
    dense = builder.Input("dense", DType::kFloat32, {b, 3});
    inputs.push_back(RandomTensor({3, 3}, random));
    parts.insert(parts.begin() + 1, dense);
    const auto table =
        builder.Weight<float>("v", {4, 8}, testing::RandomFloats(32, random));
    inputs.push_back(testing::MakeTensor<int64_t>({3}, {3, 0, 1}));
    const auto one = builder.Input("one", DType::kInt64, {b});
    parts.push_back(builder.Node("aten.embedding.default",
                                 {Ref("weight", table), Ref("indices", one)},
                                 {DType::kFloat32, {b, 8}}));
    last = parts.back();
    builder.Output(builder.Node("aten.cat.default",
                                {List("tensors", parts), Int("dim", 1)},
                                {DType::kFloat32, {b, 32}}));
    builder.graph().batch_symbol = "b";
  }
  GraphBuilder builder;
  ValueId dense = models::kNoValue;
  ValueId last = models::kNoValue;
  std::vector<base::Tensor> inputs;
};

TEST(FuseTest, LookUpsWriteTheirColumnsOfACat) {
  std::mt19937 random(base::ProgramSeed());
  JoinedLookUps joined(random);
  EXPECT_THAT(testing::KernelsOf(joined.builder),
              ElementsAre("look_ups/3+cat"));
  ExpectFused(joined.builder, joined.inputs, 0);
  // Sizes that only a request contradicts.
  joined.inputs[4] = RandomTensor({2, 3}, random);
  EXPECT_FALSE(testing::RunWhole(joined.builder, joined.inputs).ok());
}

TEST(FuseTest, LookUpsThatOthersReadKeepTheirCat) {
  std::mt19937 random(base::ProgramSeed());
  JoinedLookUps joined(random);
  joined.builder.Output(joined.last);
  EXPECT_THAT(testing::KernelsOf(joined.builder),
              ElementsAre("look_ups/3", "cat"));
  ExpectFused(joined.builder, joined.inputs, 0);
}

// A look-up whose ids are the result of another look-up: no group.
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
  ExpectFused(builder, inputs, 0);
}

// A cross layer of DCN-v2, low rank: x' = x0 × (U (V x) + b) + x.
TEST(FuseTest, CrossLayer) {
  std::mt19937 random(base::ProgramSeed());
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
  ExpectFused(builder, inputs, 1e-5f);
}

// Every spelling of a product, over odd shapes.
TEST(FuseTest, ProductsAreLibTorchs) {
  std::mt19937 random(base::ProgramSeed());
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
      ExpectFused(builder, inputs, 1e-5f);
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

// Where every step is native, a row's result has the same bits alone and among
// other rows.
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
