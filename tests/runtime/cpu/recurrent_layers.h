#ifndef REFRACT_TESTS_RUNTIME_CPU_RECURRENT_LAYERS_H_
#define REFRACT_TESTS_RUNTIME_CPU_RECURRENT_LAYERS_H_

// Recurrent layers and cells to test with, and their definition in double
// precision.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/base/random_seed.h"
#include "tests/runtime/testing/expect_right.h"

namespace refract::runtime::testing {

using models::NamedArgument;

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
          RandomFloats(inputs.back().as<float>().size(), random);
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
    auto values = RandomFloats(static_cast<size_t>(count), random);
    // Weights as nn.GRU draws them: with larger weights the states after a
    // rounding grow apart.
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

inline Spec RandomSpec(std::mt19937& random) {
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

inline int64_t RandomRows(std::mt19937& random) {
  const int64_t some[] = {1, 2, 3, 4, 15, 17, 64, 65, 131};
  return some[random() % std::size(some)];
}

}  // namespace refract::runtime::testing

#endif  // REFRACT_TESTS_RUNTIME_CPU_RECURRENT_LAYERS_H_
