// Element-wise functions against double precision and against LibTorch, alone
// and fused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "runtime/cpu/elements/functions.h"
#include "runtime/cpu/elements/instruction.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/testing/run.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::NamedArgument;
using ::testing::ElementsAre;
using testing::Float;
using testing::GraphBuilder;
using testing::Int;
using testing::Must;
using testing::Ref;
using testing::Sym;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Every 997th float: both signs, subnormal numbers, infinities, NaN.
std::vector<float> ManyFloats() {
  std::vector<float> values = {0.0f, -0.0f, kInf, -kInf, kNan, 1.0f, -1.0f};
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 99'7001) {
    const auto word = static_cast<uint32_t>(bits);
    float value;
    std::memcpy(&value, &word, sizeof(value));
    values.push_back(value);
  }
  for (float x = -20; x < 20; x += 0.0037f) values.push_back(x);
  return values;
}

struct Function {
  const char* name;
  ElementCode code;
  double (*exact)(double);
  double ulps;      // relative
  double absolute;  // beside it
};

double Ulp(double x) {
  const auto f = static_cast<float>(std::abs(x));
  if (std::isinf(f)) return 0x1p104;
  return static_cast<double>(std::nextafterf(f, kInf)) - f;
}

TEST(ElementFunctionTest, OnePlusExpIsOneAndExp) {
  // NaNs, infinities and subnormals are among these.
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 997) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(cpu::OnePlusExp(x)),
              std::bit_cast<uint32_t>(1.0f + cpu::Exp(x)))
        << x;
  }
  // Every float near the overflow of the result.
  for (float x = 87.0f; x < 90.0f; x = std::nextafter(x, 100.0f)) {
    ASSERT_EQ(cpu::OnePlusExp(x), 1.0f + cpu::Exp(x)) << x;
    ASSERT_EQ(cpu::OnePlusExp(-x), 1.0f + cpu::Exp(-x)) << -x;
  }
}

TEST(ElementFunctionTest, MatchDoublePrecision) {
  const Function functions[] = {
      {"exp", ElementCode::kExp, [](double x) { return std::exp(x); }, 2, 0},
      {"log", ElementCode::kLog, [](double x) { return std::log(x); }, 2, 0},
      {"log1p", ElementCode::kLog1p, [](double x) { return std::log1p(x); }, 4,
       0},
      {"tanh", ElementCode::kTanh, [](double x) { return std::tanh(x); }, 3, 0},
      {"erf", ElementCode::kErf, [](double x) { return std::erf(x); }, 2, 0},
      {"sigmoid", ElementCode::kSigmoid,
       [](double x) { return 1 / (1 + std::exp(-x)); }, 4, 1e-38},
      {"silu", ElementCode::kSilu,
       [](double x) { return x / (1 + std::exp(-x)); }, 4, 1e-35},
      {"gelu", ElementCode::kGelu,
       [](double x) { return 0.5 * x * (1 + std::erf(x * M_SQRT1_2)); }, 4,
       4e-7},
      {"rsqrt", ElementCode::kReciprocalSqrt,
       [](double x) { return 1 / std::sqrt(x); }, 2, 0},
  };
  const std::vector<float> values = ManyFloats();
  std::vector<float> results(values.size());
  for (const Function& function : functions) {
    SCOPED_TRACE(function.name);
    cpu::RunInstruction({function.code}, values.data(), nullptr, nullptr,
                        static_cast<int64_t>(values.size()), results.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const float x = values[i];
      const double exact = function.exact(x);
      const auto rounded = static_cast<float>(exact);
      const bool product = function.code == ElementCode::kSilu ||
                           function.code == ElementCode::kGelu;
      if (std::isnan(exact) || (product && std::isinf(x))) {
        // LibTorch's result is NaN, too: −inf × 0.
        if (!product) {
          ASSERT_TRUE(std::isnan(results[i])) << x << " " << results[i];
        }
        continue;
      }
      if (std::isinf(rounded) || std::isinf(results[i])) {
        // The overflow may occur one ulp earlier or later.
        ASSERT_GE(std::abs(exact), 3.40282e38) << x;
        ASSERT_EQ(std::signbit(results[i]), std::signbit(rounded)) << x;
        continue;
      }
      ASSERT_NEAR(results[i], exact,
                  function.ulps * Ulp(exact) + function.absolute)
          << function.name << "(" << x << ")";
    }
    // An element alone has the bits that it has among others.
    for (size_t i = 0; i < values.size(); i += 501) {
      float alone;
      cpu::RunInstruction({function.code}, &values[i], nullptr, nullptr, 1,
                          &alone);
      ASSERT_EQ(std::memcmp(&alone, &results[i], sizeof(alone)), 0)
          << values[i];
    }
  }
}

struct Operator {
  std::string op;
  int tensors;
  std::vector<NamedArgument> numbers;
  DType result = DType::kFloat32;
};

class ElementOperatorTest : public ::testing::TestWithParam<Operator> {};

TEST_P(ElementOperatorTest, IsLibTorchs) {
  const Operator& op = GetParam();
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  static const char* const kNames[] = {"self", "other"};
  // Without broadcast, and with each broadcast of real models.
  const std::vector<std::vector<int64_t>> shapes[] = {
      {{7, 40}, {7, 40}},  {{300, 3}, {3}},     {{5, 1}, {1, 9}},
      {{2, 3, 4}, {3, 1}}, {{4, 1, 6}, {2, 1}}, {{1}, {1}},
      {{0, 3}, {3}}};
  for (const auto& shape : shapes) {
    GraphBuilder builder;
    std::vector<base::Tensor> inputs;
    std::vector<NamedArgument> args;
    size_t rank = 0;
    for (int t = 0; t < op.tensors; ++t) {
      std::vector<models::SymExpr> dims;
      size_t count = 1;
      for (int64_t dim : shape[t]) {
        dims.push_back(Sym(absl::StrCat("s", t, "_", dims.size())));
        count *= static_cast<size_t>(dim);
      }
      rank = std::max(rank, dims.size());
      auto values = testing::RandomFloats(count, random);
      for (float& value : values) value *= 4;
      if (count > 20) {
        values[1] = kNan;
        values[2] = kInf;
        values[3] = -kInf;
        values[4] = -0.0f;
        values[5] = 0.0f;
      }
      inputs.push_back(Must(base::Tensor::Allocate(
          DType::kFloat32, base::Dims(shape[t].begin(), shape[t].end()))));
      if (count > 0) {
        std::memcpy(inputs.back().data(), values.data(), inputs.back().bytes());
      }
      args.push_back(Ref(kNames[t], builder.Input(absl::StrCat("x", t),
                                                  DType::kFloat32, dims)));
    }
    for (const NamedArgument& number : op.numbers) args.push_back(number);
    std::vector<models::SymExpr> open;
    for (size_t d = 0; d < rank; ++d) open.push_back(Sym(absl::StrCat("o", d)));
    builder.Output(builder.Node(op.op, args, {op.result, open}));
    ASSERT_NE(testing::KernelsOf(builder)[0], "libtorch");
    const auto ours = Must(testing::RunWhole(builder, inputs));
    const auto torch = Must(testing::RunByLibTorch(builder, inputs));
    ASSERT_EQ(ours[0].dims(), torch[0].dims());
    ASSERT_EQ(ours[0].dtype(), op.result);
    if (op.result == DType::kBool) {
      ASSERT_TRUE(testing::SameBits(ours[0], torch[0]));
      continue;
    }
    const auto a = ours[0].view().as<float>();
    const auto b = torch[0].view().as<float>();
    for (size_t i = 0; i < a.size(); ++i) {
      // LibTorch's vectors give NaN for gelu(inf), its scalars infinity.
      if (std::isnan(b[i]) && std::isinf(a[i]) &&
          absl::StrContains(op.op, "gelu")) {
        continue;
      }
      if (std::isnan(b[i])) {
        ASSERT_TRUE(std::isnan(a[i])) << i << " " << a[i];
      } else if (std::isinf(b[i])) {
        ASSERT_EQ(a[i], b[i]) << i;
      } else {
        // In the 1 + erf of a GELU, −4 · (1 − 1) cancels all but the first
        // digits, in LibTorch too.
        const double tolerance = absl::StrContains(op.op, "gelu") ? 4e-6 : 1e-6;
        ASSERT_NEAR(a[i], b[i], tolerance * std::max(1.0f, std::abs(b[i])))
            << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Operators, ElementOperatorTest,
    ::testing::Values(
        Operator{"aten.neg.default", 1, {}},
        Operator{"aten.abs.default", 1, {}},
        Operator{"aten.sign.default", 1, {}},
        Operator{"aten.relu.default", 1, {}},
        Operator{"aten.sigmoid.default", 1, {}},
        Operator{"aten.tanh.default", 1, {}},
        Operator{"aten.exp.default", 1, {}},
        Operator{"aten.log.default", 1, {}},
        Operator{"aten.log1p.default", 1, {}},
        Operator{"aten.sqrt.default", 1, {}},
        Operator{"aten.rsqrt.default", 1, {}},
        Operator{"aten.reciprocal.default", 1, {}},
        Operator{"aten.square.default", 1, {}},
        Operator{"aten.erf.default", 1, {}},
        Operator{"aten.silu.default", 1, {}},
        Operator{"aten.gelu.default", 1, {}},
        Operator{
            "aten.gelu.default", 1, {{"approximate", std::string("tanh")}}},
        Operator{"aten.leaky_relu.default", 1, {Float("negative_slope", 0.2)}},
        Operator{"aten.elu.default", 1, {Float("alpha", 1.3)}},
        Operator{"aten.clamp.default", 1, {Float("min", -0.5)}},
        Operator{"aten.clamp.default", 1, {Float("min", -0.5), Int("max", 1)}},
        Operator{"aten.clamp_min.default", 1, {Int("min", 0)}},
        Operator{"aten.hardtanh.default", 1, {}},
        Operator{"aten.relu6.default", 1, {}},
        Operator{"aten.pow.Tensor_Scalar", 1, {Int("exponent", 2)}},
        Operator{"aten.pow.Tensor_Scalar", 1, {Float("exponent", 0.5)}},
        Operator{"aten.rsub.Scalar", 1, {Int("other", 1)}},
        Operator{
            "aten.rsub.Scalar", 1, {Float("other", 0.5), Float("alpha", 3)}},
        Operator{"aten.add.Scalar", 1, {Float("other", 0.25)}},
        Operator{"aten.add.Tensor", 2, {}},
        Operator{"aten.add.Tensor", 2, {Float("alpha", 0.5)}},
        Operator{"aten.sub.Tensor", 2, {}}, Operator{"aten.mul.Tensor", 2, {}},
        Operator{"aten.div.Tensor", 2, {}},
        Operator{"aten.minimum.default", 2, {}},
        Operator{"aten.maximum.default", 2, {}},
        Operator{"aten.eq.Tensor", 2, {}, DType::kBool},
        Operator{"aten.ne.Tensor", 2, {}, DType::kBool},
        Operator{"aten.lt.Tensor", 2, {}, DType::kBool},
        Operator{"aten.le.Tensor", 2, {}, DType::kBool},
        Operator{"aten.gt.Tensor", 2, {}, DType::kBool},
        Operator{"aten.ge.Scalar", 1, {Float("other", 0.1)}, DType::kBool}),
    [](const auto& info) {
      std::string name = absl::StrCat(info.param.op, "_", info.index);
      for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
      return name;
    });

TEST(PreluTest, OfOneWeightOrOnePerColumn) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  struct Case {
    std::vector<int64_t> dims;
    int64_t weights;
    bool native;
  };
  for (const Case& c : {Case{{7, 40}, 1, true}, Case{{7, 40}, 40, true},
                        Case{{3, 5, 9}, 1, true}, Case{{11}, 1, true},
                        // Columns are dimension 1.
                        Case{{3, 5, 9}, 5, false}}) {
    GraphBuilder builder;
    std::vector<models::SymExpr> dims(c.dims.begin(), c.dims.end());
    const auto x = builder.Input("x", DType::kFloat32, dims);
    const auto weight = builder.Weight<float>(
        "w", {c.weights},
        testing::RandomFloats(static_cast<size_t>(c.weights), random));
    builder.Output(builder.Node("aten.prelu.default",
                                {Ref("self", x), Ref("weight", weight)},
                                {DType::kFloat32, dims}));
    std::vector<base::Tensor> inputs;
    inputs.push_back(Must(base::Tensor::Allocate(
        DType::kFloat32, base::Dims(c.dims.begin(), c.dims.end()))));
    auto values = inputs[0].as<float>();
    const auto drawn = testing::RandomFloats(values.size(), random);
    std::copy(drawn.begin(), drawn.end(), values.begin());
    values[0] = kNan;
    values[1] = kInf;
    values[2] = -kInf;
    values[3] = -0.0f;
    EXPECT_EQ(testing::KernelsOf(builder)[0] != "libtorch", c.native);
    const auto ours = Must(testing::RunWhole(builder, inputs));
    const auto torch = Must(testing::RunByLibTorch(builder, inputs));
    const auto a = ours[0].view().as<float>();
    const auto b = torch[0].view().as<float>();
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_TRUE(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) << i;
    }
  }
}

// where(x > y, x × 2, sigmoid(y)) + x as one step, and in two parts.
TEST(ElementChainTest, MergesWithoutChangingABit) {
  GraphBuilder builder;
  const auto b = Sym("b");
  const GraphBuilder::Result like = {DType::kFloat32, {b, 50}};
  const auto x = builder.Input("x", DType::kFloat32, {b, 50});
  const auto y = builder.Input("y", DType::kFloat32, {b, 50});
  const auto more =
      builder.Node("aten.gt.Tensor", {Ref("self", x), Ref("other", y)},
                   {DType::kBool, {b, 50}});
  const auto twice = builder.Node("aten.mul.Tensor",
                                  {Ref("self", x), Float("other", 2)}, like);
  const auto gate =
      builder.Node("aten.sigmoid.default", {Ref("self", y)}, like);
  const auto chosen = builder.Node(
      "aten.where.self",
      {Ref("condition", more), Ref("self", twice), Ref("other", gate)}, like);
  builder.Output(builder.Node("aten.add.Tensor",
                              {Ref("self", chosen), Ref("other", x)}, like));
  builder.graph().batch_symbol = "b";
  EXPECT_THAT(testing::KernelsOf(builder),
              ElementsAre("gt+mul+sigmoid+where+add"));
  std::mt19937 random(3);
  std::vector<base::Tensor> inputs;
  for (int i = 0; i < 2; ++i) {
    inputs.push_back(testing::MakeTensor<float>(
        {21, 50}, testing::RandomFloats(21 * 50, random)));
  }
  const auto whole = Must(testing::RunWhole(builder, inputs));
  const models::Graph& graph = builder.graph();
  for (int cut = 1; cut < 5; ++cut) {
    std::vector<int> stages(5, 0);
    for (int i = cut; i < 5; ++i) stages[i] = 1;
    auto split = Must(RequestRunner::Split(
        graph, testing::PlanOf(graph, stages), builder.Weights(), {}));
    const auto parts = Must(split->Run(testing::Views(inputs)));
    EXPECT_TRUE(testing::SameBits(whole[0], parts[0])) << "cut " << cut;
  }
}

}  // namespace
}  // namespace refract::runtime
