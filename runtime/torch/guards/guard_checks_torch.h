#ifndef REFRACT_RUNTIME_TORCH_GUARDS_GUARD_CHECKS_TORCH_H_
#define REFRACT_RUNTIME_TORCH_GUARDS_GUARD_CHECKS_TORCH_H_

// The checks themselves, by family of operators; for guards_torch.cc, which
// says which operator has which. Each throws c10::Error. Includes LibTorch.

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <span>

#include "runtime/torch/guards/guards_torch.h"

namespace refract::models::aten {

using Arguments = std::span<c10::IValue>;

// aten.{lstm,gru,rnn_tanh,rnn_relu}.{input,data}: sizes of states and weights
// against the input. `gates` per unit: 4 of an LSTM, 3 of a GRU, 1.
void CheckRecurrentLayer(Arguments arguments, int64_t gates);
void CheckRecurrentPacked(Arguments arguments, int64_t gates);

// aten.scaled_dot_product_attention.default and the operator it becomes.
void GuardAttention(Arguments arguments);
void GuardFlashAttention(Arguments arguments);
void GuardBatchNorm(Arguments arguments);
void GuardWeightNorm(Arguments arguments);

void GuardUnpackedFactors(Arguments arguments);
// aten._fft_{r2c,c2r,c2c}
void GuardTransform(Arguments arguments);
// aten._upsample_{bilinear,bicubic}2d_aa
void GuardSmoothResize(Arguments arguments);
void GuardMaskedIndex(Arguments arguments);

// Integers that the processor cannot divide.
void GuardDivision(Arguments arguments);
void GuardModulo(Arguments arguments);
void GuardRoundedDivision(Arguments arguments);
void GuardCommonMultiple(Arguments arguments);

// aten.embedding_bag and its kin; ids after the last bag are cut off.
void GuardBags(Arguments arguments);
// quantized.embedding_bag_{byte,4bit,2bit}_rowwise_offsets
void GuardQuantizedBags(Arguments arguments);
void GuardSegments(Arguments arguments);

}  // namespace refract::models::aten

#endif  // REFRACT_RUNTIME_TORCH_GUARDS_GUARD_CHECKS_TORCH_H_
