#ifndef REFRACT_TESTS_RUNTIME_FUSION_DLRM_H_
#define REFRACT_TESTS_RUNTIME_FUSION_DLRM_H_

#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/testing/graph_builder.h"

namespace refract::runtime::testing {

// Bags of `tables` tables, their pairwise products with a dense vector, and a
// layer over them. `copies`: number of times that the model has the products.
struct Dlrm {
  Dlrm(int tables, int64_t width, bool permute, int copies = 1) {
    std::mt19937 random(base::ProgramSeed());
    const SymExpr b = Sym("b");
    const GraphBuilder::Result rows = {DType::kFloat32, {b, width}};
    std::vector<ValueId> features = {
        builder.Input("dense", DType::kFloat32, {b, width})};
    inputs.push_back(RandomTensor({kBatch, width}, random));
    for (int t = 0; t < tables; ++t) {
      const auto table = builder.Weight<float>(
          absl::StrCat("table", t), {50, width},
          RandomFloats(50 * static_cast<size_t>(width), random));
      const auto ids =
          builder.Input(absl::StrCat("ids", t), DType::kInt64, {b});
      std::vector<int64_t> values;
      for (int64_t i = 0; i < kBatch; ++i) {
        values.push_back(static_cast<int64_t>(random() % 50));
      }
      inputs.push_back(MakeTensor<int64_t>({kBatch}, values));
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
        RandomFloats(20 * static_cast<size_t>(columns), random));
    const auto bias =
        builder.Weight<float>("bias", {20}, RandomFloats(20, random));
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

}  // namespace refract::runtime::testing

#endif  // REFRACT_TESTS_RUNTIME_FUSION_DLRM_H_
