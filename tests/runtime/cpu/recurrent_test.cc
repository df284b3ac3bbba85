// Recurrent layers and cells against their definition in double precision and
// against LibTorch, and the statements of runtime/fusion/fused_op.h on their
// bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/compile/compiler.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/cpu/recurrent_layers.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::SymExpr;
using models::ValueId;
using testing::Bool;
using ::testing::ElementsAre;
using testing::Float;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Int;
using testing::Layers;
using testing::List;
using testing::Must;
using testing::RandomRows;
using testing::RandomSpec;
using testing::Ref;
using testing::SameBits;
using testing::Spec;
using testing::Sym;

class RecurrentTest : public ::testing::Test {
 protected:
  RecurrentTest() : random_(base::ProgramSeed()) {}
  ::testing::ScopedTrace seed_{
      __FILE__, __LINE__,
      absl::StrCat("REFRACT_TEST_SEED=", base::ProgramSeed())};
  std::mt19937 random_;
};

TEST_F(RecurrentTest, IsItsDefinitionAndLibTorchs) {
  for (int i = 0; i < 12; ++i) {
    const Spec spec = RandomSpec(random_);
    Layers layers(spec, random_);
    layers.OutputAll();
    const int64_t rows = RandomRows(random_);
    // Several groups of steps, but short enough for the oracle in double
    // precision.
    const int64_t most_steps =
        std::clamp<int64_t>(400'000'000 / (rows * spec.terms()), 1, 40);
    const auto steps =
        1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(most_steps));
    SCOPED_TRACE(
        absl::StrCat(spec.ToString(), ", ", rows, " rows, ", steps, " steps"));
    ASSERT_THAT(testing::KernelsOf(layers.builder()),
                ElementsAre(spec.cell + (spec.is_step ? "_cell" : "")));
    const auto inputs = layers.Request(rows, steps, random_);
    const auto own = Must(testing::RunWhole(layers.builder(), inputs));
    const auto wanted = layers.Definition(inputs);
    ASSERT_EQ(own.size(), wanted.size());
    for (size_t o = 0; o < own.size(); ++o) {
      const auto values = own[o].view().as<float>();
      ASSERT_EQ(values.size(), wanted[o].size());
      double largest = 1;
      for (double value : wanted[o]) {
        largest = std::max(largest, std::abs(value));
      }
      for (size_t v = 0; v < values.size(); ++v) {
        ASSERT_NEAR(values[v], wanted[o][v], 1e-5 * largest)
            << "output " << o << ", element " << v;
      }
    }
    testing::ExpectLibTorchs(layers.builder(), inputs, 2e-5f);
  }
}

TEST_F(RecurrentTest, AnItemsBitsDoNotDependOnItsBatch) {
  for (int i = 0; i < 6; ++i) {
    Spec spec = RandomSpec(random_);
    spec.given_weights = false;
    Layers layers(spec, random_);
    layers.OutputAll();
    const int64_t rows = 131;
    const int64_t steps = 1 + static_cast<int64_t>(random_() % 30);
    SCOPED_TRACE(absl::StrCat(spec.ToString(), ", ", steps, " steps"));
    const auto inputs = layers.Request(rows, steps, random_);
    const auto whole = Must(testing::RunWhole(layers.builder(), inputs));
    for (const int64_t count : {1, 2, 5, 20, 66}) {
      const auto first = static_cast<int64_t>(random_() % (rows - count));
      std::vector<base::Tensor> some;
      for (size_t k = 0; k < inputs.size(); ++k) {
        some.push_back(Layers::Rows(
            inputs[k], k == 0 ? layers.input_axis() : layers.state_axis(),
            first, count));
      }
      const auto alone = Must(testing::RunWhole(layers.builder(), some));
      for (size_t o = 0; o < whole.size(); ++o) {
        EXPECT_TRUE(SameBits(
            alone[o],
            Layers::Rows(whole[o], layers.output_axis(o), first, count)))
            << "output " << o << ", rows " << first << " + " << count;
      }
    }
  }
}

TEST_F(RecurrentTest, ResultsThatNobodyReadsChangeNoOther) {
  for (const char* cell : {"gru", "lstm", "rnn_tanh"}) {
    Spec spec;
    spec.cell = cell;
    spec.layers = 2;
    std::mt19937 same(base::ProgramSeed());
    Layers all(spec, same);
    all.OutputAll();
    const auto inputs = all.Request(7, 9, random_);
    const auto wanted = Must(testing::RunWhole(all.builder(), inputs));
    for (size_t o = 0; o < wanted.size(); ++o) {
      std::mt19937 again(base::ProgramSeed());
      Layers one(spec, again);
      one.OutputOnly(o);
      const auto own = Must(testing::RunWhole(one.builder(), inputs));
      EXPECT_TRUE(SameBits(own[0], wanted[o])) << cell << " " << o;
    }
  }
}

TEST_F(RecurrentTest, NanAndInfinityStayInTheirRow) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const char* cell : {"gru", "lstm", "rnn_tanh", "rnn_relu"}) {
    for (const float poison : {std::nanf(""), inf, -inf}) {
      SCOPED_TRACE(absl::StrCat(cell, " ", poison));
      Spec spec;
      spec.cell = cell;
      Layers layers(spec, random_);
      layers.OutputAll();
      auto inputs = layers.Request(4, 3, random_);
      const auto clean = Must(testing::RunWhole(layers.builder(), inputs));
      inputs[0].as<float>()[(1 * 3 + 1) * spec.width] = poison;  // row 1
      const auto own = Must(testing::RunWhole(layers.builder(), inputs));
      testing::ExpectLibTorchs(layers.builder(), inputs, 2e-5f);
      for (size_t o = 0; o < own.size(); ++o) {
        for (const int64_t row : {0, 2, 3}) {
          const int64_t axis = layers.output_axis(o);
          EXPECT_TRUE(SameBits(Layers::Rows(own[o], axis, row, 1),
                               Layers::Rows(clean[o], axis, row, 1)));
        }
      }
    }
  }
}

TEST_F(RecurrentTest, TakesNoItems) {
  Layers layers({.cell = "lstm", .layers = 2, .bidirectional = true}, random_);
  layers.OutputAll();
  layers.builder().graph().batch_symbol.clear();  // never empty
  const auto inputs = layers.Request(0, 3, random_);
  const auto own = Must(testing::RunWhole(layers.builder(), inputs));
  EXPECT_EQ(own[0].dims(), base::Dims({0, 3, 12}));
  EXPECT_EQ(own[1].dims(), base::Dims({4, 0, 6}));
  EXPECT_EQ(own[2].dims(), base::Dims({4, 0, 6}));
}

TEST_F(RecurrentTest, RefusesWhatDoesNotFit) {
  Layers layers({.cell = "gru"}, random_);
  layers.OutputAll();
  const auto message = [&](const std::vector<base::Tensor>& inputs) {
    const auto refused = testing::RunWhole(layers.builder(), inputs);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(refused.status().message());
  };
  EXPECT_THAT(message(layers.Request(2, 0, random_)),
              HasSubstr("input [2, 0, 5] has a sequence of length 0"));
  // The graph shows whether states have the input's rows, unless shapes are
  // unknown.
  Layers given({.cell = "gru", .given_weights = true}, random_);
  for (ValueId id : given.builder().graph().inputs) {
    for (SymExpr& dim : given.builder().graph().values[id].shape) {
      if (!dim.constant())
        dim = Sym(absl::StrCat("s", id, "_", dim.ToString()));
    }
  }
  given.OutputAll();
  auto inputs = given.Request(3, 2, random_);
  inputs[1] = Layers::Rows(inputs[1], 1, 0, 2);
  const auto refused = testing::RunWhole(given.builder(), inputs);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(refused.status().message()),
      HasSubstr("a state of [1, 2, 6] where input [3, 2, 5] wants [1, 3, 6]"));
}

TEST_F(RecurrentTest, KeepsItsWeightsInPanels) {
  Layers layers({.cell = "lstm", .layers = 2}, random_);
  layers.OutputAll();
  const models::Graph& graph = layers.builder().graph();
  const auto program = Must(Program::Compile(graph, Part::Whole(graph),
                                             layers.builder().Weights(), {}));
  // Four gates of 6 units in 16 columns each: 2 × (5 + 6) and (6 + 6) rows.
  EXPECT_EQ(program->packed_weight_bytes(),
            sizeof(float) * 64 * (5 + 6 + 6 + 6 + 4));
}

// A recurrence that is written as single cells reads its weights many times.
TEST_F(RecurrentTest, NodesThatReadAWeightShareItsPanels) {
  GraphBuilder builder;
  const GraphBuilder::Result state = {DType::kFloat32, {Sym("b"), 6}};
  const ValueId x = builder.Input("x", DType::kFloat32, {Sym("b"), 6});
  const auto weight = [&](const std::string& name, std::vector<int64_t> dims) {
    const int64_t count = dims[0] * (dims.size() > 1 ? dims[1] : 1);
    return builder.Weight<float>(
        name, std::move(dims),
        testing::RandomFloats(static_cast<size_t>(count), random_));
  };
  const ValueId w_ih = weight("w_ih", {18, 6});
  const ValueId w_hh = weight("w_hh", {18, 6});
  const ValueId bias = weight("bias", {18});
  const ValueId mix = weight("mix", {6, 6});
  ValueId h = x;
  for (int step = 0; step < 5; ++step) {
    h = builder.Node("aten.gru_cell.default",
                     {Ref("input", x), Ref("hx", h), Ref("w_ih", w_ih),
                      Ref("w_hh", w_hh), Ref("b_ih", bias), Ref("b_hh", bias)},
                     state);
    h = builder.Node("aten.linear.default",
                     {Ref("input", h), Ref("weight", mix)}, state);
  }
  builder.Output(h);
  const models::Graph& graph = builder.graph();
  const auto program =
      Must(Program::Compile(graph, Part::Whole(graph), builder.Weights(), {}));
  // Two matrices of three gates and one bias, and a matrix of one panel.
  EXPECT_EQ(program->packed_weight_bytes(),
            sizeof(float) * (48 * (6 + 6 + 1) + 16 * 6));
  std::vector<base::Tensor> inputs;
  inputs.push_back(
      testing::MakeTensor<float>({7, 6}, testing::RandomFloats(42, random_)));
  testing::ExpectLibTorchs(builder, inputs, 2e-5f);
}

// The first gate's rows of a weight share its address.
TEST_F(RecurrentTest, PartsOfAWeightHavePanelsOfTheirOwn) {
  for (const bool part_first : {true, false}) {
    GraphBuilder builder;
    const GraphBuilder::Result state = {DType::kFloat32, {Sym("b"), 6}};
    const ValueId x = builder.Input("x", DType::kFloat32, {Sym("b"), 6});
    std::vector<ValueId> whole;
    std::vector<ValueId> part;
    for (const std::vector<int64_t>& dims :
         std::vector<std::vector<int64_t>>{{18, 6}, {18, 6}, {18}, {18}}) {
      const size_t count = dims.size() > 1 ? 18 * 6 : 18;
      whole.push_back(
          builder.Weight<float>(absl::StrCat("w", whole.size()), dims,
                                testing::RandomFloats(count, random_)));
      part.push_back(builder.FirstRows(absl::StrCat("part", part.size()),
                                       whole.back(), 6));
    }
    ValueId h = x;
    for (const bool is_part : {part_first, !part_first}) {
      const std::vector<ValueId>& weights = is_part ? part : whole;
      h = builder.Node(
          is_part ? "aten.rnn_tanh_cell.default" : "aten.gru_cell.default",
          {Ref("input", x), Ref("hx", h), Ref("w_ih", weights[0]),
           Ref("w_hh", weights[1]), Ref("b_ih", weights[2]),
           Ref("b_hh", weights[3])},
          state);
    }
    builder.Output(h);
    std::vector<base::Tensor> inputs;
    inputs.push_back(
        testing::MakeTensor<float>({7, 6}, testing::RandomFloats(42, random_)));
    testing::ExpectLibTorchs(builder, inputs, 2e-5f);
  }
}

TEST_F(RecurrentTest, CutsChangeNothing) {
  Layers layers({.cell = "gru", .layers = 2}, random_);
  layers.OutputAll();
  GraphBuilder& builder = layers.builder();
  const ValueId states = builder.graph().outputs[0];
  const ValueId weight =
      builder.Weight<float>("w", {3, 6}, testing::RandomFloats(18, random_));
  const ValueId scores = builder.Node(
      "aten.linear.default", {Ref("input", states), Ref("weight", weight)},
      {DType::kFloat32, {Sym("b"), Sym("t"), 3}});
  builder.Output(builder.Node("aten.sigmoid.default", {Ref("self", scores)},
                              {DType::kFloat32, {Sym("b"), Sym("t"), 3}}));
  testing::ExpectCutsChangeNothing(builder, layers.Request(5, 4, random_));
}

TEST_F(RecurrentTest, StaysWithLibTorchElsewhere) {
  Layers layers({.cell = "gru"}, random_);
  layers.OutputAll();
  const models::Graph& graph = layers.builder().graph();
  const Plan plan =
      Must(CompilePlan(graph, Part::Whole(graph), layers.builder().Weights(),
                       {}, Target::kTranslation));
  ASSERT_EQ(plan.steps.size(), 1u);
  EXPECT_NE(plan.steps[0].caller, nullptr);
}

// A projection adds one matrix per cell, and h is narrower than c.
TEST_F(RecurrentTest, LeavesProjectionsToLibTorch) {
  GraphBuilder builder;
  const SymExpr b = Sym("b");
  const auto weight = [&](const std::string& name, std::vector<int64_t> dims) {
    int64_t count = 1;
    for (int64_t dim : dims) count *= dim;
    return builder.Weight<float>(
        name, std::move(dims),
        testing::RandomFloats(static_cast<size_t>(count), random_));
  };
  const ValueId x = builder.Input("x", DType::kFloat32, {b, 3, 5});
  const ValueId h = builder.Input("h", DType::kFloat32, {1, b, 2});
  const ValueId c = builder.Input("c", DType::kFloat32, {1, b, 4});
  builder.Output(builder.Nodes(
      "aten.lstm.input",
      {Ref("input", x), List("hx", {h, c}),
       List("params", {weight("ih", {16, 5}), weight("hh", {16, 2}),
                       weight("hr", {2, 4})}),
       Bool("has_biases", false), Int("num_layers", 1), Float("dropout", 0.0),
       Bool("train", false), Bool("bidirectional", false),
       Bool("batch_first", true)},
      {{DType::kFloat32, {b, 3, 2}},
       {DType::kFloat32, {1, b, 2}},
       {DType::kFloat32, {1, b, 4}}})[0]);
  EXPECT_THAT(testing::KernelsOf(builder), ElementsAre("libtorch"));
}

}  // namespace
}  // namespace refract::runtime
