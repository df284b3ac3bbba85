// Recurrent layers and cells against their definition in double precision and
// against LibTorch, and what runtime/fusion/fused_op.h promises of their bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/compiler.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/testing/expect_right.h"

namespace refract::runtime {
namespace {

using base::DType;
using models::NamedArgument;
using models::SymExpr;
using models::ValueId;
using testing::Bool;
using ::testing::ElementsAre;
using testing::Float;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::Int;
using testing::List;
using testing::Must;
using testing::Ref;
using testing::SameBits;
using testing::Sym;

unsigned Seed() {
  static const unsigned seed = base::RandomSeed();
  return seed;
}

struct Spec {
  std::string cell = "gru";  // lstm, rnn_tanh, rnn_relu
  bool is_step = false;
  int64_t layers = 1;
  bool bidirectional = false;
  bool batch_first = true;
  bool biases = true;
  // Weights come with the request.
  bool given_weights = false;
  int64_t width = 5;
  int64_t units = 6;

  int64_t gates() const { return cell == "lstm" ? 4 : (cell == "gru" ? 3 : 1); }
  int64_t directions() const { return bidirectional ? 2 : 1; }
  int64_t cells() const { return layers * directions(); }
  int64_t num_states() const { return cell == "lstm" ? 2 : 1; }

  // Products of an item's step, at most.
  int64_t terms() const {
    return cells() * gates() * units *
           (std::max(width, directions() * units) + units);
  }

  std::string ToString() const {
    return absl::StrCat(
        cell, is_step ? "_cell" : "", ", layers ", layers,
        bidirectional ? ", both ways" : "", batch_first ? ", batch first" : "",
        biases ? ", biases" : "", given_weights ? ", given weights" : "", ", ",
        width, " -> ", units);
  }
};

// A graph of one such node. Inputs: x, states, and weights where given.
class Layers {
 public:
  Layers(const Spec& spec, std::mt19937& random) : spec_(spec) {
    const SymExpr b = Sym("b");
    const SymExpr t = Sym("t");
    const int64_t out = spec.directions() * spec.units;
    std::vector<SymExpr> input = {b, spec.width};
    std::vector<SymExpr> state = {b, spec.units};
    std::vector<SymExpr> output = state;
    if (!spec.is_step) {
      input = spec.batch_first ? std::vector<SymExpr>{b, t, spec.width}
                               : std::vector<SymExpr>{t, b, spec.width};
      output = input;
      output.back() = out;
      state.insert(state.begin(), spec.cells());
    }
    const ValueId x = builder_.Input("x", DType::kFloat32, input);
    std::vector<ValueId> states;
    for (int64_t i = 0; i < spec.num_states(); ++i) {
      states.push_back(
          builder_.Input(absl::StrCat("state", i), DType::kFloat32, state));
    }
    for (int64_t cell = 0; cell < spec.cells(); ++cell) {
      AddWeight({spec.gates() * spec.units,
                 cell < spec.directions() ? spec.width : out},
                random);
      AddWeight({spec.gates() * spec.units, spec.units}, random);
      for (int i = 0; spec.biases && i < 2; ++i) {
        AddWeight({spec.gates() * spec.units}, random);
      }
    }
    std::vector<NamedArgument> args = {Ref("input", x)};
    args.push_back(spec.cell == "lstm" ? List("hx", states)
                                       : Ref("hx", states[0]));
    std::vector<GraphBuilder::Result> results;
    if (spec.is_step) {
      const char* const names[] = {"w_ih", "w_hh", "b_ih", "b_hh"};
      for (size_t i = 0; i < params_.size(); ++i) {
        args.push_back(Ref(names[i], params_[i]));
      }
    } else {
      args.insert(
          args.end(),
          {List("params", params_), Bool("has_biases", spec.biases),
           Int("num_layers", spec.layers), Float("dropout", 0.0),
           Bool("train", false), Bool("bidirectional", spec.bidirectional),
           Bool("batch_first", spec.batch_first)});
      results.push_back({DType::kFloat32, output});
    }
    for (size_t i = 0; i < states.size(); ++i) {
      results.push_back({DType::kFloat32, state});
    }
    results_ =
        builder_.Nodes(absl::StrCat("aten.", spec.cell,
                                    spec.is_step ? "_cell.default" : ".input"),
                       args, results);
    builder_.graph().batch_symbol = "b";
  }

  GraphBuilder& builder() { return builder_; }
  void OutputAll() {
    for (ValueId id : results_) builder_.Output(id);
  }
  void OutputOnly(size_t i) { builder_.Output(results_[i]); }

  std::vector<base::Tensor> Request(int64_t rows, int64_t steps,
                                    std::mt19937& random) const {
    std::vector<base::Tensor> inputs;
    const auto add = [&](const base::Dims& dims) {
      inputs.push_back(Must(base::Tensor::Allocate(DType::kFloat32, dims)));
      const auto values =
          testing::RandomFloats(inputs.back().as<float>().size(), random);
      std::copy(values.begin(), values.end(),
                inputs.back().as<float>().begin());
    };
    if (spec_.is_step) {
      add({rows, spec_.width});
    } else if (spec_.batch_first) {
      add({rows, steps, spec_.width});
    } else {
      add({steps, rows, spec_.width});
    }
    for (int64_t i = 0; i < spec_.num_states(); ++i) {
      if (spec_.is_step) {
        add({rows, spec_.units});
      } else {
        add({spec_.cells(), rows, spec_.units});
      }
    }
    for (size_t i = 0; spec_.given_weights && i < params_.size(); ++i) {
      inputs.push_back(Must(base::Tensor::CopyOf(base::TensorView{
          DType::kFloat32, param_dims_[i],
          reinterpret_cast<const std::byte*>(param_values_[i].data()),
          param_values_[i].size() * sizeof(float)})));
    }
    return inputs;
  }

  // Rows [first, first + count) of a request, or of what it gave: the batch is
  // dimension `axis`.
  static base::Tensor Rows(const base::Tensor& from, int64_t axis,
                           int64_t first, int64_t count) {
    base::Dims dims = from.dims();
    size_t outer = 1;
    size_t inner = 1;
    for (int64_t d = 0; d < axis; ++d) outer *= dims[d];
    for (size_t d = axis + 1; d < dims.size(); ++d) inner *= dims[d];
    const size_t rows = dims[axis];
    dims[axis] = count;
    base::Tensor to = Must(base::Tensor::Allocate(from.dtype(), dims));
    for (size_t o = 0; o < outer; ++o) {
      std::copy_n(from.view().as<float>().begin() + (o * rows + first) * inner,
                  count * inner, to.as<float>().begin() + o * count * inner);
    }
    return to;
  }
  int64_t input_axis() const {
    return spec_.is_step || spec_.batch_first ? 0 : 1;
  }
  int64_t state_axis() const { return spec_.is_step ? 0 : 1; }
  int64_t output_axis(size_t i) const {
    return i == 0 ? input_axis() : state_axis();
  }

  // By the definition, in double: all steps of the last layer (or nothing), and
  // the states after the last step.
  std::vector<std::vector<double>> Definition(
      const std::vector<base::Tensor>& inputs) const {
    const auto x = inputs[0].view().as<float>();
    const base::Dims& dims = inputs[0].dims();
    const int64_t rows = dims[input_axis()];
    const int64_t steps = spec_.is_step ? 1 : dims[1 - input_axis()];
    const int64_t out = spec_.directions() * spec_.units;
    std::vector<std::vector<double>> results(1 + spec_.num_states());
    results[0].resize(rows * steps * out);
    for (int64_t i = 0; i < spec_.num_states(); ++i) {
      const auto state = inputs[1 + i].view().as<float>();
      results[1 + i].assign(state.begin(), state.end());
    }
    for (int64_t row = 0; row < rows; ++row) {
      const auto place = [&](int64_t step) {
        return spec_.batch_first ? row * steps + step : step * rows + row;
      };
      std::vector<std::vector<double>> sequence(steps);
      for (int64_t t = 0; t < steps; ++t) {
        const auto begin = x.begin() + place(t) * spec_.width;
        sequence[t].assign(begin, begin + spec_.width);
      }
      for (int64_t layer = 0; layer < spec_.layers; ++layer) {
        std::vector<std::vector<double>> next(steps);
        for (int64_t d = 0; d < spec_.directions(); ++d) {
          const int64_t cell = layer * spec_.directions() + d;
          double* const h = &results[1][(cell * rows + row) * spec_.units];
          double* const c = spec_.cell == "lstm"
                                ? &results[2][(cell * rows + row) * spec_.units]
                                : nullptr;
          for (int64_t i = 0; i < steps; ++i) {
            const int64_t t = d == 1 ? steps - 1 - i : i;
            Step(cell, sequence[t], h, c);
            next[t].insert(next[t].end(), h, h + spec_.units);
          }
        }
        sequence = std::move(next);
      }
      for (int64_t t = 0; t < steps; ++t) {
        std::copy(sequence[t].begin(), sequence[t].end(),
                  results[0].begin() + place(t) * out);
      }
    }
    if (spec_.is_step) results.erase(results.begin());
    return results;
  }

 private:
  void AddWeight(const std::vector<int64_t>& dims, std::mt19937& random) {
    int64_t count = 1;
    std::vector<SymExpr> shape;
    for (int64_t dim : dims) {
      count *= dim;
      shape.push_back(dim);
    }
    auto values = testing::RandomFloats(static_cast<size_t>(count), random);
    // As nn.GRU draws them: larger ones let states grow apart from what a
    // rounding made of them.
    const float bound = 1 / std::sqrt(static_cast<float>(spec_.units));
    for (float& value : values) value *= bound;
    const std::string name = absl::StrCat("w", params_.size());
    params_.push_back(spec_.given_weights
                          ? builder_.Input(name, DType::kFloat32, shape)
                          : builder_.Weight(name, dims, values));
    param_values_.push_back(std::move(values));
    param_dims_.emplace_back(dims.begin(), dims.end());
  }

  // One step of one item.
  void Step(int64_t cell, const std::vector<double>& x, double* h,
            double* c) const {
    const size_t each = spec_.biases ? 4 : 2;
    const std::vector<float>* const weights = &param_values_[cell * each];
    const auto units = static_cast<size_t>(spec_.units);
    std::vector<double> in(spec_.gates() * units);
    std::vector<double> state(spec_.gates() * units);
    for (size_t j = 0; j < in.size(); ++j) {
      in[j] = spec_.biases ? weights[2][j] : 0.0f;
      state[j] = spec_.biases ? weights[3][j] : 0.0f;
      for (size_t k = 0; k < x.size(); ++k) {
        in[j] += weights[0][j * x.size() + k] * x[k];
      }
      for (size_t k = 0; k < units; ++k) {
        state[j] += weights[1][j * units + k] * h[k];
      }
    }
    const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    for (size_t j = 0; j < units; ++j) {
      const auto sum = [&](size_t gate) {
        return in[gate * units + j] + state[gate * units + j];
      };
      if (spec_.cell == "lstm") {
        c[j] = sigmoid(sum(1)) * c[j] + sigmoid(sum(0)) * std::tanh(sum(2));
        h[j] = sigmoid(sum(3)) * std::tanh(c[j]);
      } else if (spec_.cell == "gru") {
        const double n = std::tanh(in[2 * units + j] +
                                   sigmoid(sum(0)) * state[2 * units + j]);
        const double z = sigmoid(sum(1));
        h[j] = (1 - z) * n + z * h[j];
      } else {
        h[j] = spec_.cell == "rnn_tanh" ? std::tanh(sum(0))
                                        : std::max(0.0, sum(0));
      }
    }
  }

  const Spec spec_;
  GraphBuilder builder_;
  std::vector<ValueId> params_;
  std::vector<std::vector<float>> param_values_;
  std::vector<base::Dims> param_dims_;
  std::vector<ValueId> results_;
};

Spec RandomSpec(std::mt19937& random) {
  const char* const cells[] = {"gru", "lstm", "rnn_tanh", "rnn_relu"};
  Spec spec;
  spec.cell = cells[random() % 4];
  spec.is_step = random() % 4 == 0;
  spec.biases = random() % 3 != 0;
  spec.given_weights = random() % 4 == 0;
  spec.width = 1 + static_cast<int64_t>(random() % 40);
  spec.units = 1 + static_cast<int64_t>(random() % 40);
  if (random() % 8 == 0) spec.units = 256;  // rows that alias in the cache
  if (spec.is_step) return spec;
  spec.layers = 1 + static_cast<int64_t>(random() % 3);
  spec.bidirectional = random() % 2 == 0;
  spec.batch_first = random() % 2 == 0;
  return spec;
}

int64_t RandomRows(std::mt19937& random) {
  const int64_t some[] = {1, 2, 3, 4, 15, 17, 64, 65, 131};
  return some[random() % std::size(some)];
}

class RecurrentTest : public ::testing::Test {
 protected:
  RecurrentTest() : random_(Seed()) {}
  ::testing::ScopedTrace seed_{__FILE__, __LINE__,
                               absl::StrCat("REFRACT_TEST_SEED=", Seed())};
  std::mt19937 random_;
};

TEST_F(RecurrentTest, IsItsDefinitionAndLibTorchs) {
  for (int i = 0; i < 12; ++i) {
    const Spec spec = RandomSpec(random_);
    Layers layers(spec, random_);
    layers.OutputAll();
    const int64_t rows = RandomRows(random_);
    // Enough for several turns of sums; what is computed in double stays short.
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
    std::mt19937 same(Seed());
    Layers all(spec, same);
    all.OutputAll();
    const auto inputs = all.Request(7, 9, random_);
    const auto wanted = Must(testing::RunWhole(all.builder(), inputs));
    for (size_t o = 0; o < wanted.size(); ++o) {
      std::mt19937 again(Seed());
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
              HasSubstr("input [2, 0, 5] has no step"));
  // Whether states have the input's rows is the graph's promise, unless it
  // makes none.
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

// As a recurrence that is written out does.
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

// The first gate's rows of a weight lie where the weight does.
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

// A projection is one more matrix for each cell, and h narrower than c.
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
