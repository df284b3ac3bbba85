#include "runtime/torch/guards/guard_checks_torch.h"

#include <cstdint>
#include <limits>
#include <vector>

namespace refract::runtime::aten {

Integers::Integers(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK(tensor.defined(), "no ", what);
  TORCH_CHECK(at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false),
              what, " that are no integers");
  size_ = tensor.numel();
  if (tensor.is_contiguous() && tensor.is_cpu()) {
    if (tensor.scalar_type() == at::kLong) {
      wide_ = tensor.const_data_ptr<int64_t>();
      return;
    }
    if (tensor.scalar_type() == at::kInt) {
      narrow_ = tensor.const_data_ptr<int32_t>();
      return;
    }
  }
  // Other widths and layouts are rare, so that a copy is cheap enough.
  copy_ = tensor.to(at::kCPU, at::kLong).contiguous();
  wide_ = copy_.const_data_ptr<int64_t>();
}

bool IsGiven(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined();
}

int64_t CheckOffsets(const at::Tensor& offsets, int64_t count,
                     const char* what) {
  const Integers all(offsets, what);
  int64_t last = 0;
  for (int64_t i = 0; i < all.size(); ++i) {
    const int64_t offset = all[i];
    TORCH_CHECK(offset >= last, what, ": offset ", offset, " after ", last);
    last = offset;
  }
  // Offsets do not fall, so that the last one is the largest.
  TORCH_CHECK(last <= count, what, ": offset ", last, " of ", count, " values");
  return last;
}

int64_t CheckLengths(const at::Tensor& lengths, int64_t count,
                     const char* what) {
  const Integers all(lengths, what);
  int64_t sum = 0;
  for (int64_t i = 0; i < all.size(); ++i) {
    TORCH_CHECK(all[i] >= 0, what, ": a length of ", all[i]);
    // Compared with what is left, which cannot overflow as the sum could.
    TORCH_CHECK(all[i] <= count - sum, what, " of more than ", count,
                " values");
    sum += all[i];
  }
  return sum;
}

void CheckIndices(const at::Tensor& indices, int64_t count, const char* what) {
  const Integers all(indices, what);
  for (int64_t i = 0; i < all.size(); ++i) {
    TORCH_CHECK(all[i] >= 0 && all[i] < count, what, ": ", all[i], " of ",
                count);
  }
}

void CheckRank(const at::Tensor& tensor, int64_t dims, const char* what) {
  TORCH_CHECK(tensor.defined() && tensor.dim() == dims, what, " of ",
              tensor.sizes(), " where ", dims, " dimensions are wanted");
}

void CheckCount(const at::Tensor& tensor, int64_t count, const char* what) {
  TORCH_CHECK(tensor.defined() && tensor.numel() == count, tensor.numel(), " ",
              what, " where ", count, " are wanted");
}

void CheckWeights(const c10::IValue& weights, int64_t count) {
  if (!IsGiven(weights)) return;
  TORCH_CHECK(weights.toTensor().numel() == count, weights.toTensor().numel(),
              " weights for ", count, " values");
}

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
              "packed sequences without a time step");
  int64_t rows = 0;
  // Rows of a packed batch are sorted by length, so that time steps never get
  // more rows. The first time step has all sequences.
  int64_t last = data.size(0);
  const Integers sizes(batch_sizes, "time steps of packed sequences");
  for (int64_t i = 0; i < sizes.size(); ++i) {
    const int64_t size = sizes[i];
    TORCH_CHECK(size > 0 && size <= last,
                "packed sequences with a time step of ", size,
                " rows after a time step of ", last);
    last = size;
    rows += size;
  }
  TORCH_CHECK(rows == data.size(0), "packed sequences of ", data.size(0),
              " rows, but whose time steps have ", rows);
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

namespace {

void CheckChannels(const c10::IValue& value, int64_t channels,
                   const char* what) {
  if (!value.isTensor() || !value.toTensor().defined()) return;
  const at::Tensor& tensor = value.toTensor();
  TORCH_CHECK(tensor.dim() == 1 && tensor.size(0) == channels, what, " of ",
              tensor.sizes(), " for ", channels, " channels");
}

}  // namespace

// (input, weight, bias, running_mean, running_var, …)
void GuardBatchNorm(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  TORCH_CHECK(input.dim() >= 2, "batch_norm of ", input.sizes());
  const int64_t channels = input.size(1);
  CheckChannels(a[1], channels, "a weight");
  CheckChannels(a[2], channels, "a bias");
  CheckChannels(a[3], channels, "a mean");
  CheckChannels(a[4], channels, "a variance");
}

// (query, key, value, …): where keys and values differ in count, LibTorch reads
// past the end of the shorter tensor. It checks everything else.
void GuardAttention(Arguments a) {
  const at::Tensor& key = a[1].toTensor();
  const at::Tensor& value = a[2].toTensor();
  if (key.dim() < 2 || value.dim() < 2) return;  // LibTorch refuses these
  TORCH_CHECK(key.size(-2) == value.size(-2), "attention with keys of ",
              key.sizes(), " and values of ", value.sizes());
}

// (query, key, value, dropout_p, is_causal, *, attn_mask, scale): the sizes
// that scaled_dot_product_attention has checked before it calls this operator.
void GuardFlashAttention(Arguments a) {
  const at::Tensor& query = a[0].toTensor();
  const at::Tensor& key = a[1].toTensor();
  const at::Tensor& value = a[2].toTensor();
  bool fits =
      query.dim() == 4 && key.dim() == 4 && key.sizes() == value.sizes();
  for (const int64_t d : {0, 1, 3}) {
    fits = fits && key.size(d) == query.size(d);
  }
  TORCH_CHECK(fits, "attention with queries of ", query.sizes(), ", keys of ",
              key.sizes(), " and values of ", value.sizes());
  if (!a[5].isTensor() || !a[5].toTensor().defined()) return;
  const at::Tensor& mask = a[5].toTensor();
  const int64_t want[] = {query.size(0), query.size(1), query.size(2),
                          key.size(2)};
  fits = mask.dim() == 4 || mask.dim() == 2;
  for (int64_t d = 1; fits && d <= mask.dim(); ++d) {
    fits = mask.size(-d) == 1 || mask.size(-d) == want[4 - d];
  }
  TORCH_CHECK(fits, "an attention mask of ", mask.sizes(), " for queries of ",
              query.sizes(), " and keys of ", key.sizes());
}

// (v, g, dim): one length for each slice along `dim`.
void GuardWeightNorm(Arguments a) {
  const at::Tensor& v = a[0].toTensor();
  const at::Tensor& g = a[1].toTensor();
  const int64_t dim = a[2].toInt();
  // Along other dimensions LibTorch uses a product that checks sizes.
  if (dim != 0 && dim != v.dim() - 1) return;
  TORCH_CHECK(v.dim() > 0 && g.numel() == v.size(dim), "weight_norm of ",
              v.sizes(), " along dimension ", dim, " with lengths of ",
              g.sizes());
}

// (self, dim, …)
void GuardTransform(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  for (const int64_t dim : a[1].toIntVector()) {
    TORCH_CHECK(dim >= -input.dim() && dim < input.dim(),
                "a transform along dimension ", dim, " of ", input.sizes());
  }
}

namespace {

bool HasLowest(const c10::IValue& value) {
  if (value.isInt())
    return value.toInt() == std::numeric_limits<int64_t>::min();
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& tensor = value.toTensor();
  const at::ScalarType type = tensor.scalar_type();
  // LibTorch divides narrower integers as int32, which can hold the quotient of
  // their lowest value and -1.
  if (type != at::kLong && type != at::kInt) return false;
  const int64_t lowest = type == at::kLong
                             ? std::numeric_limits<int64_t>::min()
                             : std::numeric_limits<int32_t>::min();
  const Integers all(tensor, "a dividend");
  for (int64_t i = 0; i < all.size(); ++i) {
    if (all[i] == lowest) return true;
  }
  return false;
}

bool HasMinusOne(const c10::IValue& value) {
  if (value.isInt()) return value.toInt() == -1;
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const at::Tensor& tensor = value.toTensor();
  if (!at::isIntegralType(tensor.scalar_type(), false)) return false;
  const Integers all(tensor, "a divisor");
  for (int64_t i = 0; i < all.size(); ++i) {
    if (all[i] == -1) return true;
  }
  return false;
}

}  // namespace

// (self, other, …): the quotient of the lowest integer and -1 is no integer of
// that width, and the processor traps.
void GuardDivision(Arguments a) {
  TORCH_CHECK(!HasMinusOne(a[1]) || !HasLowest(a[0]),
              "the lowest integer divided by -1");
}

// (a, b): Python's integers. LibTorch does not check for a divisor of 0.
void GuardModulo(Arguments a) {
  TORCH_CHECK(!a[1].isInt() || a[1].toInt() != 0, "integer modulo by zero");
  GuardDivision(a);
}

// (self, other, *, rounding_mode): only "trunc" divides integers as such.
void GuardRoundedDivision(Arguments a) {
  if (a[2].isString() && a[2].toStringRef() == "trunc") GuardDivision(a);
}

namespace {

// Offsets of bags begin with 0. With `include_last` the last offset is the end
// of the last bag.
void CheckBags(const at::Tensor& ids, const at::Tensor& offsets,
               bool include_last) {
  CheckOffsets(offsets, ids.numel());
  TORCH_CHECK(offsets.numel() == 0 || Integers(offsets, "offsets")[0] == 0,
              "offsets that do not begin with 0");
  if (include_last) {
    TORCH_CHECK(offsets.numel() > 0, "include_last_offset without an offset");
  } else {
    TORCH_CHECK(offsets.numel() > 0 || ids.numel() == 0, ids.numel(),
                " ids without a bag");
  }
}

}  // namespace

// (weight, indices, offsets, scale_grad_by_freq, mode, sparse,
// per_sample_weights, include_last_offset, …)
void GuardBags(Arguments a) {
  const at::Tensor ids = a[1].toTensor();
  const at::Tensor& offsets = a[2].toTensor();
  const int64_t mode = a[4].toInt();
  TORCH_CHECK(mode >= 0 && mode <= 2, "embedding_bag has no mode ", mode);
  TORCH_CHECK(a[0].toTensor().dim() == 2, "a table of ",
              a[0].toTensor().sizes(), " where a matrix is wanted");
  TORCH_CHECK(offsets.dim() == 1, "offsets of ", offsets.sizes(),
              " where a vector is wanted");
  const bool include_last = a[7].toBool();
  CheckBags(ids, offsets, include_last);
  if (!include_last) return;
  // LibTorch's fast kernels ignore ids after the last bag; its other kernels
  // add them to a bag that does not exist.
  const int64_t count = ids.numel();
  const int64_t last = Integers(offsets, "offsets").back();
  if (last == count) return;
  TORCH_CHECK(ids.dim() == 1, "offsets of ", last, " ids for ", ids.sizes());
  a[1] = ids.narrow(0, 0, last);
  if (IsGiven(a[6]) && a[6].toTensor().dim() == 1 &&
      a[6].toTensor().numel() == count) {
    a[6] = a[6].toTensor().narrow(0, 0, last);
  }
}

}  // namespace refract::runtime::aten
