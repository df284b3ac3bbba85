#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "runtime/torch/guards/guard_checks_torch.h"
#include "runtime/torch/guards/guard_tools_torch.h"

namespace refract::models::aten {
namespace {

// One layer's weights in one direction.
struct CellSizes {
  int64_t inputs = 0;
  int64_t gates = 0;  // rows of its matrices: gates × units
  int64_t states = 0;
};

void CheckCell(c10::ArrayRef<at::Tensor> weights, const CellSizes& want) {
  TORCH_CHECK(weights[0].dim() == 2 && weights[1].dim() == 2,
              "the weights of a recurrent layer are no matrices");
  TORCH_CHECK(weights[0].size(1) == want.inputs, "inputs of ", want.inputs,
              " numbers where the weights want ", weights[0].size(1));
  TORCH_CHECK(weights[1].size(1) == want.states, "states of ", want.states,
              " numbers where the weights want ", weights[1].size(1));
  for (size_t i = 0; i < 2; ++i) {
    TORCH_CHECK(weights[i].size(0) == want.gates, "weights of ",
                weights[i].size(0), " rows where the states want ", want.gates);
  }
  for (size_t i = 2; i < weights.size() && i < 4; ++i) {
    TORCH_CHECK(weights[i].dim() == 1 && weights[i].size(0) == want.gates,
                "a bias of ", weights[i].numel(),
                " numbers where the states want ", want.gates);
  }
}

struct Recurrent {
  int64_t batch = 0;
  int64_t inputs = 0;
  int64_t gates = 0;               // per unit: 4 of an LSTM, 3 of a GRU, 1
  std::vector<at::Tensor> states;  // [layers × directions, batch, units]
  std::vector<at::Tensor> weights;
  bool has_biases = false;
  int64_t layers = 0;
  bool bidirectional = false;
};

void CheckRecurrent(const Recurrent& r) {
  const int64_t directions = r.bidirectional ? 2 : 1;
  const int64_t cells = r.layers * directions;
  TORCH_CHECK(r.layers > 0, "a recurrent layer of ", r.layers, " layers");
  for (const at::Tensor& state : r.states) {
    TORCH_CHECK(
        state.dim() == 3 && state.size(0) == cells && state.size(1) == r.batch,
        "states of ", state.sizes(), " where the input wants [", cells, ", ",
        r.batch, ", …]");
  }
  // An LSTM whose hidden state is narrower than its cells projects it: one
  // more matrix.
  const int64_t units = r.states.back().size(2);
  const int64_t outputs = r.states.front().size(2);
  const bool projects = outputs != units;
  const size_t each = (r.has_biases ? 4 : 2) + (projects ? 1 : 0);
  TORCH_CHECK(r.weights.size() == each * cells, r.weights.size(),
              " weights of a recurrent layer where ", each * cells,
              " are wanted");
  for (int64_t cell = 0; cell < cells; ++cell) {
    const auto weights = c10::ArrayRef<at::Tensor>(r.weights).slice(
        static_cast<size_t>(cell) * each, each);
    CheckCell(weights,
              {.inputs = cell < directions ? r.inputs : outputs * directions,
               .gates = r.gates * units,
               .states = outputs});
    if (projects) {
      const at::Tensor& matrix = weights.back();
      TORCH_CHECK(matrix.dim() == 2 && matrix.size(0) == outputs &&
                      matrix.size(1) == units,
                  "a projection of ", matrix.sizes(),
                  " where the states want [", outputs, ", ", units, "]");
    }
  }
}

std::vector<at::Tensor> StatesOf(const c10::IValue& hx) {
  if (hx.isTensor()) return {hx.toTensor()};
  return hx.toTensorVector();
}

}  // namespace

// (input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
// batch_first)
void CheckRecurrentLayer(Arguments a, int64_t gates) {
  const at::Tensor& input = a[0].toTensor();
  TORCH_CHECK(input.dim() == 3, "an input of ", input.sizes(),
              " where a recurrent layer wants three dimensions");
  Recurrent r;
  r.batch = input.size(a[8].toBool() ? 0 : 1);
  r.inputs = input.size(2);
  r.gates = gates;
  r.states = StatesOf(a[1]);
  r.weights = a[2].toTensorVector();
  r.has_biases = a[3].toBool();
  r.layers = a[4].toInt();
  r.bidirectional = a[7].toBool();
  TORCH_CHECK(r.states.size() == (gates == 4 ? 2 : 1), r.states.size(),
              " states of a recurrent layer");
  CheckRecurrent(r);
}

// (data, batch_sizes, hx, params, has_biases, num_layers, dropout, train,
// bidirectional)
void CheckRecurrentPacked(Arguments a, int64_t gates) {
  const at::Tensor& data = a[0].toTensor();
  const at::Tensor& batch_sizes = a[1].toTensor();
  TORCH_CHECK(data.dim() == 2, "packed sequences of ", data.sizes(),
              " where two dimensions are wanted");
  TORCH_CHECK(batch_sizes.dim() == 1 && batch_sizes.numel() > 0,
              "packed sequences without a step");
  int64_t rows = 0;
  int64_t last = data.size(0);
  const Integers sizes(batch_sizes, "steps of packed sequences");
  for (int64_t i = 0; i < sizes.size(); ++i) {
    const int64_t size = sizes[i];
    TORCH_CHECK(size > 0 && size <= last, "packed sequences with a step of ",
                size, " rows after one of ", last);
    last = size;
    rows += size;
  }
  TORCH_CHECK(rows == data.size(0), "packed sequences of ", data.size(0),
              " rows whose steps have ", rows);
  Recurrent r;
  r.batch = sizes[0];
  r.inputs = data.size(1);
  r.gates = gates;
  r.states = StatesOf(a[2]);
  r.weights = a[3].toTensorVector();
  r.has_biases = a[4].toBool();
  r.layers = a[5].toInt();
  r.bidirectional = a[8].toBool();
  TORCH_CHECK(r.states.size() == (gates == 4 ? 2 : 1), r.states.size(),
              " states of a recurrent layer");
  CheckRecurrent(r);
}

}  // namespace refract::models::aten
