// Attention written as single operators, in all forms that become one step,
// against LibTorch and against every cut.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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
using models::SymExpr;
using models::ValueId;
using testing::Bool;
using ::testing::Contains;
using ::testing::EndsWith;
using testing::Float;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Int;
using testing::Must;
using testing::Ref;
using ::testing::StartsWith;
using testing::Sym;

enum class Scale : uint8_t { kNone, kMultiply, kDivide };
enum class Mask : uint8_t { kNone, kAdd, kFill, kSelect };

struct Form {
  bool heads;    // [b, 2, l, e], by matmul; else [b, l, e], by bmm
  bool turned;   // keys are transposed in the graph
  bool dropout;  // that is off
  Scale scale;
  Mask mask;
  // SiLU of each score instead of a softmax; masked weights are 0 then.
  bool pointwise = false;
};

// Widths: 5 of queries and keys, 16 or 7 of values.
struct WrittenAttention {
  WrittenAttention(const Form& form, int64_t value_width,
                   int64_t softmax_dim = -1)
      : form(form) {
    const SymExpr b = Sym("b");
    const auto shape = [&](const SymExpr& rows, const SymExpr& columns) {
      std::vector<SymExpr> dims = {b};
      if (form.heads) dims.push_back(2);
      dims.push_back(rows);
      dims.push_back(columns);
      return dims;
    };
    const SymExpr l = Sym("l");
    const SymExpr s = Sym("s");
    const char* const op =
        form.heads ? "aten.matmul.default" : "aten.bmm.default";
    const char* const right = form.heads ? "other" : "mat2";
    const auto query = builder.Input("q", DType::kFloat32, shape(l, 5));
    auto key = builder.Input("k", DType::kFloat32,
                             form.turned ? shape(s, 5) : shape(5, s));
    const auto value =
        builder.Input("v", DType::kFloat32, shape(s, value_width));
    if (form.turned) {
      key = builder.Node("aten.transpose.int",
                         {Ref("self", key), Int("dim0", -1), Int("dim1", -2)},
                         {DType::kFloat32, shape(5, s)});
    }
    const GraphBuilder::Result scores = {DType::kFloat32, shape(l, s)};
    auto x = builder.Node(op, {Ref("self", query), Ref(right, key)}, scores);
    if (form.scale != Scale::kNone) {
      x = builder.Node(
          form.scale == Scale::kDivide ? "aten.div.Tensor" : "aten.mul.Tensor",
          {Ref("self", x), Float("other", 2.236068)}, scores);
    }
    if (form.pointwise) {
      x = builder.Node("aten.silu.default", {Ref("self", x)}, scores);
    }
    if (form.mask == Mask::kAdd) {
      const auto mask = builder.Input("mask", DType::kFloat32, {l, s});
      x = builder.Node("aten.add.Tensor", {Ref("self", x), Ref("other", mask)},
                       scores);
    } else if (form.mask != Mask::kNone) {
      const auto lengths = builder.Input("mask", DType::kFloat32, {l, s});
      const auto mask = builder.Node(
          "aten.gt.Scalar", {Ref("self", lengths), Float("other", 0.5)},
          {DType::kBool, {l, s}});
      x = form.mask == Mask::kSelect
              ? builder.Node("aten.where.ScalarOther",
                             {Ref("condition", mask), Ref("self", x),
                              Float("other", 0.0)},
                             scores)
              : builder.Node(
                    "aten.masked_fill.Scalar",
                    {Ref("self", x), Ref("mask", mask),
                     Float("value",
                           form.pointwise
                               ? 0.0
                               : -std::numeric_limits<double>::infinity())},
                    scores);
    }
    if (!form.pointwise) {
      x = builder.Node("aten.softmax.int",
                       {Ref("self", x), Int("dim", softmax_dim)}, scores);
    }
    if (form.dropout) {
      x = builder.Node("aten.dropout.default",
                       {Ref("input", x), Float("p", 0.5), Bool("train", false)},
                       scores);
    }
    weights = x;
    builder.Output(builder.Node(op, {Ref("self", x), Ref(right, value)},
                                {DType::kFloat32, shape(l, value_width)}));
    builder.graph().batch_symbol = "b";
    width = value_width;
  }

  std::vector<base::Tensor> Request(int64_t batch, int64_t length,
                                    int64_t steps, std::mt19937& random) const {
    const auto make = [&](int64_t rows, int64_t columns, bool is_mask) {
      base::Dims dims = {batch};
      if (is_mask) dims.clear();
      if (form.heads && !is_mask) dims.push_back(2);
      dims.push_back(rows);
      dims.push_back(columns);
      base::Tensor tensor = Must(base::Tensor::Allocate(DType::kFloat32, dims));
      const auto values = testing::RandomFloats(tensor.bytes() / 4, random);
      std::copy(values.begin(), values.end(), tensor.as<float>().begin());
      return tensor;
    };
    std::vector<base::Tensor> inputs;
    inputs.push_back(make(length, 5, false));
    inputs.push_back(form.turned ? make(steps, 5, false)
                                 : make(5, steps, false));
    inputs.push_back(make(steps, width, false));
    if (form.mask != Mask::kNone) inputs.push_back(make(length, steps, true));
    return inputs;
  }

  const Form form;
  GraphBuilder builder;
  ValueId weights;
  int64_t width;
};

TEST(FuseAttentionTest, EveryFormIsOneStepAndLibTorchs) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (const bool heads : {false, true}) {
    for (const Scale scale : {Scale::kNone, Scale::kMultiply, Scale::kDivide}) {
      for (const Mask mask : {Mask::kNone, Mask::kAdd, Mask::kFill}) {
        const Form form = {heads, random() % 2 == 0, random() % 2 == 0, scale,
                           mask};
        SCOPED_TRACE(absl::StrCat(heads, form.turned, form.dropout,
                                  static_cast<int>(scale),
                                  static_cast<int>(mask)));
        WrittenAttention attention(form, random() % 2 == 0 ? 16 : 7);
        const auto kernels = testing::KernelsOf(attention.builder);
        EXPECT_THAT(kernels, Contains(EndsWith("softmax+bmm")));
        EXPECT_LE(kernels.size(), mask == Mask::kFill ? 2u : 1u);
        // More queries than a block holds; one; none.
        for (const auto& [length, steps] :
             {std::pair<int64_t, int64_t>{70, 33}, {1, 5}, {3, 1}, {0, 4}}) {
          const auto request = attention.Request(3, length, steps, random);
          testing::ExpectLibTorchs(attention.builder, request, 1e-5f);
          if (length != 3) continue;
          testing::ExpectCutsChangeNothing(attention.builder, request);
        }
      }
    }
  }
}

TEST(FuseAttentionTest, WeightsThatAreReadElsewhereStay) {
  std::mt19937 random(1);
  WrittenAttention attention({false, true, false, Scale::kMultiply, Mask::kAdd},
                             7);
  attention.builder.Output(attention.weights);
  EXPECT_THAT(testing::KernelsOf(attention.builder), Contains("softmax"));
  testing::ExpectLibTorchs(attention.builder,
                           attention.Request(2, 4, 6, random), 1e-5f);
}

TEST(FuseAttentionTest, SoftmaxOverQueriesIsNone) {
  std::mt19937 random(1);
  for (const int64_t dim : {-2, 0}) {
    WrittenAttention attention(
        {false, true, false, Scale::kMultiply, Mask::kAdd}, 7, dim);
    EXPECT_THAT(testing::KernelsOf(attention.builder), Contains("softmax"));
    testing::ExpectLibTorchs(attention.builder,
                             attention.Request(2, 4, 6, random), 1e-5f);
  }
}

TEST(FuseAttentionTest, NothingButMaskedScoresIsNan) {
  std::mt19937 random(1);
  WrittenAttention attention({true, true, true, Scale::kDivide, Mask::kFill},
                             16);
  auto request = attention.Request(1, 2, 3, random);
  auto mask = request[3].as<float>();
  std::fill(mask.begin(), mask.begin() + 3, 1.0f);
  const auto got = Must(testing::RunWhole(attention.builder, request));
  EXPECT_TRUE(std::isnan(got[0].view().as<float>()[0]));
  testing::ExpectLibTorchs(attention.builder, request, 1e-5f);
}

TEST(FuseAttentionTest, EveryPointwiseFormIsOneStepAndLibTorchs) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (const bool heads : {false, true}) {
    for (const Mask mask :
         {Mask::kNone, Mask::kAdd, Mask::kFill, Mask::kSelect}) {
      const Form form = {heads,
                         random() % 2 == 0,
                         random() % 2 == 0,
                         random() % 2 == 0 ? Scale::kMultiply : Scale::kNone,
                         mask,
                         true};
      SCOPED_TRACE(absl::StrCat(heads, form.turned, form.dropout,
                                static_cast<int>(form.scale),
                                static_cast<int>(mask)));
      WrittenAttention attention(form, random() % 2 == 0 ? 16 : 7);
      const auto kernels = testing::KernelsOf(attention.builder);
      EXPECT_THAT(kernels, Contains(::testing::AllOf(StartsWith("bmm+"),
                                                     EndsWith("+bmm"),
                                                     HasSubstr("silu"))));
      // More queries and steps than blocks hold; few; none.
      for (const auto& [length, steps] : {std::pair<int64_t, int64_t>{70, 300},
                                          {2, 290},
                                          {3, 1},
                                          {3, 0},
                                          {0, 4}}) {
        const auto request = attention.Request(3, length, steps, random);
        testing::ExpectLibTorchs(attention.builder, request, 1e-5f);
        if (length != 3) continue;
        testing::ExpectCutsChangeNothing(attention.builder, request);
      }
    }
  }
}

// Queries 0 to 63 and 64 to 127 are blocks; so are steps 0 to 127, and so on.
TEST(FuseAttentionTest, BlocksThatAreMaskedAreLeftOut) {
  std::mt19937 random(1);
  for (const Mask mask : {Mask::kFill, Mask::kSelect}) {
    WrittenAttention attention(
        {true, true, false, Scale::kMultiply, mask, true}, 16);
    auto request = attention.Request(2, 130, 300, random);
    const auto keep = request[3].as<float>();
    for (int64_t query = 0; query < 130; ++query) {
      for (int64_t step = 0; step < 300; ++step) {
        // Causal, and nothing at all for the last two queries.
        const bool kept = step <= query && query < 128;
        keep[query * 300 + step] = kept == (mask == Mask::kSelect) ? 1 : 0;
      }
    }
    testing::ExpectLibTorchs(attention.builder, request, 1e-5f);
    testing::ExpectCutsChangeNothing(attention.builder, request);
    // Infinite keys are masked by the selection; infinite values show even
    // where weights are 0.
    const auto keys = request[1].as<float>();
    std::fill(keys.begin() + 200 * 5, keys.begin() + 300 * 5,
              std::numeric_limits<float>::infinity());
    testing::ExpectLibTorchs(attention.builder, request, 1e-5f);
    const auto values = request[2].as<float>();
    values[299 * 16 + 3] = -std::numeric_limits<float>::infinity();
    const auto got = Must(testing::RunWhole(attention.builder, request));
    EXPECT_TRUE(std::isnan(got[0].view().as<float>()[3]));
    EXPECT_FALSE(std::isnan(got[0].view().as<float>()[4]));
    testing::ExpectLibTorchs(attention.builder, request, 1e-5f);
  }
}

TEST(FuseAttentionTest, PointwiseWeightsThatAreReadElsewhereStay) {
  std::mt19937 random(1);
  WrittenAttention attention(
      {false, true, false, Scale::kMultiply, Mask::kSelect, true}, 7);
  attention.builder.Output(attention.weights);
  EXPECT_THAT(testing::KernelsOf(attention.builder), Contains("bmm"));
  testing::ExpectLibTorchs(attention.builder,
                           attention.Request(2, 4, 6, random), 1e-5f);
}

}  // namespace
}  // namespace refract::runtime
