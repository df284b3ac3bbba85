#include "runtime/cuda/program/device_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bench/cuda/dense_models.h"
#include "runtime/cuda/calls/index_math.h"
#include "runtime/cuda/program/lowering.h"

namespace refract::runtime::cuda {
namespace {

using ::testing::HasSubstr;

constexpr Rows kItems{1, 0};

std::string Why(DeviceProgramBuilder builder) {
  auto program = std::move(builder).Build(16);
  return program.ok() ? "fine" : program.status().message();
}

TensorRef MatrixRef(const DeviceProgramBuilder& builder, ValueId id) {
  return {id, {0, 0}, {{0, builder.value(id).ld}, {0, 1}}};
}
void Copy(DeviceProgramBuilder& builder, ValueId from, ValueId to) {
  builder.Map({.dims = {builder.value(to).rows, {0, builder.value(to).cols}},
               .inputs = {{MatrixRef(builder, from)}},
               .code = {{ElementCode::kCopy}},
               .out = MatrixRef(builder, to)});
}

struct Parts {
  DeviceProgramBuilder builder{"m"};
  ValueId in = builder.Input("x", DType::kFloat16, kItems, 8);
  ValueId weight = builder.Weight("w", DType::kFloat16, 4, 8);
  ValueId bias = builder.Weight("b", DType::kFloat16, 1, 4);
  ValueId out = builder.Output("y", DType::kFloat16, kItems, 4);
};

TEST(DeviceProgramTest, TheModelsOfTheBenchmarksAreValid) {
  for (const auto& shape : {bench::MlperfV1(), bench::MlperfV2()}) {
    const auto model =
        bench::MakeDlrm("m", shape, bench::Precision::kFloat16, 8192, 1);
    EXPECT_TRUE(Validate(model.program, 8192).ok());
  }
  // Performance notes give 4.92 and 32.06 MFLOP per item.
  EXPECT_NEAR(
      bench::MakeDlrm("m", bench::MlperfV1(), bench::Precision::kFloat16, 1, 1)
          .flops_per_item,
      4.92e6, 0.1e6);
}

TEST(DeviceProgramTest, ErrorsNameOperatorAndValue) {
  {
    Parts p;
    EXPECT_THAT(Why(std::move(p.builder)),
                HasSubstr("output y is never written"));
  }
  {
    Parts p;
    p.builder.Linear({p.in, p.weight, p.bias, p.out, Epilogue::kReluBias});
    EXPECT_EQ(Why(std::move(p.builder)), "fine");
  }
  {
    Parts p;
    p.builder.Linear({p.in, p.weight, p.bias, p.out, Epilogue::kRelu});
    EXPECT_THAT(Why(std::move(p.builder)),
                HasSubstr("operator y: epilogue relu takes no bias"));
  }
  {
    Parts p;
    p.builder.Linear({p.in, p.weight, kNone, p.out, Epilogue::kBias});
    EXPECT_THAT(Why(std::move(p.builder)), HasSubstr("bias needs a bias"));
  }
  {
    Parts p;
    p.builder.Linear({p.in, p.bias, kNone, p.out});
    EXPECT_THAT(Why(std::move(p.builder)),
                HasSubstr("operator y: b has a number of rows that its "
                          "operator does not take"));
  }
  {
    Parts p;
    const ValueId wide = p.builder.Weight("wide", DType::kFloat32, 4, 8);
    p.builder.Linear({p.in, wide, kNone, p.out});
    EXPECT_THAT(Why(std::move(p.builder)),
                HasSubstr("wide is float32, not float16"));
  }
  {
    Parts p;
    const ValueId middle =
        p.builder.Intermediate("h", DType::kFloat16, kItems, 8);
    p.builder.Linear({middle, p.weight, kNone, p.out});
    EXPECT_THAT(Why(std::move(p.builder)),
                HasSubstr("operator y: h is read before it is written"));
  }
  {
    Parts p;
    p.builder.Linear({p.in, p.weight, kNone, p.out});
    p.builder.Linear({p.in, p.weight, kNone, p.out});
    EXPECT_THAT(Why(std::move(p.builder)), HasSubstr("y is written twice"));
  }
  {
    Parts p;
    Copy(p.builder, p.weight, p.in);
    EXPECT_THAT(
        Why(std::move(p.builder)),
        HasSubstr("writes x, an input or weight that the caller provides"));
  }
  {
    Parts p;
    p.builder.Linear({p.in, p.weight, kNone, 77});
    EXPECT_THAT(Why(std::move(p.builder)), HasSubstr("names value 77"));
  }
}

TEST(DeviceProgramTest, ViewsFillARootPieceByPiece) {
  for (bool whole : {true, false}) {
    DeviceProgramBuilder builder("m");
    const ValueId in = builder.Input("x", DType::kFloat32, kItems, 4);
    const ValueId both =
        builder.Intermediate("cat", DType::kFloat32, kItems, 8);
    const ValueId left = builder.View(both, "left", 0, 4);
    const ValueId right = builder.View(both, "right", 4, 4);
    const ValueId out = builder.Output("y", DType::kFloat32, kItems, 8);
    Copy(builder, in, left);
    if (whole) Copy(builder, left, right);
    Copy(builder, both, out);
    EXPECT_THAT(Why(std::move(builder)),
                HasSubstr(whole ? "fine" : "cat is read before"));
  }
}

// One copy instead of one per row; wide rows stay aligned for products.
TEST(DeviceProgramTest, NarrowOutputsLieDensely) {
  DeviceProgramBuilder builder("m");
  const auto ld = [&](DType dtype, int64_t cols) {
    return builder.value(builder.Output("y", dtype, kItems, cols)).ld;
  };
  EXPECT_EQ(ld(DType::kFloat32, 1), 1);
  EXPECT_EQ(ld(DType::kFloat16, 13), 13);
  EXPECT_EQ(ld(DType::kFloat32, 31), 31);
  EXPECT_EQ(ld(DType::kFloat32, 33), 36);
  EXPECT_EQ(ld(DType::kFloat16, 479), 480);
}

TEST(DeviceProgramTest, OnlySomeOperatorsLookAtTheNumberOfItems) {
  EXPECT_FALSE(
      bench::MakeDlrm("m", bench::MlperfV1(), bench::Precision::kFloat16, 4, 1)
          .program.reads_batch());
  DeviceProgramBuilder builder("m");
  const ValueId table = builder.Weight("table", DType::kFloat32, 3, 4);
  const ValueId index = builder.Input("index", DType::kInt32, kItems, 1);
  const ValueId out = builder.Output("y", DType::kFloat32, kItems, 4);
  builder.LookUp({.dims = {kItems, {0, 4}},
                  .table = {table, {0, 0}, {{0, 0}, {0, 1}}},
                  .index = {index, {0, 0}, {{0, 1}, {0, 0}}},
                  .out = MatrixRef(builder, out),
                  .row_stride = {0, 4},
                  .table_rows = 3});
  auto program = std::move(builder).Build(4);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_TRUE(program->reads_batch());
}

TEST(DeviceProgramTest, BadInstructions) {
  auto why = [](std::vector<MapInstruction> code) {
    Parts p;
    const ValueId in = p.builder.Input("z", DType::kFloat32, kItems, 4);
    p.builder.Map({.dims = {kItems, {0, 4}},
                   .inputs = {{MatrixRef(p.builder, in)}},
                   .code = std::move(code),
                   .out = MatrixRef(p.builder, p.out)});
    return Why(std::move(p.builder));
  };
  EXPECT_EQ(why({{ElementCode::kRelu, 0}, {ElementCode::kAdd, 0, 1}}), "fine");
  EXPECT_THAT(why({}), HasSubstr("needs 1 to"));
  EXPECT_THAT(why({{ElementCode::kRelu, 1}}),
              HasSubstr("reads a register that is not written"));
  EXPECT_THAT(why(std::vector<MapInstruction>(kMaxMapInstructions + 1)),
              HasSubstr("needs 1 to"));
}

TEST(LoweringTest, ProductsReadPaddingOnlyWhereItIsZero) {
  const auto model = bench::MakeDlrm("m", bench::MlperfV1(),
                                     bench::Precision::kFloat16, 64, 1);
  const LoweringContext context{.program = model.program, .batch = 64};
  std::vector<GemmShape> shapes;
  for (const Op& op : model.program.ops) {
    const Call call = Lower(op, context, [](ValueId) { return nullptr; });
    if (const auto* gemm = std::get_if<GemmCall>(&call)) {
      shapes.push_back(gemm->shape);
    }
  }
  ASSERT_EQ(shapes.size(), 8u);
  EXPECT_EQ(shapes[0].k, 16) << "13 inputs, uploaded beside zeros";
  EXPECT_EQ(shapes[3].k, 480) << "479 columns that the interaction clears";
  EXPECT_EQ(shapes[4].k, 1024);
  for (const GemmShape& shape : shapes) {
    EXPECT_EQ(shape.m, 64);
    EXPECT_EQ(shape.ld_in * 2 % kRowAlignBytes, 0);
    EXPECT_EQ(shape.align_in, 16);
  }
}

}  // namespace
}  // namespace refract::runtime::cuda
