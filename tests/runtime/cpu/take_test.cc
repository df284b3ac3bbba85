// Selections by indices, against LibTorch bit for bit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/base/random_seed.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::SymExpr;
using models::ValueId;
using ::testing::ElementsAre;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Int;
using testing::List;
using testing::Must;
using testing::Ref;

base::Tensor Values(const base::Dims& dims, DType dtype, std::mt19937& random) {
  base::Tensor tensor = Must(base::Tensor::Allocate(dtype, dims));
  for (size_t i = 0; i < tensor.bytes(); ++i) {
    // bool elements are 0 or 1.
    tensor.data()[i] = std::byte{static_cast<unsigned char>(
        dtype == DType::kBool ? random() % 2 : random() % 127)};
  }
  return tensor;
}

base::Tensor Indices(const base::Dims& dims, int64_t least, int64_t size,
                     std::mt19937& random) {
  base::Tensor tensor = Must(base::Tensor::Allocate(DType::kInt64, dims));
  std::uniform_int_distribution<int64_t> any(least, size - 1);
  for (int64_t& index : tensor.as<int64_t>()) index = any(random);
  return tensor;
}

std::vector<SymExpr> Shape(const base::Dims& dims) {
  return {dims.begin(), dims.end()};
}

// Placeholder of an index for a dimension that is taken whole.
const base::Dims kWhole = {-1};

struct Taken {
  Taken(const base::Dims& dims, DType dtype,
        const std::vector<base::Dims>& indices, const std::vector<SymExpr>& out,
        std::mt19937& random) {
    std::vector<ValueId> ids;
    const auto x = builder.Input("x", dtype, Shape(dims));
    inputs.push_back(Values(dims, dtype, random));
    for (size_t d = 0; d < indices.size(); ++d) {
      if (indices[d] == kWhole) {
        ids.push_back(models::kNoValue);
        continue;
      }
      ids.push_back(builder.Input(absl::StrCat("i", d), DType::kInt64,
                                  Shape(indices[d])));
      inputs.push_back(Indices(indices[d], -dims[d], dims[d], random));
    }
    builder.Output(builder.Node("aten.index.Tensor",
                                {Ref("self", x), List("indices", ids)},
                                {dtype, out}));
  }
  GraphBuilder builder;
  std::vector<base::Tensor> inputs;
};

void ExpectLikeLibTorch(GraphBuilder& builder,
                        const std::vector<base::Tensor>& inputs,
                        const std::string& kernel) {
  EXPECT_THAT(testing::KernelsOf(builder), ElementsAre(kernel));
  const auto own = Must(testing::RunWhole(builder, inputs));
  const auto torch = Must(testing::RunByLibTorch(builder, inputs));
  EXPECT_TRUE(testing::SameBits(own[0], torch[0]))
      << base::DimsToString(own[0].dims()) << " for "
      << base::DimsToString(torch[0].dims());
}

TEST(TakeTest, IndicesOfOneShape) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
  struct Case {
    base::Dims dims;
    std::vector<base::Dims> indices;
    std::vector<SymExpr> out;
    const char* kernel = "index";
  };
  for (const Case& c : std::vector<Case>{
           {{5, 7, 8}, {kWhole, {4}}, {5, 4, 8}},
           {{5, 7, 16}, {kWhole, {2, 3}}, {5, 2, 3, 16}},
           {{5, 7, 3}, {kWhole, {6}, {6}}, {5, 6}},
           {{5, 4}, {{9}, {9}}, {9}},
           {{5, 4}, {{9}}, {9, 4}},
           {{3, 2, 4, 5}, {kWhole, {2}, {2}}, {3, 2, 5}},
           {{3, 2, 4, 5}, {kWhole, kWhole, kWhole, {7}}, {3, 2, 4, 7}},
           {{3, 4}, {kWhole, {0}}, {3, 0}},
           {{3, 4}, {kWhole, base::Dims{}}, {3}},
           // Index tensors that are not adjacent, or broadcast.
           {{3, 4, 5}, {{2}, kWhole, {2}}, {2, 4}, "libtorch"},
           {{3, 4, 5}, {kWhole, {2, 1}, {3}}, {3, 2, 3}, "libtorch"}}) {
    for (const DType dtype : {DType::kFloat32, DType::kInt64, DType::kBool}) {
      SCOPED_TRACE(
          absl::StrCat(base::DimsToString(c.dims), " ", base::Name(dtype)));
      Taken taken(c.dims, dtype, c.indices, c.out, random);
      ExpectLikeLibTorch(taken.builder, taken.inputs, c.kernel);
    }
  }
}

TEST(TakeTest, MasksAreLibTorchs) {
  GraphBuilder builder;
  const auto x = builder.Input("x", DType::kFloat32, {2, 3});
  const auto mask = builder.Input("mask", DType::kBool, {2});
  builder.Output(builder.Node("aten.index.Tensor",
                              {Ref("self", x), List("indices", {mask})},
                              {DType::kFloat32, {testing::Sym("n"), 3}}));
  EXPECT_THAT(testing::KernelsOf(builder), ElementsAre("libtorch"));
}

TEST(TakeTest, RefusesWhatLiesOutside) {
  std::mt19937 random(base::ProgramSeed());
  for (const int64_t index : {7, -8}) {
    Taken taken({5, 7}, DType::kFloat32, {kWhole, {4}}, {5, 4}, random);
    taken.inputs[1].as<int64_t>()[2] = index;
    const auto status = testing::RunWhole(taken.builder, taken.inputs).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("index 'i1': ", index,
                                       " at position 2 is outside")));
  }
}

TEST(TakeTest, SelectsAlongAnyDimension) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
  for (const int64_t dim : {1, 2, -1}) {
    GraphBuilder builder;
    const base::Dims dims = {4, 6, 9};
    const size_t d = dim < 0 ? 2 : static_cast<size_t>(dim);
    base::Dims out = dims;
    out[d] = 5;
    const auto x = builder.Input("x", DType::kFloat32, Shape(dims));
    const auto index = builder.Input("i", DType::kInt64, {5});
    std::vector<base::Tensor> inputs;
    inputs.push_back(Values(dims, DType::kFloat32, random));
    inputs.push_back(Indices({5}, 0, dims[d], random));
    builder.Output(
        builder.Node("aten.index_select.default",
                     {Ref("self", x), Int("dim", dim), Ref("index", index)},
                     {DType::kFloat32, Shape(out)}));
    ExpectLikeLibTorch(builder, inputs, "index_select");
    inputs[1].as<int64_t>()[0] = -1;  // LibTorch counts none from the end here
    EXPECT_EQ(testing::RunWhole(builder, inputs).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(GatherTest, TakesAnElementEach) {
  SCOPED_TRACE(absl::StrCat("seed ", base::ProgramSeed()));
  std::mt19937 random(base::ProgramSeed());
  struct Case {
    base::Dims dims;
    base::Dims index;
    int64_t dim;
  };
  for (const Case& c : std::vector<Case>{{{4, 6, 9}, {4, 1, 9}, 1},
                                         {{4, 6, 9}, {3, 6, 2}, -1},
                                         {{4, 6, 9}, {8, 5, 9}, 0},
                                         {{4, 6}, {4, 0}, 1},
                                         {{5}, {9}, 0}}) {
    for (const DType dtype : {DType::kFloat32, DType::kInt64, DType::kBool}) {
      SCOPED_TRACE(base::DimsToString(c.index));
      GraphBuilder builder;
      const size_t d =
          c.dim < 0 ? c.dims.size() - 1 : static_cast<size_t>(c.dim);
      const auto x = builder.Input("x", dtype, Shape(c.dims));
      const auto index = builder.Input("i", DType::kInt64, Shape(c.index));
      std::vector<base::Tensor> inputs;
      inputs.push_back(Values(c.dims, dtype, random));
      inputs.push_back(Indices(c.index, 0, c.dims[d], random));
      builder.Output(
          builder.Node("aten.gather.default",
                       {Ref("self", x), Int("dim", c.dim), Ref("index", index)},
                       {dtype, Shape(c.index)}));
      ExpectLikeLibTorch(builder, inputs, "gather");
      if (inputs[1].bytes() == 0) continue;
      const size_t last = inputs[1].as<int64_t>().size() - 1;
      inputs[1].as<int64_t>()[last] = c.dims[d];
      const auto status = testing::RunWhole(builder, inputs).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("index 'i': ", c.dims[d],
                                         " at position ", last)));
    }
  }
}

}  // namespace
}  // namespace refract::runtime
