// Ids, lengths and masks: the emulated GPU has the bits of LibTorch on a CPU
// and of the CPU backend.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "runtime/cuda_plan/translate.h"
#include "tests/runtime/cuda_plan/expect_exact.h"
#include "tests/runtime/cuda_plan/expect_same.h"
#include "tests/runtime/cuda_plan/run_translation.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime::cuda_plan {
namespace {

using base::DType;
using models::ValueId;
using runtime::testing::Bool;
using runtime::testing::Float;
using runtime::testing::Int;
using runtime::testing::Ints;
using runtime::testing::List;
using runtime::testing::MakeTensor;
using runtime::testing::Must;
using runtime::testing::Ref;
using runtime::testing::Sym;
using runtime::testing::Views;
using testing::AnyTensor;
using testing::ExpectExact;
using testing::ExpectRefused;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kMaxBatch;
using testing::Model;
using testing::OnDevice;
using testing::OptionsFor;
using testing::Seed;

constexpr DType kTypes[] = {DType::kInt64, DType::kInt32};

TEST(TranslateIntegersTest, ArithmeticWrapsAndRoundsAsPyTorchs) {
  for (const DType dtype : kTypes) {
    SCOPED_TRACE(base::Name(dtype));
    Model m;
    const ValueId x = m.In("x", {3, 5}, dtype);
    const ValueId y = m.In("y", {1, 5}, dtype);
    const ValueId turned =
        m.Op("aten.transpose.int",
             {Ref("self", x), Int("dim0", 1), Int("dim1", 2)}, {5, 3}, dtype);
    const ValueId back = m.Op(
        "aten.transpose.int",
        {Ref("self",
             m.Op("aten.neg.default", {Ref("self", turned)}, {5, 3}, dtype)),
         Int("dim0", 1), Int("dim1", 2)},
        {3, 5}, dtype);
    const auto output = [&](const std::string& op,
                            std::vector<models::NamedArgument> args,
                            DType gives) {
      m.Output(m.Op(op, std::move(args), {3, 5}, gives));
    };
    for (const char* op :
         {"aten.neg.default", "aten.abs.default", "aten.bitwise_not.default"}) {
      output(op, {Ref("self", x)}, dtype);
    }
    for (const char* op :
         {"aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor",
          "aten.minimum.default", "aten.maximum.default",
          "aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor",
          "aten.bitwise_xor.Tensor"}) {
      output(op, {Ref("self", back), Ref("other", y)}, dtype);
    }
    for (const char* op : {"eq", "ne", "lt", "le", "gt", "ge"}) {
      output(absl::StrCat("aten.", op, ".Tensor"),
             {Ref("self", x), Ref("other", y)}, DType::kBool);
      output(absl::StrCat("aten.", op, ".Scalar"),
             {Ref("self", x), Int("other", 2)}, DType::kBool);
    }
    output("aten.logical_not.default", {Ref("self", x)}, DType::kBool);
    output("aten.logical_and.default", {Ref("self", x), Ref("other", y)},
           DType::kBool);
    output("aten.rsub.Scalar", {Ref("self", x), Int("other", 7)}, dtype);
    output("aten.clamp.default",
           {Ref("self", x), Int("min", -3), Int("max", 4)}, dtype);
    // The upper bound wins.
    output("aten.clamp.default", {Ref("self", x), Int("min", 4), Int("max", 1)},
           dtype);
    output("aten.clamp.default", {Ref("self", x), Int("max", 1)}, dtype);
    output("aten.clamp_min.default", {Ref("self", x), Int("min", 0)}, dtype);
    for (const int64_t by : {3, -3, 1}) {
      for (const char* op : {"aten.remainder.Scalar", "aten.fmod.Scalar"}) {
        output(op, {Ref("self", x), Int("other", by)}, dtype);
      }
      for (const char* how : {"floor", "trunc"}) {
        output("aten.div.Scalar_mode",
               {Ref("self", x),
                Int("other", by),
                {"rounding_mode", std::string(how)}},
               dtype);
      }
      output("aten.floor_divide.Scalar", {Ref("self", x), Int("other", by)},
             dtype);
    }
    ExpectExact(m);
  }
}

TEST(TranslateIntegersTest, ComparesBeyondWhatFloatsTellApart) {
  constexpr int64_t kLarge = int64_t{1} << 24;
  Model m;
  const ValueId x = m.In("x", {9}, DType::kInt64);
  const ValueId few =
      m.Op("aten.remainder.Scalar", {Ref("self", x), Int("other", 3)}, {9},
           DType::kInt64);
  const ValueId large =
      m.Op("aten.add.Tensor", {Ref("self", few), Int("other", kLarge)}, {9},
           DType::kInt64);
  for (const char* op : {"aten.eq.Scalar", "aten.ge.Scalar"}) {
    m.Output(m.Op(op, {Ref("self", large), Int("other", kLarge + 1)}, {9},
                  DType::kBool));
  }
  m.Output(m.Op("aten.ge.Tensor", {Ref("self", large), Ref("other", x)}, {9},
                DType::kBool));
  ExpectExact(m);
}

TEST(TranslateIntegersTest, DividesByConstantsOfEachColumn) {
  Model m;
  const ValueId ids = m.In("ids", {4}, DType::kInt64);
  const ValueId buckets =
      m.Weight<int64_t>("buckets", {4}, {7, int64_t{1} << 40, -11, 1});
  for (const char* op : {"aten.remainder.Tensor", "aten.floor_divide.default",
                         "aten.fmod.Tensor"}) {
    m.Output(m.Op(op, {Ref("self", ids), Ref("other", buckets)}, {4},
                  DType::kInt64));
  }
  ExpectExact(m);
}

TEST(TranslateIntegersTest, CastsBetweenAllTypes) {
  Model m;
  const DType types[] = {DType::kInt64, DType::kInt32, DType::kBool,
                         DType::kFloat32};
  for (const DType from : types) {
    const ValueId x = m.In(std::string(base::Name(from)), {5}, from);
    for (const DType to : types) {
      if (to == from) continue;
      m.Output(m.Op("aten.to.dtype", {Ref("self", x), {"dtype", to}}, {5}, to));
    }
  }
  ExpectExact(m);
}

// Floats outside the range of integers become the least integer, as in the CPU
// backend.
TEST(TranslateIntegersTest, FloatsThatAreNoIntegers) {
  Model m;
  const ValueId x = m.In("x", {8});
  for (const DType to : kTypes) {
    m.Output(m.Op("aten.to.dtype", {Ref("self", x), {"dtype", to}}, {8}, to));
  }
  m.graph().batch_symbol = "b";
  const Part part = Part::Whole(m.graph());
  const auto weights = m.Weights();
  auto device =
      Must(OnDevice::Load(Must(Translate(m.graph(), part, weights,
                                         OptionsFor(Precision::kFloat32))),
                          kMaxBatch, Seed()));
  const auto cpu = Must(Program::Compile(m.graph(), part, weights, {}));
  std::vector<base::Tensor> inputs;
  inputs.push_back(MakeTensor<float>({1, 8}, {NAN, INFINITY, -INFINITY, 1e30f,
                                              0x1p31f, -0x1p31f, -1.9f, 3e9f}));
  RunContext context(*cpu);
  std::vector<base::TensorView> want;
  ASSERT_TRUE(cpu->Run(Views(inputs), {nullptr, nullptr}, context, want).ok());
  const auto got = Must(device->Run(Views(inputs), 1));
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(testing::Difference(got[i], want[i]), 0) << "output " << i;
  }
}

// Ids among floats, as in DeepCTR, do not fit 16-bit floats: operators before
// their cast stay in float32.
TEST(TranslateIntegersTest, IdsAmongFloatsKeepAllBitsInAnyPrecision) {
  for (const Precision precision : testing::kPrecisions) {
    SCOPED_TRACE(Name(precision));
    Model m;
    const ValueId x = m.In("x", {3});
    const ValueId y = m.In("y", {2});
    const ValueId cast = m.Op("aten.to.dtype",
                              {Ref("self", m.In("n", {2}, DType::kInt32)),
                               {"dtype", DType::kFloat32}},
                              {2});
    const ValueId dense =
        m.Op("aten.linear.default",
             {Ref("input", y), Ref("weight", m.Floats("w", {4, 2}))}, {4});
    const ValueId all =
        m.Op("aten.cat.default",
             {List("tensors", {dense, x, y, cast}), Int("dim", 1)}, {11});
    const ValueId next =
        m.Op("aten.add.Tensor", {Ref("self", all), Int("other", 1)}, {11});
    const ValueId twice =
        m.Op("aten.relu.default",
             {Ref("self", m.Op("aten.mul.Tensor",
                               {Ref("self", next), Float("other", 2)}, {11}))},
             {11});
    for (const ValueId from : {x, all, next, twice}) {
      const ValueId ids = m.Op(
          "aten.slice.Tensor",
          {Ref("self", from), Int("dim", 1), Int("start", from == x ? 0 : 4),
           Int("end", from == x ? 3 : 11)},
          {from == x ? 3 : 7});
      m.Output(m.Op("aten.to.dtype",
                    {Ref("self", ids), {"dtype", DType::kInt64}},
                    {from == x ? 3 : 7}, DType::kInt64));
    }
    // A product reads the ids as numbers, too.
    m.Output(m.Op("aten.linear.default",
                  {Ref("input", all), Ref("weight", m.Floats("v", {2, 11}))},
                  {2}));
    m.graph().batch_symbol = "b";
    const Part part = Part::Whole(m.graph());
    const auto weights = m.Weights();
    const auto cpu = Must(Program::Compile(m.graph(), part, weights, {}));
    auto device = Must(OnDevice::Load(
        Must(Translate(m.graph(), part, weights, OptionsFor(precision))),
        kMaxBatch, Seed()));
    std::mt19937 random(Seed());
    constexpr int64_t kBatch = 5;
    std::vector<base::Tensor> inputs;
    for (const ValueId id : part.inputs) {
      inputs.push_back(AnyTensor(m.graph().value(id), kBatch, random));
      const auto draw = [&] { return static_cast<int>(random() % (1 << 20)); };
      base::Tensor& tensor = inputs.back();
      if (tensor.dtype() == DType::kFloat32) {
        for (float& number : tensor.as<float>()) {
          number = static_cast<float>(draw());
        }
      } else {
        for (int32_t& number : tensor.as<int32_t>()) number = draw();
      }
    }
    RunContext context(*cpu);
    std::vector<base::TensorView> want;
    ASSERT_TRUE(cpu->Run(Views(inputs),
                         std::vector<std::byte*>(part.outputs.size(), nullptr),
                         context, want)
                    .ok());
    const auto got = Must(device->Run(Views(inputs), kBatch));
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(testing::Difference(got[i], want[i]), 0)
          << "output " << i << ", seed " << Seed();
    }
    EXPECT_THAT(device->violations(), IsEmpty());
  }
}

TEST(TranslateIntegersTest, MasksSelectionsAndFills) {
  Model m;
  const ValueId ids = m.In("ids", {6}, DType::kInt64);
  const ValueId x = m.In("x", {6});
  const ValueId a = m.Op("aten.ge.Scalar", {Ref("self", ids), Int("other", 0)},
                         {6}, DType::kBool);
  const ValueId b = m.Op("aten.lt.Scalar", {Ref("self", ids), Int("other", 5)},
                         {6}, DType::kBool);
  for (const char* op :
       {"aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor",
        "aten.bitwise_xor.Tensor", "aten.__and__.Tensor", "aten.__or__.Tensor",
        "aten.logical_and.default", "aten.logical_or.default",
        "aten.logical_xor.default", "aten.eq.Tensor", "aten.mul.Tensor"}) {
    m.Output(m.Op(op, {Ref("self", a), Ref("other", b)}, {6}, DType::kBool));
  }
  m.Output(
      m.Op("aten.bitwise_not.default", {Ref("self", a)}, {6}, DType::kBool));
  const ValueId zeros =
      m.Op("aten.zeros_like.default", {Ref("self", ids)}, {6}, DType::kInt64);
  m.Output(m.Op("aten.where.self",
                {Ref("condition", a), Ref("self", ids), Ref("other", zeros)},
                {6}, DType::kInt64));
  m.Output(m.Op("aten.where.ScalarOther",
                {Ref("condition", a), Ref("self", ids), Int("other", 3)}, {6},
                DType::kInt64));
  m.Output(m.Op("aten.where.Scalar",
                {Ref("condition", a), Float("self", 0), Float("other", -1e4)},
                {6}));
  m.Output(m.Op("aten.where.ScalarSelf",
                {Ref("condition", b), Float("self", 2.5), Ref("other", x)},
                {6}));
  m.Output(m.Op("aten.masked_fill.Scalar",
                {Ref("self", ids), Ref("mask", b), Int("value", -1)}, {6},
                DType::kInt64));
  m.Output(m.Op("aten.full_like.default",
                {Ref("self", ids), Int("fill_value", 9)}, {6}, DType::kInt64));
  m.Output(m.Op("aten.full_like.default",
                {Ref("self", a), Float("fill_value", 0.5)}, {6}, DType::kBool));
  m.Output(m.Op("aten.zeros_like.default",
                {Ref("self", a), {"dtype", DType::kFloat32}}, {6}));
  m.Output(m.Op("aten.mul.Tensor", {Ref("self", a), Ref("other", x)}, {6}));
  m.Output(
      m.Op("aten.mul.Tensor", {Ref("self", a), Float("other", -0.5)}, {6}));
  m.Output(m.Op("aten.rsub.Scalar",
                {Ref("self", m.Op("aten.to.dtype",
                                  {Ref("self", a), {"dtype", DType::kInt64}},
                                  {6}, DType::kInt64)),
                 Float("other", 1.5)},
                {6}));
  ExpectExact(m);
}

TEST(TranslateIntegersTest, SumsAndExtremes) {
  for (const DType dtype : kTypes) {
    SCOPED_TRACE(base::Name(dtype));
    Model m;
    const ValueId x = m.In("x", {3, 5}, dtype);
    const ValueId mask =
        m.Op("aten.ne.Scalar", {Ref("self", x), Int("other", 0)}, {3, 5},
             DType::kBool);
    for (const ValueId of : {x, mask}) {
      m.Output(m.Op("aten.sum.dim_IntList", {Ref("self", of), Ints("dim", {1})},
                    {5}, DType::kInt64));
      m.Output(
          m.Op("aten.sum.dim_IntList",
               {Ref("self", of), Ints("dim", {1, -1}), Bool("keepdim", true)},
               {1, 1}, DType::kInt64));
      m.Output(m.Op("aten.any.dim", {Ref("self", of), Int("dim", 2)}, {3},
                    DType::kBool));
      m.Output(m.Op("aten.all.dim",
                    {Ref("self", of), Int("dim", 2), Bool("keepdim", true)},
                    {3, 1}, DType::kBool));
    }
    // Numbers whose sum is 0.
    const ValueId opposites = m.Op(
        "aten.cat.default",
        {List("tensors",
              {x, m.Op("aten.neg.default", {Ref("self", x)}, {3, 5}, dtype)}),
         Int("dim", 1)},
        {6, 5}, dtype);
    for (const DType to : {DType::kBool, DType::kInt32}) {
      m.Output(m.Op("aten.sum.dim_IntList",
                    {Ref("self", opposites),
                     Ints("dim", {1}),
                     Bool("keepdim", false),
                     {"dtype", to}},
                    {5}, to));
    }
    m.Output(m.Op("aten.amax.default", {Ref("self", x), Ints("dim", {1})}, {5},
                  dtype));
    m.Output(m.Op("aten.amin.default", {Ref("self", x), Ints("dim", {2})}, {3},
                  dtype));
    ExpectExact(m);
  }
}

TEST(TranslateIntegersTest, CopiesKeepAllBits) {
  for (const DType dtype : kTypes) {
    SCOPED_TRACE(base::Name(dtype));
    Model m;
    const ValueId x = m.In("x", {2, 3}, dtype);
    const ValueId y = m.In("y", {}, dtype);
    const ValueId turned =
        m.Op("aten.transpose.int",
             {Ref("self", x), Int("dim0", 1), Int("dim1", 2)}, {3, 2}, dtype);
    m.Output(m.Op("aten.reshape.default",
                  {Ref("self", turned), Ints("shape", {-1, 6})}, {6}, dtype));
    m.Output(m.Op("aten.cat.default", {List("tensors", {x, x}), Int("dim", 1)},
                  {4, 3}, dtype));
    m.Output(m.Op("aten.stack.default",
                  {List("tensors", {y, y}), Int("dim", 1)}, {2}, dtype));
    m.Output(m.Op("aten.repeat.default",
                  {Ref("self", turned), Ints("repeats", {1, 2, 1})}, {6, 2},
                  dtype));
    m.Output(x);
    ExpectExact(m);
  }
}

TEST(TranslateIntegersTest, Triangles) {
  Model m;
  const ValueId x = m.In("x", {3, 4});
  const ValueId ids = m.In("ids", {4, 3}, DType::kInt64);
  for (const int64_t diagonal : {0, 1, -2, 9, -9}) {
    for (const char* op : {"aten.tril.default", "aten.triu.default"}) {
      m.Output(m.Op(op, {Ref("self", x), Int("diagonal", diagonal)}, {3, 4}));
      m.Output(m.Op(op, {Ref("self", ids), Int("diagonal", diagonal)}, {4, 3},
                    DType::kInt64));
    }
  }
  ExpectExact(m);
}

// The vector of the last step, at an index from the request.
TEST(TranslateIntegersTest, GathersAndIndices) {
  Model m;
  const ValueId x = m.In("x", {5, 4});
  const ValueId any = m.In("place", {1}, DType::kInt64);
  const ValueId place =
      m.Op("aten.remainder.Scalar", {Ref("self", any), Int("other", 5)}, {1},
           DType::kInt64);
  const ValueId wide =
      m.Op("aten.expand.default",
           {Ref("self", m.Op("aten.unsqueeze.default",
                             {Ref("self", place), Int("dim", 2)}, {1, 1},
                             DType::kInt64)),
            Ints("size", {-1, -1, 4})},
           {1, 4}, DType::kInt64);
  m.Output(m.Op("aten.gather.default",
                {Ref("self", x), Int("dim", 1), Ref("index", wide)}, {1, 4}));
  const ValueId table = m.Floats("table", {5, 4});
  const ValueId from_end =
      m.Op("aten.sub.Tensor", {Ref("self", place), Int("other", 5)}, {1},
           DType::kInt64);
  for (const ValueId index : {place, from_end}) {
    m.Output(m.Op("aten.index.Tensor",
                  {Ref("self", table), List("indices", {index})}, {1, 4}));
  }
  const ValueId chosen = m.Weight<int64_t>("chosen", {3}, {4, -5, -1});
  m.Output(m.Op("aten.index.Tensor",
                {Ref("self", x), List("indices", {models::kNoValue, chosen})},
                {3, 4}));
  ExpectExact(m);
}

TEST(TranslateIntegersTest, PlacesThatAreNoneFailTheirRequest) {
  Model m;
  const ValueId x = m.In("x", {3});
  const ValueId places = m.In("places", {2}, DType::kInt64);
  m.Output(m.Op("aten.gather.default",
                {Ref("self", x), Int("dim", 1), Ref("index", places)}, {2}));
  m.graph().batch_symbol = "b";
  auto device = Must(OnDevice::Load(
      Must(Translate(m.graph(), Part::Whole(m.graph()), m.Weights(),
                     OptionsFor(Precision::kFloat32))),
      kMaxBatch, Seed()));
  const auto run = [&](const std::vector<int64_t>& values) {
    std::vector<base::Tensor> inputs;
    inputs.push_back(MakeTensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}));
    inputs.push_back(MakeTensor<int64_t>({2, 2}, values));
    return device->Run(Views(inputs), 2);
  };
  EXPECT_TRUE(run({0, 2, 1, 1}).ok());
  for (const int64_t wrong : {int64_t{3}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    EXPECT_THAT(std::string(run({0, wrong, wrong, 1}).status().message()),
                HasSubstr("2 ids are outside their tables"));
    EXPECT_TRUE(run({0, 2, 1, 1}).ok());
  }
}

TEST(TranslateIntegersTest, RefusesWhatMayDivideByZeroOrWiden) {
  const auto refused = [](const std::string& op, bool by_input, int64_t number,
                          DType dtype, const std::string& why) {
    Model m;
    const ValueId x = m.In("x", {3}, dtype);
    models::NamedArgument other = Int("other", number);
    if (by_input) other = Ref("other", m.In("y", {3}, dtype));
    m.Output(m.Op(op, {Ref("self", x), other}, {3}, dtype));
    ExpectRefused(m, why);
  };
  refused("aten.remainder.Tensor", true, 0, DType::kInt64,
          "requests may make it divide by 0");
  refused("aten.remainder.Scalar", false, 0, DType::kInt64, "it divides by 0");
  refused("aten.floor_divide.Scalar", false, 0, DType::kInt32,
          "it divides by 0");
  refused("aten.minimum.default", false, int64_t{1} << 40, DType::kInt32,
          "may be too large for int32");
  Model zeros;
  zeros.Output(zeros.Op("aten.remainder.Tensor",
                        {Ref("self", zeros.In("x", {2}, DType::kInt64)),
                         Ref("other", zeros.Weight<int64_t>("w", {2}, {3, 0}))},
                        {2}, DType::kInt64));
  ExpectRefused(zeros, "it divides by 0");
}

TEST(TranslateIntegersTest, RefusesByNameWhereTheFirstResultIsNotRead) {
  Model m;
  const auto results =
      m.Nodes("aten.max.dim", {Ref("self", m.In("x", {3})), Int("dim", 1)},
              {{DType::kFloat32, {Sym("b")}}, {DType::kInt64, {Sym("b")}}});
  m.Output(results[1]);
  ExpectRefused(m, "operator aten.max.dim (node n0) of model m cannot run");
}

}  // namespace
}  // namespace refract::runtime::cuda_plan
