#ifndef REFRACT_RUNTIME_CPU_RECURRENT_CELL_WEIGHTS_H_
#define REFRACT_RUNTIME_CPU_RECURRENT_CELL_WEIGHTS_H_

// Weights of a recurrent layer in the order in which its products read them:
// the columns of each gate begin with a panel of their own, so that one product
// gives all gates and each of them whole vectors.

#include <cstdint>

#include "runtime/cpu/dense/gemm.h"
#include "runtime/cpu/dense/weight_arena.h"

namespace refract::runtime::cpu {

// Units of a gate and the columns that only pad it.
int64_t PaddedUnits(int64_t units);

// Of one layer in one direction. `padded` = PaddedUnits(units); biases null
// where there are none.
struct CellWeights {
  const float* w_ih = nullptr;  // panels of a matrix [width, gates × padded]
  const float* w_hh = nullptr;  // of [units, gates × padded]
  const float* b_ih = nullptr;  // [gates × padded]
  const float* b_hh = nullptr;
};

// Bytes of w_ih, w_hh where a step's input, or state, is `width` numbers.
size_t GatePanelBytes(int64_t gates, int64_t units, int64_t width);
// `weight` [gates × units, width] as such panels.
void PackGatePanels(const float* weight, int64_t gates, int64_t units,
                    int64_t width, float* panels);
// `bias` [gates × units] with zeros where columns pad.
void PadGates(const float* bias, int64_t gates, int64_t units, float* padded);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_RECURRENT_CELL_WEIGHTS_H_
