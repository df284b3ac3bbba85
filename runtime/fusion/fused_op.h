#ifndef REFRACT_RUNTIME_FUSION_FUSED_OP_H_
#define REFRACT_RUNTIME_FUSION_FUSED_OP_H_

// What a step computes, in words that every device understands: made from one
// node (lower.h), merged by passes (passes.h), and turned into a kernel by the
// device (runtime/cpu/fused_kernels.h).
//
// Merging never changes a bit. A device computes each operator below by fixed
// arithmetic per element, which is the same whether the operator stands alone
// or in a group, and values between operators are float32 either way; so a cut
// through a group, which leaves its operators in two parts, gives what the
// whole gives. A pattern that would need other arithmetic is no group here.
//
// Operands are places in Step::operands.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "base/tensor.h"

namespace refract::runtime {

// out[…, i, j] = act(sum_k a[…, i, k] × b[…, k, j] + bias[j]). All float32.
struct MatMulOp {
  int a = 0;
  int b = 1;
  // b is [n, k], or [batch…, n, k], and read transposed.
  bool b_transposed = false;
  // Leading dims of b match those of a (bmm); else b is one matrix and a's
  // leading dims are rows.
  bool batched = false;
  int bias = -1;  // [n]; -1: none
  bool relu = false;
};

// One instruction of an element-wise chain: registers[index of this
// instruction] = code(registers a, b, c; numbers x, y). All float32; truth
// values are 0 and 1.
enum class ElementCode : uint8_t {
  // Of a.
  kNegate,
  kAbsolute,
  kRelu,
  kSigmoid,
  kTanh,
  kExp,
  kLog,
  kLog1p,
  kSqrt,
  kReciprocalSqrt,
  kReciprocal,
  kSquare,
  kErf,
  kGelu,      // x/2 × (1 + erf(x/√2))
  kGeluTanh,  // its approximation by tanh
  kSilu,
  kNot,
  kLeakyRelu,  // a < 0 ? a × x : a
  kElu,        // a < 0 ? x × (exp(a) − 1) : a
  kClamp,      // to [x, y]; NaN stays
  kScale,      // a × x
  // Of a and b.
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMinimum,  // NaN if either is
  kMaximum,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kAnd,
  kOr,
  // Of a, b and c: a != 0 ? b : c.
  kSelect,
};

struct ElementInstruction {
  ElementCode code;
  // Where an argument comes from: an input (its index), or the result of an
  // instruction before this one (num_inputs + its index).
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

// Chains stay within this, so that devices need no heap for them.
inline constexpr int kMaxChainInputs = 16;
inline constexpr int kMaxChainInstructions = 24;

// Operators computed element by element over one shape, the broadcast of all
// inputs.
struct ElementChainOp {
  std::vector<ElementInput> inputs;
  std::vector<ElementInstruction> code;
  // Per output of the step the instruction that gives it, and whether it is
  // stored as bool.
  struct Output {
    int instruction = 0;
    bool is_bool = false;
  };
  std::vector<Output> outputs;
  // An operand that has the result's shape, where that is more than the
  // broadcast says: an expansion to it was merged away. -1: none.
  int like = -1;
};

// Which dimensions a sum goes over: [first, last], beside each other.
struct SumDims {
  size_t first = 0;
  size_t last = 0;
  bool keep = false;  // as dimensions of one element
  bool mean = false;  // the sum ÷ the number of its terms
  // Terms lie side by side: the graph promises that every dimension after them
  // is of one element. Not asked of a request: a batch of one would be summed
  // in another order than the same row among others.
  bool rows = false;

  // The dims of the result, of those of the operand.
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

// Sums of what a chain with one float32 output makes.
struct ChainSumOp {
  ElementChainOp chain;
  SumDims sum;
};

// out[item, i] = sum_k f[p / F][item, k] × f[p % F][item, k], p = places[i]:
// the wanted ones of all products between the F vectors of an item. Sums as
// MatMulOp's.
struct InteractionOp {
  // [batch, width] each; with `vectors`, per operand as many of an item's
  // vectors, one after the other: [batch, vectors, width] or
  // [batch, vectors × width].
  std::vector<int> features;
  std::vector<int64_t> vectors;  // empty: one each
  std::vector<int64_t> places;   // in [0, F × F)
};

// Columns of a left side: an operand as it is, or a chain with one float32
// output.
struct DenseColumns {
  int operand = -1;      // where there is no chain
  bool expands = false;  // broadcasts over the leading dimensions
  std::optional<ElementChainOp> chain;
};

// Pieces stay within this, so that devices need no heap for them.
inline constexpr int kMaxDensePieces = 64;
inline constexpr int kMaxDenseChains = 6;

// A product with what goes before and after it, neither of which is ever
// stored whole:
//   out = after(act([pieces side by side] × b + bias), …)
// The right side is one matrix. A sum's terms keep their order, k ascending
// over the pieces; so a piece at the front that broadcasts over rows has its
// part of the sum computed once for all of them, and no bit tells.
struct DenseOp {
  MatMulOp product;  // not batched; `a` means nothing when there are pieces
  // b^T × a for a of […, k, 1]: the result is […, n, 1]. Without pieces.
  bool column = false;
  std::vector<DenseColumns> pieces;  // along the last dimension
  // Over the product's shape. Its input `given` is the product.
  std::optional<ElementChainOp> after;
  int given = -1;
};

// Attention as it is written out: out = softmax(chain(a × b)) × v, the softmax
// over the last dimension. Both products are batched, without bias or relu.
struct AttentionOp {
  MatMulOp scores;
  // Over the scores' shape; its input `given` is they.
  std::optional<ElementChainOp> chain;
  int given = -1;
  MatMulOp values;  // `a` means nothing: the weights
};

enum class RecurrentCell : uint8_t { kLstm, kGru, kTanh, kRelu };

// Layers of a recurrence over the steps of a sequence, or one step of one.
// With x a step's input, h and c the states before it, and per gate its rows of
// the weights:
//   s[gate] = ((x × w_ih[gate] + b_ih[gate]) + h × w_hh[gate]) + b_hh[gate]
//   kLstm: gates i, f, g, o. c' = σ(s[f]) × c + σ(s[i]) × tanh(s[g]),
//          h' = σ(s[o]) × tanh(c')
//   kGru:  gates r, z, n. n = tanh(a + σ(s[r]) × b), h' = (h − n) × σ(s[z]) +
//   n,
//          with a = x × w_ih[n] + b_ih[n] and b = h × w_hh[n] + b_hh[n] apart
//   kTanh, kRelu: h' = tanh(s), relu(s)
// A sum is one chain, as MatMulOp's; that of h goes on from that of x and its
// bias. Items do not meet.
struct RecurrentOp {
  RecurrentCell cell = RecurrentCell::kGru;
  // Of one step: input [batch, width], states [batch, units]; gives the new
  // states. Else input [steps, batch, width], states
  // [layers × directions, batch, units]; gives the last layer's h of every step
  // [steps, batch, directions × units], and all states after the last step.
  bool is_step = false;
  bool batch_first = false;    // input and output are [batch, steps, …]
  bool bidirectional = false;  // the second direction goes from the last step
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

// DenseOp, AttentionOp, ChainSumOp, RecurrentOp and InteractionOp with
// `vectors` are made for devices that ask for them (see FuseDense).
using FusedOp = std::variant<MatMulOp, ElementChainOp, InteractionOp, DenseOp,
                             AttentionOp, ChainSumOp, RecurrentOp>;

// The product in `op`; null when it is none.
inline const MatMulOp* ProductOf(const FusedOp& op) {
  if (const auto* dense = std::get_if<DenseOp>(&op)) return &dense->product;
  return std::get_if<MatMulOp>(&op);
}

// Whether devices that rearrange weights do so with `operand`, where it is
// constant.
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
