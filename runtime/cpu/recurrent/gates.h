#ifndef REFRACT_RUNTIME_CPU_RECURRENT_GATES_H_
#define REFRACT_RUNTIME_CPU_RECURRENT_GATES_H_

#include <cstdint>

#include "runtime/fusion/fused_op.h"

namespace refract::runtime::cpu {

// The element-wise part of one step of a recurrence, for some items. Rows have
// `padded` floats per gate: the units, and padding to a multiple of
// kPanelColumns, which is computed but never read.
struct GateRows {
  int64_t rows = 0;
  int64_t padded = 0;
  // s of RecurrentOp, [rows][gates × padded]; for kGru's gate n only the part
  // `a`.
  const float* sums = nullptr;
  int64_t sums_stride = 0;
  float* apart = nullptr;  // kGru: `b`, [rows][padded], dense; overwritten
  float* h = nullptr;      // [rows][padded], becomes the new state
  int64_t h_stride = 0;
  float* c = nullptr;  // kLstm: as h, dense
};

// Computes one step as RecurrentOp defines it, each operation rounded
// separately, with sigmoid and tanh of elements/functions.h.
void ApplyGates(RecurrentCell cell, const GateRows& rows);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_RECURRENT_GATES_H_
