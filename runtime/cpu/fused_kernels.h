#ifndef REFRACT_RUNTIME_CPU_FUSED_KERNELS_H_
#define REFRACT_RUNTIME_CPU_FUSED_KERNELS_H_

// Kernels for fused operators on this CPU.

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "absl/types/span.h"
#include "runtime/cpu/dense/gemm.h"
#include "runtime/cpu/dense/tile.h"
#include "runtime/cpu/dense/weight_arena.h"
#include "runtime/fusion/fused_op.h"
#include "runtime/kernel.h"

namespace refract::runtime::cpu {

// Weights packed so far, so that nodes that read the same weight (the steps of
// a recurrence written as single operators) share its packed form. Keyed by the
// constant's address and its layout; constants must not move while this is
// used.
struct PackedWeights {
  // Address, k, n, whether transposed, form.
  std::map<std::tuple<const float*, int64_t, int64_t, bool, WeightForm>,
           PackedMatrix>
      matrices;
  // Address, columns of a matrix (-1: a bias), gates, units of each.
  std::map<std::tuple<const float*, int64_t, int64_t, int64_t>, const float*>
      gates;
};

// Storage of packed weights.
struct Packing {
  WeightForm form = WeightForm::kFloat32;
  // Memory of packed weights; null: every kernel allocates its own.
  std::shared_ptr<WeightArena> arena;
  // Null: no sharing. Its memory belongs to `arena`.
  PackedWeights* packed = nullptr;
};

// Creates the kernel of `op`. `constants[i]` is the value of operand i if it is
// the same in every run, else null; an empty span: no constant is known yet.
// Weights are packed and not read from their original place afterwards.
std::unique_ptr<const Kernel> CreateFusedKernel(
    const FusedOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing);

// matmul, linear: see MatMulOp. Sums as in Tile: one chain of fused
// multiply-adds per element, k ascending, then the bias. Tolerance against
// LibTorch: 2e-7 × √k × sum_k |a × b|, at least 1e-6 of it; infinities and NaN
// as in LibTorch.
std::unique_ptr<const Kernel> CreateMatMulKernel(
    const MatMulOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing);

// Packs the constant right operand of a product that is not batched.
PackedMatrix PackRightSide(const MatMulOp& op, const base::TensorView& b,
                           const Packing& packing);

// A product with its fused neighbours: see DenseOp. Sums as in matmul, chains
// as in CreateElementChainKernel. The right operand is a constant.
std::unique_ptr<const Kernel> CreateDenseKernel(
    const DenseOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing);

// Attention written as single operators: see AttentionOp. Sums as in matmul,
// chains and softmax as in their own kernels. Holds the scores of 64 queries at
// a time. Without a softmax, blocks of scores that the chain's last operator
// (where, masked_fill) replaces by 0 are not computed, while the values there
// are finite; that can change the sign of a zero sum.
std::unique_ptr<const Kernel> CreateWrittenAttentionKernel(
    const AttentionOp& op);

// Recurrent layers and cells: see RecurrentOp. Sums as in matmul, gates as
// element-wise chains. Weights are float32 whatever `packing.form` says,
// because every step would repeat the rounding error. Tolerance against
// LibTorch: 1e-5 of the largest state over 40 steps, for weights as nn.GRU
// initialises them.
std::unique_ptr<const Kernel> CreateRecurrentKernel(
    const RecurrentOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing);

// Dot products between an item's vectors: see InteractionOp. Sums as in matmul.
std::unique_ptr<const Kernel> CreateInteractionKernel(const InteractionOp& op);

// Element-wise chains: see ElementChainOp and elements/functions.h.
std::unique_ptr<const Kernel> CreateElementChainKernel(
    const ElementChainOp& op);

// Sums of chains: see ChainSumOp. Chains as above, sums as in reduce.h.
std::unique_ptr<const Kernel> CreateChainSumKernel(const ChainSumOp& op);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_FUSED_KERNELS_H_
