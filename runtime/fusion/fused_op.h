#ifndef REFRACT_RUNTIME_FUSION_FUSED_OP_H_
#define REFRACT_RUNTIME_FUSION_FUSED_OP_H_

// Fused operators: device-independent descriptions of steps. A step is lowered
// from one node (lower.h), merged with other steps by passes (passes.h), and
// turned into a kernel by the device (runtime/cpu/fused_kernels.h).
//
// Fusion never changes a bit. A device computes each operator below by fixed
// arithmetic per element, the same alone and fused, and values between
// operators are float32 in either case. So a cut through fused operators, which
// separates them into two parts, gives the result of the whole. A pattern that
// would need other arithmetic is not fused.
//
// Operands are indexes into Step::operands.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "base/tensor.h"
#include "models/operators/element_code.h"

namespace refract::runtime {

// out[…, i, j] = act(sum_k a[…, i, k] × b[…, k, j] + bias[j]). All float32.
struct MatMulOp {
  int a = 0;
  int b = 1;
  // b is [n, k], or [batch…, n, k], and read transposed.
  bool b_transposed = false;
  // Leading dims of b match those of a (bmm). Otherwise b is one matrix and a's
  // leading dims are rows.
  bool batched = false;
  int bias = -1;  // [n]; -1: none
  bool relu = false;
};

using models::ElementCode;

// One instruction of an element-wise chain: registers[index of this
// instruction] = code(registers a, b, c; numbers x, y). All float32.
struct ElementInstruction {
  ElementCode code;
  // Source of an argument: an input (its index), or the result of an earlier
  // instruction (num_inputs + its index).
  int a = -1;
  int b = -1;
  int c = -1;
  float x = 0;
  float y = 0;
};

// An input: an operand of the step, or a number known at compile time.
struct ElementInput {
  int operand = -1;  // float32 or bool tensor, or a number; -1: `number`
  float number = 0;
};

// Limits of a chain, so that devices need no heap for it.
inline constexpr int kMaxChainInputs = 16;
inline constexpr int kMaxChainInstructions = 24;

// Operators computed element by element over one shape, the broadcast of all
// inputs.
struct ElementChainOp {
  std::vector<ElementInput> inputs;
  std::vector<ElementInstruction> code;
  // Per output of the step: the instruction that computes it, and whether it is
  // stored as bool.
  struct Output {
    int instruction = 0;
    bool is_bool = false;
  };
  std::vector<Output> outputs;
  // An operand that has the result's shape, set where an expansion to that
  // shape was merged away: it checks what the expansion would have checked. -1:
  // none.
  int like = -1;
};

// The dimensions of a sum: [first, last], adjacent.
struct SumDims {
  size_t first = 0;
  size_t last = 0;
  bool keep = false;  // as dimensions of one element
  bool mean = false;  // the sum ÷ the number of its terms
  // The graph shows that every dimension after the summed ones has size 1, so
  // terms are contiguous. Decided by the graph, not by a request: a batch of
  // one would otherwise be summed in another order than the same row in a
  // larger batch.
  bool rows = false;

  // Changes the operand's dims to the result's.
  void Apply(base::Dims& dims) const {
    const auto begin = dims.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = dims.begin() + static_cast<std::ptrdiff_t>(last) + 1;
    if (keep) {
      std::fill(begin, end, 1);
    } else {
      dims.erase(begin, end);
    }
  }
};

// Sums of the results of a chain with one float32 output.
struct ChainSumOp {
  ElementChainOp chain;
  SumDims sum;
};

// out[item, i] = sum_k f[p / F][item, k] × f[p % F][item, k], p = places[i]:
// the selected products between the F vectors of an item. Sums as in MatMulOp.
// For targets other than the CPU: 2 to 2048 operands [batch, width] of one
// vector each, and the places below the diagonal, row by row, all with or all
// without the diagonal's.
struct InteractionOp {
  // Operand i of the step holds vectors[i] consecutive vectors of an item:
  // [batch, vectors, width] or [batch, vectors × width].
  std::vector<int64_t> vectors;
  std::vector<int64_t> places;  // in [0, F × F)
};

// A piece of the left operand's columns: an operand, or a chain with one
// float32 output.
struct DenseColumns {
  int operand = -1;      // if there is no chain
  bool expands = false;  // broadcasts over the leading dimensions
  std::optional<ElementChainOp> chain;
};

// Limits of a DenseOp, so that devices need no heap for it.
inline constexpr int kMaxDensePieces = 64;
inline constexpr int kMaxDenseChains = 6;

// A product with its fused neighbours, neither of which is ever stored whole:
//   out = after(act([pieces side by side] × b + bias), …)
// The right operand is one matrix. A sum's terms keep their order, k ascending
// over the pieces. So the part of a leading piece that broadcasts over rows can
// be computed once for all of them, without changing a bit.
struct DenseOp {
  MatMulOp product;  // not batched; `a` is unused when there are pieces
  // b^T × a for a of […, k, 1]: the result is […, n, 1]. Without pieces.
  bool column = false;
  std::vector<DenseColumns> pieces;  // along the last dimension
  // Over the product's shape. Its input `given` is the product.
  std::optional<ElementChainOp> after;
  int given = -1;
};

// Attention written as single operators: out = softmax(chain(a × b)) × v, the
// softmax over the last dimension, or out = chain(a × b) × v. Both products are
// batched, without bias or relu.
struct AttentionOp {
  MatMulOp scores;
  // Over the scores' shape; its input `given` is the scores. Always there
  // without a softmax.
  std::optional<ElementChainOp> chain;
  int given = -1;
  // False: each score is weighed by itself, as in HSTU (SiLU).
  bool softmax = true;
  MatMulOp values;  // `a` is unused: the softmax's or the chain's result
};

enum class RecurrentCell : uint8_t { kLstm, kGru, kTanh, kRelu };

// Layers of a recurrence over the steps of a sequence, or a single step. With x
// the input of a step, h and c the states before it, and per gate its rows of
// the weights:
//   s[gate] = ((x × w_ih[gate] + b_ih[gate]) + h × w_hh[gate]) + b_hh[gate]
//   kLstm: gates i, f, g, o. c' = σ(s[f]) × c + σ(s[i]) × tanh(s[g]),
//          h' = σ(s[o]) × tanh(c')
//   kGru:  gates r, z, n. n = tanh(a + σ(s[r]) × b),
//          h' = (h − n) × σ(s[z]) + n,
//          with a = x × w_ih[n] + b_ih[n] and b = h × w_hh[n] + b_hh[n] apart
//   kTanh, kRelu: h' = tanh(s), relu(s)
// Each sum is one chain as in MatMulOp: the chain of h continues that of x and
// its bias. Items are independent.
struct RecurrentOp {
  RecurrentCell cell = RecurrentCell::kGru;
  // A single step: input [batch, width], states [batch, units]; results are the
  // new states. Otherwise input [steps, batch, width], states [layers ×
  // directions, batch, units]; results are the last layer's h of every step
  // [steps, batch, directions × units], and all states after the last step.
  bool is_step = false;
  bool batch_first = false;    // input and output are [batch, steps, …]
  bool bidirectional = false;  // the second direction starts at the last step
  bool has_biases = true;
  int layers = 1;
  int64_t units = 0;
  int input = 0;
  std::vector<int> states;  // h, and c of kLstm
  // Per layer and direction: w_ih [gates × units, width], w_hh
  // [gates × units, units], and with biases b_ih, b_hh [gates × units].
  std::vector<int> params;

  int directions() const { return bidirectional ? 2 : 1; }
  int gates() const {
    if (cell == RecurrentCell::kLstm) return 4;
    return cell == RecurrentCell::kGru ? 3 : 1;
  }
  int params_per_cell() const { return has_biases ? 4 : 2; }
};

// DenseOp, AttentionOp, ChainSumOp and RecurrentOp are built only for CPUs.
using FusedOp = std::variant<MatMulOp, ElementChainOp, InteractionOp, DenseOp,
                             AttentionOp, ChainSumOp, RecurrentOp>;

// The product in `op`; null when it is none.
inline const MatMulOp* ProductOf(const FusedOp& op) {
  if (const auto* dense = std::get_if<DenseOp>(&op)) return &dense->product;
  return std::get_if<MatMulOp>(&op);
}

// Whether devices that pack weights pack `operand` of `op` if it is constant.
inline bool RearrangesConstant(const FusedOp& op, int operand) {
  if (const auto* recurrent = std::get_if<RecurrentOp>(&op)) {
    return std::find(recurrent->params.begin(), recurrent->params.end(),
                     operand) != recurrent->params.end();
  }
  const MatMulOp* const product = ProductOf(op);
  return product != nullptr && !product->batched && product->b == operand;
}

}  // namespace refract::runtime

#endif  // REFRACT_RUNTIME_FUSION_FUSED_OP_H_
