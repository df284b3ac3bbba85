// Table rows by id, and the effect of a table's policy on wrong ids.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "tests/runtime/cpu/one_node.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::IdPolicy;
using models::NamedArgument;
using ::testing::ElementsAre;
using testing::ExpectLikeLibTorch;
using testing::GraphBuilder;
using testing::Ids;
using testing::Int;
using testing::MakeTensor;
using testing::Must;
using testing::OneNode;
using testing::RandomTensors;
using testing::Ref;
using testing::Sym;

// A table of 6 rows of 3, read by two-dimensional ids.
struct LookUp {
  explicit LookUp(std::vector<int64_t> values) {
    std::vector<float> table(18);
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = static_cast<float>(i);
    }
    const auto weight = builder.Weight("users", {6, 3}, table);
    const auto ids = builder.Input("ids", DType::kInt64, {Sym("b"), 2});
    builder.Output(builder.Node(
        "aten.embedding.default",
        {Ref("weight", weight), Ref("indices", ids), Int("padding_idx", 1)},
        {DType::kFloat32, {Sym("b"), 2, 3}}));
    const auto rows = static_cast<int64_t>(values.size()) / 2;
    inputs.push_back(MakeTensor<int64_t>({rows, 2}, values));
  }
  GraphBuilder builder;
  std::vector<base::Tensor> inputs;
};

TEST(EmbeddingTest, CopiesRows) {
  LookUp look_up({5, 0, 1, 1, 3, 2});
  const auto out = Must(testing::RunWhole(look_up.builder, look_up.inputs));
  EXPECT_EQ(out[0].dims(), base::Dims({3, 2, 3}));
  EXPECT_THAT(
      testing::ValuesOf<float>(out[0].view()),
      ElementsAre(15, 16, 17, 0, 1, 2, 3, 4, 5, 3, 4, 5, 9, 10, 11, 6, 7, 8));
}

TEST(EmbeddingTest, FollowsThePolicyOfItsTable) {
  LookUp look_up({5, 6, -1, 1});
  EXPECT_EQ(
      testing::RunWhole(look_up.builder, look_up.inputs).status().message(),
      "table 'users': id 6 at position 1 is outside [0, 6)");
  CompileOptions options;
  RunStats stats;
  options.config.id_policies["users"] = IdPolicy::kZeroRow;
  auto out =
      Must(testing::RunWhole(look_up.builder, look_up.inputs, options, &stats));
  EXPECT_THAT(testing::ValuesOf<float>(out[0].view()),
              ElementsAre(15, 16, 17, 0, 0, 0, 0, 0, 0, 3, 4, 5));
  EXPECT_EQ(stats.replaced_ids, 2);
  options.config.id_policies["users"] = IdPolicy::kDefaultRow;
  out =
      Must(testing::RunWhole(look_up.builder, look_up.inputs, options, &stats));
  EXPECT_THAT(testing::ValuesOf<float>(out[0].view()),
              ElementsAre(15, 16, 17, 0, 1, 2, 0, 1, 2, 3, 4, 5));
  EXPECT_EQ(stats.replaced_ids, 4);
}

// Four rows of two columns; the column's number in the high bits of its byte.
struct EncodedTable {
  EncodedTable() {
    layout = *models::LayoutOf(*models::RowFormatNamed("tbe-int8"), 2);
    for (uint8_t r = 0; r < 4; ++r) {
      // fp16 scale 0.5, fp16 bias −1, two bytes.
      for (const int byte : {0x00, 0x38, 0x00, 0xbc, int{r}, 10 + r}) {
        bytes.push_back(static_cast<uint8_t>(byte));
      }
    }
    weight = builder.Rows("items", 4, layout, bytes.data());
  }
  models::RowLayout layout;
  std::vector<uint8_t> bytes;
  GraphBuilder builder;
  models::ValueId weight;
};

TEST(EmbeddingTest, DecodesRowsOfAFormat) {
  EncodedTable table;
  const auto ids = table.builder.Input("ids", DType::kInt32, {Sym("b")});
  table.builder.Output(
      table.builder.Node("aten.embedding.default",
                         {Ref("weight", table.weight), Ref("indices", ids)},
                         {DType::kFloat32, {Sym("b"), 2}}));
  std::vector<base::Tensor> in;
  in.push_back(MakeTensor<int32_t>({3}, {3, 4, 0}));
  EXPECT_EQ(testing::RunWhole(table.builder, in).status().message(),
            "table 'items': id 4 at position 1 is outside [0, 4)");
  CompileOptions options;
  options.config.id_policies["items"] = IdPolicy::kZeroRow;
  const auto out = Must(testing::RunWhole(table.builder, in, options));
  EXPECT_THAT(testing::ValuesOf<float>(out[0].view()),
              ElementsAre(0.5, 5.5, 0, 0, -1, 4));
}

TEST(EmbeddingTest, OtherReadersOfRowsAreRefusedByName) {
  EncodedTable table;
  const auto left = table.builder.Input("x", DType::kFloat32, {Sym("b"), 4});
  table.builder.Output(table.builder.Node(
      "aten.mm.default", {Ref("self", left), Ref("mat2", table.weight)},
      {DType::kFloat32, {Sym("b"), 2}}));
  const models::Graph& graph = table.builder.graph();
  const auto program =
      Program::Compile(graph, Part::Whole(graph), table.builder.Weights(), {});
  EXPECT_EQ(program.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(program.status().message()),
              ::testing::HasSubstr("node n0 (aten.mm.default) reads table "
                                   "'items', which has rows of tbe-int8"));
}

// A dimension may be counted from the end.
TEST(EmbeddingTest, SelectsRowsByIndex) {
  std::mt19937 random(6);
  for (const int64_t dim : {0, -2}) {
    std::vector<base::Tensor> in = RandomTensors({{5, 3}}, random);
    in.push_back(MakeTensor<int64_t>({4}, {4, 0, 0, 2}));
    OneNode node("aten.index_select.default", in, [&](const Ids& ids) {
      return std::vector<NamedArgument>{Ref("self", ids[0]), Int("dim", dim),
                                        Ref("index", ids[1])};
    });
    ExpectLikeLibTorch(node, in);
    EncodedTable table;
    const auto ids = table.builder.Input("ids", DType::kInt64, {Sym("b")});
    table.builder.Output(table.builder.Node(
        "aten.index_select.default",
        {Ref("self", table.weight), Int("dim", dim), Ref("index", ids)},
        {DType::kFloat32, {Sym("b"), 2}}));
    in.clear();
    in.push_back(MakeTensor<int64_t>({3}, {3, 4, 0}));
    CompileOptions options;
    options.config.id_policies["items"] = IdPolicy::kZeroRow;
    const auto out = Must(testing::RunWhole(table.builder, in, options));
    EXPECT_THAT(testing::ValuesOf<float>(out[0].view()),
                ElementsAre(0.5, 5.5, 0, 0, -1, 4));
  }
}

}  // namespace
}  // namespace refract::runtime
