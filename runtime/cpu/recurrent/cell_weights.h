#ifndef REFRACT_RUNTIME_CPU_RECURRENT_CELL_WEIGHTS_H_
#define REFRACT_RUNTIME_CPU_RECURRENT_CELL_WEIGHTS_H_

// Weights of a recurrent layer in the layout of its products: the columns of
// each gate begin with a new panel, so that one product computes all gates and
// each gate consists of whole vectors.

#include <cstdint>

#include "runtime/cpu/dense/gemm.h"
#include "runtime/cpu/dense/weight_arena.h"

namespace refract::runtime::cpu {

// Units of a gate, rounded up to whole panels.
int64_t PaddedUnits(int64_t units);

// Weights of one layer in one direction. `padded` = PaddedUnits(units); biases
// are null if the layer has none.
struct CellWeights {
  const float* w_ih = nullptr;  // panels of a matrix [width, gates × padded]
  const float* w_hh = nullptr;  // of [units, gates × padded]
  const float* b_ih = nullptr;  // [gates × padded]
  const float* b_hh = nullptr;
};

// Bytes of w_ih or w_hh for an input or state of `width` numbers.
size_t GatePanelBytes(int64_t gates, int64_t units, int64_t width);
// Packs `weight` [gates × units, width] into such panels.
void PackGatePanels(const float* weight, int64_t gates, int64_t units,
                    int64_t width, float* panels);
// Copies `bias` [gates × units] with zeros in the padding columns.
void PadGates(const float* bias, int64_t gates, int64_t units, float* padded);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_RECURRENT_CELL_WEIGHTS_H_
