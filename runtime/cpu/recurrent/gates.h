#ifndef REFRACT_RUNTIME_CPU_RECURRENT_GATES_H_
#define REFRACT_RUNTIME_CPU_RECURRENT_GATES_H_

#include <cstdint>

#include "runtime/fusion/fused_op.h"

namespace refract::runtime::cpu {

// What one step of a recurrence makes of its sums, for some items. Rows are
// `padded` floats per gate: the units, and what pads them to a multiple of
// kPanelColumns, which is computed with them and never read.
struct GateRows {
  int64_t rows = 0;
  int64_t padded = 0;
  // s of RecurrentOp, [rows][gates × padded]; of kGru's gate n only `a`.
  const float* sums = nullptr;
  int64_t sums_stride = 0;
  float* apart = nullptr;  // kGru: `b`, [rows][padded], dense; overwritten
  float* h = nullptr;      // [rows][padded], becomes the new state
  int64_t h_stride = 0;
  float* c = nullptr;  // kLstm: as h, dense
};

// One step as RecurrentOp says, each operation rounded by itself, sigmoid and
// tanh as elements/functions.h.
void ApplyGates(RecurrentCell cell, const GateRows& rows);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_RECURRENT_GATES_H_
