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

// What was rearranged so far: nodes that read the same weight, as the steps of
// a recurrence that is written out do, share it. By the constant's address and
// how it was read; constants must stay where they are as long as this is used.
struct PackedWeights {
  // Address, k, n, whether transposed, form.
  std::map<std::tuple<const float*, int64_t, int64_t, bool, WeightForm>,
           PackedMatrix>
      matrices;
  // Address, columns of a matrix (-1: a bias), gates, units of each.
  std::map<std::tuple<const float*, int64_t, int64_t, int64_t>, const float*>
      gates;
};

// How weights are kept.
struct Packing {
  WeightForm form = WeightForm::kFloat32;
  // Where; null: every kernel has memory of its own.
  std::shared_ptr<WeightArena> arena;
  // Null: nothing is shared. Its memory is `arena`'s.
  PackedWeights* packed = nullptr;
};

// `constants[i]` is operand i's value where it is the same in every run, else
// null; an empty span: none is known yet. Weights are rearranged, and no longer
// read where they were.
std::unique_ptr<const Kernel> CreateFusedKernel(
    const FusedOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing);

// matmul, linear: see MatMulOp. Sums as Tile says: one chain of fused
// multiply-adds per element, k ascending, then the bias. Against LibTorch:
// 2e-7 × √k × sum_k |a × b|, at least 1e-6 of it; infinities and NaN as there.
std::unique_ptr<const Kernel> CreateMatMulKernel(
    const MatMulOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing);

// The constant right side of a product that is not batched.
PackedMatrix PackRightSide(const MatMulOp& op, const base::TensorView& b,
                           const Packing& packing);

// A product with its surroundings: see DenseOp. Sums as matmul's, chains as
// CreateElementChainKernel's. The right side is a constant.
std::unique_ptr<const Kernel> CreateDenseKernel(
    const DenseOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing);

// Attention that is written out: see AttentionOp. Sums as matmul's, chains and
// softmax as theirs alone. Scores are held for 64 queries at a time.
std::unique_ptr<const Kernel> CreateWrittenAttentionKernel(
    const AttentionOp& op);

// Recurrent layers and cells: see RecurrentOp. Sums as matmul's, gates as
// element-wise chains'. Weights are float32 whatever `packing.form` says: a
// rounding would meet itself at every step. Against LibTorch: 1e-5 of the
// largest state over 40 steps, for weights as nn.GRU draws them.
std::unique_ptr<const Kernel> CreateRecurrentKernel(
    const RecurrentOp& op, absl::Span<const Operand* const> constants,
    const Packing& packing);

// Dot products between an item's vectors: see InteractionOp. Sums as matmul's.
std::unique_ptr<const Kernel> CreateInteractionKernel(const InteractionOp& op);

// Element-wise chains: see ElementChainOp, element_functions.h.
std::unique_ptr<const Kernel> CreateElementChainKernel(
    const ElementChainOp& op);

// Sums of chains: see ChainSumOp. Chains as above, sums as reduce.h's.
std::unique_ptr<const Kernel> CreateChainSumKernel(const ChainSumOp& op);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_FUSED_KERNELS_H_
