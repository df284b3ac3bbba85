// Loops over whole panels, one function per cell and instruction set.

#include "runtime/cpu/recurrent/gates.h"

#include "runtime/cpu/clones.h"
#include "runtime/cpu/dense/tile.h"
#include "runtime/cpu/elements/functions.h"

namespace refract::runtime::cpu {
namespace {

// Tells the compiler that loops have no remainder.
REFRACT_INLINE int64_t WholePanels(int64_t count) {
  return count / kPanelColumns * kPanelColumns;
}

// Two loops per row: with all functions in one loop the chain of dependent
// operations is too long for the processor to overlap several vectors.
REFRACT_INLINE void LstmRow(const float* __restrict sums, int64_t count,
                            float* __restrict h, float* __restrict c) {
  for (int64_t j = 0; j < count; ++j) {
    const float kept = Sigmoid(sums[count + j]) * c[j];
    const float added = Sigmoid(sums[j]) * Tanh(sums[2 * count + j]);
    c[j] = kept + added;
  }
  for (int64_t j = 0; j < count; ++j) {
    h[j] = Sigmoid(sums[3 * count + j]) * Tanh(c[j]);
  }
}

REFRACT_INLINE void GruRow(const float* __restrict sums,
                           float* __restrict apart, int64_t count,
                           float* __restrict h) {
  for (int64_t j = 0; j < count; ++j) {
    apart[j] = sums[2 * count + j] + Sigmoid(sums[j]) * apart[j];
  }
  for (int64_t j = 0; j < count; ++j) {
    const float n = Tanh(apart[j]);
    // PyTorch's form of (1 − z) × n + z × h.
    h[j] = (h[j] - n) * Sigmoid(sums[count + j]) + n;
  }
}

REFRACT_CPU_CLONES void LstmGates(const GateRows& g) {
  const int64_t count = WholePanels(g.padded);
  for (int64_t r = 0; r < g.rows; ++r) {
    LstmRow(g.sums + r * g.sums_stride, count, g.h + r * g.h_stride,
            g.c + r * count);
  }
}

REFRACT_CPU_CLONES void GruGates(const GateRows& g) {
  const int64_t count = WholePanels(g.padded);
  for (int64_t r = 0; r < g.rows; ++r) {
    GruRow(g.sums + r * g.sums_stride, g.apart + r * count, count,
           g.h + r * g.h_stride);
  }
}

REFRACT_CPU_CLONES void TanhGates(const GateRows& g) {
  const int64_t count = WholePanels(g.padded);
  for (int64_t r = 0; r < g.rows; ++r) {
    const float* __restrict sums = g.sums + r * g.sums_stride;
    float* __restrict h = g.h + r * g.h_stride;
    for (int64_t j = 0; j < count; ++j) h[j] = Tanh(sums[j]);
  }
}

REFRACT_CPU_CLONES void ReluGates(const GateRows& g) {
  const int64_t count = WholePanels(g.padded);
  for (int64_t r = 0; r < g.rows; ++r) {
    const float* __restrict sums = g.sums + r * g.sums_stride;
    float* __restrict h = g.h + r * g.h_stride;
    for (int64_t j = 0; j < count; ++j) h[j] = sums[j] < 0 ? 0.0f : sums[j];
  }
}

}  // namespace

void ApplyGates(RecurrentCell cell, const GateRows& rows) {
  switch (cell) {
    case RecurrentCell::kLstm:
      return LstmGates(rows);
    case RecurrentCell::kGru:
      return GruGates(rows);
    case RecurrentCell::kTanh:
      return TanhGates(rows);
    case RecurrentCell::kRelu:
      return ReluGates(rows);
  }
}

}  // namespace refract::runtime::cpu
