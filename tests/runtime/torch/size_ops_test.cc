#include "runtime/torch/size_ops.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::runtime::aten {
namespace {

using ::testing::HasSubstr;

struct IntCase {
  std::string op;
  int64_t a;
  int64_t b;
  int64_t want;  // as `python3 -c` prints it
};

TEST(SizeOpsTest, IntsFollowPython) {
  const std::vector<IntCase> cases = {
      {"py.add", 3, 4, 7},        {"py.sub", 3, 4, -1},
      {"py.mul", 3, -4, -12},     {"py.floordiv", 7, 2, 3},
      {"py.floordiv", -7, 2, -4}, {"py.floordiv", 7, -2, -4},
      {"py.floordiv", 8, -1, -8}, {"py.mod", 7, 3, 1},
      {"py.mod", -7, 3, 2},       {"py.mod", 7, -3, -2},
      {"py.mod", -6, 3, 0},       {"py.pow", 3, 5, 243},
      {"py.max", 3, 9, 9},        {"py.sym_min", 3, 9, 3},
  };
  for (const IntCase& c : cases) {
    const auto result =
        EvaluateSizeOp(c.op, {IntOperand(c.a), IntOperand(c.b)});
    ASSERT_TRUE(result.ok()) << c.op << ": " << result.status();
    ASSERT_EQ(result->kind, Operand::Kind::kInt) << c.op;
    EXPECT_EQ(result->i, c.want) << c.op << " " << c.a << " " << c.b;
  }
}

TEST(SizeOpsTest, FloatsAndMixturesFollowPython) {
  EXPECT_EQ(EvaluateSizeOp("py.truediv", {IntOperand(7), IntOperand(2)})->f,
            3.5);
  EXPECT_EQ(EvaluateSizeOp("py.floordiv", {FloatOperand(-7), IntOperand(2)})->f,
            -4.0);
  EXPECT_EQ(EvaluateSizeOp("py.pow", {IntOperand(2), IntOperand(-1)})->f, 0.5);
  EXPECT_EQ(EvaluateSizeOp("py.int", {FloatOperand(-2.7)})->i, -2);
  EXPECT_EQ(EvaluateSizeOp("py.floor", {FloatOperand(-2.1)})->i, -3);
  EXPECT_EQ(EvaluateSizeOp("py.ceil", {FloatOperand(2.1)})->i, 3);
  EXPECT_EQ(EvaluateSizeOp("py.sym_float", {IntOperand(2)})->kind,
            Operand::Kind::kFloat);
}

// As TorchScript and torch.export compute it, where Python alone gives 9.0 for
// 1 // 0.1.
TEST(SizeOpsTest, QuotientsAndRestsOfFloatsFollowPyTorch) {
  EXPECT_EQ(
      EvaluateSizeOp("py.floordiv", {IntOperand(1), FloatOperand(0.1)})->f,
      10.0);
  EXPECT_EQ(EvaluateSizeOp("py.mod", {IntOperand(1), FloatOperand(0.1)})->f,
            0.09999999999999995);
  EXPECT_EQ(EvaluateSizeOp("py.mod", {IntOperand(-7), FloatOperand(2)})->f, 1);
  EXPECT_EQ(EvaluateSizeOp("py.mod", {IntOperand(7), FloatOperand(-2)})->f, -1);
  EXPECT_EQ(EvaluateSizeOp("py.mod", {IntOperand(6), FloatOperand(-2)})->f, 0);
}

TEST(SizeOpsTest, ComparisonsGiveBools) {
  for (const int64_t b : {1, 2, 3}) {
    const std::vector<Operand> pair = {IntOperand(2), IntOperand(b)};
    EXPECT_EQ(EvaluateSizeOp("py.lt", pair)->b, 2 < b);
    EXPECT_EQ(EvaluateSizeOp("py.le", pair)->b, 2 <= b);
    EXPECT_EQ(EvaluateSizeOp("py.gt", pair)->b, 2 > b);
    EXPECT_EQ(EvaluateSizeOp("py.ge", pair)->b, 2 >= b);
    EXPECT_EQ(EvaluateSizeOp("py.eq", pair)->b, 2 == b);
    EXPECT_EQ(EvaluateSizeOp("py.ne", pair)->b, 2 != b);
  }
  EXPECT_TRUE(
      EvaluateSizeOp("py.and_", {BoolOperand(true), BoolOperand(true)})->b);
  EXPECT_FALSE(EvaluateSizeOp("py.not_", {BoolOperand(true)})->b);
}

TEST(SizeOpsTest, SizesOfTensorsAndWeights) {
  const std::vector<float> data(6);
  Operand tensor;
  tensor.kind = Operand::Kind::kTensor;
  tensor.tensor = {base::DType::kFloat32,
                   {2, 3},
                   reinterpret_cast<const std::byte*>(data.data()),
                   24};
  EXPECT_EQ(EvaluateSizeOp("aten.sym_size.int", {tensor, IntOperand(-1)})->i,
            3);
  EXPECT_EQ(EvaluateSizeOp("aten.sym_numel.default", {tensor})->i, 6);
  const auto bad = EvaluateSizeOp("aten.sym_size.int", {tensor, IntOperand(2)});
  EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(bad.status().message(), HasSubstr("[2, 3]"));
  models::WeightView weight;
  weight.sizes = {5, 4};
  Operand operand;
  operand.kind = Operand::Kind::kWeight;
  operand.weight = &weight;
  EXPECT_EQ(EvaluateSizeOp("aten.sym_size.int", {operand, IntOperand(0)})->i,
            5);
}

TEST(SizeOpsTest, NodeMixesLiteralsAndOperands) {
  models::Node node;
  node.name = "n";
  node.op = "py.sub";
  node.args = {{"a", int64_t{10}}, {"b", models::ValueRef{3}}};
  EXPECT_EQ(EvaluateSizeOp(node, {IntOperand(4)})->i, 6);
  EXPECT_FALSE(EvaluateSizeOp(node, {}).ok());
}

TEST(SizeOpsTest, WhatHasNoAnswerIsAnError) {
  const int64_t max = INT64_MAX;
  const std::vector<IntCase> cases = {
      {"py.add", max, 1, 0},       {"py.sub", INT64_MIN, 1, 0},
      {"py.mul", max, 2, 0},       {"py.floordiv", 1, 0, 0},
      {"py.mod", 1, 0, 0},         {"py.floordiv", INT64_MIN, -1, 0},
      {"py.truediv", 1, 0, 0},     {"py.pow", 10, 19, 0},
      {"py.pow", INT64_MIN, 2, 0}, {"py.pow", 0, -1, 0},
  };
  for (const IntCase& c : cases) {
    const auto result =
        EvaluateSizeOp(c.op, {IntOperand(c.a), IntOperand(c.b)});
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument)
        << c.op;
  }
  EXPECT_FALSE(EvaluateSizeOp("py.int", {FloatOperand(1e30)}).ok());
  EXPECT_FALSE(EvaluateSizeOp("py.add", {IntOperand(1), Operand()}).ok());
  EXPECT_EQ(EvaluateSizeOp("py.nothing", {IntOperand(1)}).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace refract::runtime::aten
