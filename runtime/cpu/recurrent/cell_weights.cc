#include "runtime/cpu/recurrent/cell_weights.h"

#include <algorithm>

namespace refract::runtime::cpu {

int64_t PaddedUnits(int64_t units) {
  return (units + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}

size_t GatePanelBytes(int64_t gates, int64_t units, int64_t width) {
  return PackedMatrix::PanelBytes(width, gates * PaddedUnits(units));
}

void PackGatePanels(const float* weight, int64_t gates, int64_t units,
                    int64_t width, float* panels) {
  for (int64_t gate = 0; gate < gates; ++gate) {
    // Transposed, because weights are [gates × units, width] and products need
    // [width, columns].
    PackPanels(weight + gate * units * width, width, units, 1, width,
               panels + gate * PaddedUnits(units) * width);
  }
}

void PadGates(const float* bias, int64_t gates, int64_t units, float* padded) {
  for (int64_t gate = 0; gate < gates; ++gate) {
    float* const to = padded + gate * PaddedUnits(units);
    std::copy_n(bias + gate * units, units, to);
    std::fill(to + units, to + PaddedUnits(units), 0.0f);
  }
}

}  // namespace refract::runtime::cpu
