// Fused steps on the emulated GPU against the CPU: products, interactions,
// cross layers.

#include "runtime/cuda_plan/translate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/cuda_plan/expect_same.h"
#include "tests/runtime/testing/run.h"
#include "tests/runtime/testing/small_dlrm.h"

namespace refract::runtime::cuda_plan {
namespace {

using models::ValueId;
using runtime::testing::Int;
using runtime::testing::Ints;
using runtime::testing::List;
using runtime::testing::Ref;
using testing::ExpectSame;
using testing::kPrecisions;
using testing::Model;
using testing::Seed;

TEST(TranslateTest, TheHnPartOfASmallDlrmInEveryType) {
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(Name(precision));
    runtime::testing::SmallDlrm dlrm(Seed());
    const models::SplitPlan plan = dlrm.Plan();
    ExpectSame(dlrm.builder(), Part::Hn(dlrm.builder().graph(), plan),
               precision);
  }
}

// DLRM's form: bottom, vectors, all pairs below the diagonal, top. The number
// of rows is read from an input, as exporters write it.
TEST(TranslateTest, InteractionsAreWrittenWhereTheNextLayerReadsThem) {
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(Name(precision));
    Model m;
    const ValueId dense = m.In("dense", {13});
    const ValueId rows =
        m.Node("aten.sym_size.int", {Ref("self", dense), Int("dim", 0)},
               {base::DType::kInt64, {}, models::ValueKind::kSymInt});
    m.graph().values[rows].sym_value = runtime::testing::Sym("b");
    std::vector<ValueId> vectors = {
        m.Layer(dense, 13, 16, {}, "aten.relu.default")};
    for (int i = 0; i < 4; ++i) {
      vectors.push_back(m.In(absl::StrCat("e", i), {16}));
    }
    const ValueId stack =
        m.Op("aten.stack.default", {List("tensors", vectors), Int("dim", 1)},
             {5, 16});
    const ValueId turned =
        m.Op("aten.transpose.int",
             {Ref("self", stack), Int("dim0", 1), Int("dim1", 2)}, {16, 5});
    const ValueId products = m.Op(
        "aten.bmm.default", {Ref("self", stack), Ref("mat2", turned)}, {5, 5});
    const ValueId flat =
        m.Op("aten.view.default",
             {Ref("self", products),
              {"size", models::IntList{{0, rows}, {25, models::kNoValue}}}},
             {25});
    const std::vector<int64_t> places = {5, 10, 11, 15, 16, 17, 20, 21, 22, 23};
    const ValueId pairs =
        m.Op("aten.index_select.default",
             {Ref("self", flat), Int("dim", 1),
              Ref("index", m.Weight<int64_t>("places", {10}, places))},
             {10});
    const ValueId joined =
        m.Op("aten.cat.default",
             {List("tensors", {vectors[0], pairs}), Int("dim", 1)}, {26});
    m.Output(m.Layer(joined, 26, 3, {}, "aten.sigmoid.default"));
    cuda::DeviceProgram program;
    ExpectSame(m, precision, &program);
    // Bottom, interaction, top, sigmoid. The upload converts float32 inputs.
    EXPECT_EQ(program.ops.size(), 4u);
  }
}

// In float16 100000 is infinity and 2049 is 2048. Only readers that compute in
// float16 anyway may get such a number.
TEST(TranslateTest, InputsOfACatKeepTheirDigitsForOtherReaders) {
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(Name(precision));
    Model m;
    const ValueId x = m.In("x", {2});
    const ValueId y = m.In("y", {2});
    const ValueId joined =
        m.Op("aten.cat.default", {List("tensors", {x, y}), Int("dim", 1)}, {4});
    const ValueId small =
        m.Op("aten.clamp.default",
             {Ref("self", joined), runtime::testing::Float("max", 1)}, {4});
    m.Output(m.Layer(small, 4, 3, {}));
    m.Output(m.Op("aten.log.default", {Ref("self", x)}, {2}));
    m.Output(m.Op("aten.eq.Tensor", {Ref("self", x), Ref("other", y)}, {2},
                  base::DType::kBool));
    m.graph().batch_symbol.assign(1, 'b');
    std::vector<base::Tensor> inputs;
    for (const std::vector<float>& values :
         {std::vector<float>{2049, 1e5F, 7, 2051}, {2049, 1e5F, 7, 2052}}) {
      inputs.push_back(runtime::testing::Must(
          base::Tensor::Allocate(base::DType::kFloat32, {2, 2})));
      std::copy(values.begin(), values.end(),
                inputs.back().as<float>().begin());
    }
    const std::vector<base::Tensor> want =
        runtime::testing::Must(runtime::testing::RunWhole(m, inputs));
    auto device = runtime::testing::Must(testing::OnDevice::Load(
        runtime::testing::Must(Translate(m.graph(), Part::Whole(m.graph()),
                                         m.Weights(),
                                         testing::OptionsFor(precision))),
        testing::kMaxBatch, Seed()));
    const auto got = device->Run(runtime::testing::Views(inputs), 2);
    ASSERT_TRUE(got.ok()) << got.status();
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_LE(testing::Difference((*got)[i], want[i].view()),
                testing::Tolerance(precision))
          << "output " << i;
    }
    EXPECT_THAT(device->violations(), ::testing::IsEmpty());
  }
}

// The products of all pairs, a look-up of the wanted ones, and in 16 bits the
// result's conversion.
TEST(TranslateTest, OtherPairsThanTheUsualOnes) {
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(Name(precision));
    Model m;
    std::vector<ValueId> vectors;
    for (int i = 0; i < 3; ++i) {
      vectors.push_back(m.In(absl::StrCat("e", i), {6}));
    }
    const ValueId stack =
        m.Op("aten.stack.default", {List("tensors", vectors), Int("dim", 1)},
             {3, 6});
    const ValueId turned =
        m.Op("aten.permute.default",
             {Ref("self", stack), Ints("dims", {0, 2, 1})}, {6, 3});
    const ValueId products = m.Op(
        "aten.bmm.default", {Ref("self", stack), Ref("mat2", turned)}, {3, 3});
    const ValueId flat =
        m.Op("aten.flatten.using_ints",
             {Ref("self", products), Int("start_dim", 1)}, {9});
    m.Output(
        m.Op("aten.index_select.default",
             {Ref("self", flat), Int("dim", 1),
              Ref("index", m.Weight<int64_t>("places", {4}, {1, 2, 5, 0}))},
             {4}));
    cuda::DeviceProgram program;
    ExpectSame(m, precision, &program);
    EXPECT_LE(program.ops.size(), 3u);
  }
}

TEST(TranslateTest, CrossLayers) {
  for (const Precision precision : kPrecisions) {
    SCOPED_TRACE(Name(precision));
    Model m;
    const ValueId x0 = m.In("x", {10});
    ValueId x = x0;
    for (int layer = 0; layer < 2; ++layer) {
      const ValueId low =
          m.Op("aten.linear.default",
               {Ref("input", x),
                Ref("weight", m.Floats(absl::StrCat("v", layer), {4, 10}))},
               {4});
      const ValueId y = m.Layer(low, 4, 10, {});
      const ValueId xy =
          m.Op("aten.mul.Tensor", {Ref("self", x0), Ref("other", y)}, {10});
      x = m.Op("aten.add.Tensor", {Ref("self", xy), Ref("other", x)}, {10});
    }
    m.Output(x);
    ExpectSame(m, precision);
  }
}

// Operators that are only strides on the device: [b, 3, 8] sliced, transposed
// and merged.

}  // namespace
}  // namespace refract::runtime::cuda_plan
