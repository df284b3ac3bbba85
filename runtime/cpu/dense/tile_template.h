#ifndef REFRACT_RUNTIME_CPU_DENSE_TILE_TEMPLATE_H_
#define REFRACT_RUNTIME_CPU_DENSE_TILE_TEMPLATE_H_

// Tiles for one instruction set. `Isa` defines a vector of kLanes floats and
// its operations; everything here has internal linkage (see tile.h).

#include <cstring>

#include "runtime/cpu/dense/tile.h"

namespace refract::runtime::cpu {
namespace {

// Steps of k per iteration for few rows: more loads of weights are in flight at
// once.
constexpr int kUnrolled = 4;
// The same for more rows, where it saves instructions: a core's hardware
// threads share its instructions per cycle, and a busy neighbour leaves few.
constexpr int kSteps = 2;

template <typename Isa, WeightForm kForm>
struct Weights;
template <typename Isa>
struct Weights<Isa, WeightForm::kFloat32> {
  using Element = float;
};
template <typename Isa>
struct Weights<Isa, WeightForm::kBFloat16> {
  using Element = uint16_t;
};
template <typename Isa>
struct Weights<Isa, WeightForm::kInt8> {
  using Element = int8_t;
};

template <typename Isa, WeightForm kForm, int kRows, int kPanels>
void RunTile(const Tile& tile) {
  using Vector = typename Isa::Vector;
  using Element = typename Weights<Isa, kForm>::Element;
  constexpr int kPerPanel = kPanelColumns / Isa::kLanes;
  constexpr int kVectors = kPanels * kPerPanel;
  const bool whole = tile.columns == kPanels * kPanelColumns;
  const size_t column_bytes = static_cast<size_t>(tile.columns) * sizeof(float);
  alignas(64) float rest[kPanels * kPanelColumns];
  Vector sum[kRows][kVectors];
  // Sums start from `c` or from zero. A partial last panel goes through `rest`,
  // so that vectors never reach past the columns.
  if (tile.resumes) {
    if (!whole) std::memset(rest, 0, sizeof(rest));
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float* from = tile.c + r * tile.c_stride;
      if (!whole) {
        std::memcpy(rest, from, column_bytes);
        from = rest;
      }
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = Isa::Load(from + v * Isa::kLanes);
      }
    }
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Isa::Zero();
    }
  }
  const Element* b[kPanels];
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
    b[p] = static_cast<const Element*>(tile.b) + p * tile.panel_elements;
  }
  const Element* next = static_cast<const Element*>(tile.next);
  const int64_t stride = tile.a_stride;
  const int64_t b_step = kRows > kStreamingRows ? kPanelColumns : tile.b_step;
  // One address per three rows; the other two rows use an index times 1 or 2.
  // An address per row would not fit into 16 registers and would be reloaded
  // for each element.
  constexpr int kBases = (kRows + 2) / 3;
  const float* a[kBases];
#pragma GCC unroll 8
  for (int i = 0; i < kBases; ++i) a[i] = tile.a + 3 * i * stride;
  // Adds the products of one k. The panels' elements of that k are at `offset`,
  // the rows' element is `ahead` elements behind the addresses `a`.
  const auto add_step = [&](int64_t offset, int64_t ahead)
      __attribute__((always_inline)) {
    Vector weight[kVectors];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (int i = 0; i < kPerPanel; ++i) {
        weight[p * kPerPanel + i] =
            Isa::LoadWeight(b[p] + offset + i * Isa::kLanes);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vector x = Isa::Broadcast(a[r / 3][r % 3 * stride + ahead]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = Isa::MultiplyAdd(x, weight[v], sum[r][v]);
      }
    }
  };
  const auto advance = [&](int64_t steps) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int i = 0; i < kBases; ++i) {
      a[i] += steps;
      // Keeps the compiler from computing an address per row again.
      asm("" : "+r"(a[i]));
    }
  };
  // Prefetches the lines of one k of all panels.
  const auto prefetch = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      __builtin_prefetch(next + p * tile.panel_elements, 0, 2);
    }
    next += tile.next_step;
  };
  int64_t k = 0;
  if (kRows == 1 && tile.offsets != nullptr) {
    for (; k + kUnrolled <= tile.k; k += kUnrolled) {
#pragma GCC unroll 8
      for (int u = 0; u < kUnrolled; ++u) add_step(tile.offsets[k + u], u);
      advance(kUnrolled);
    }
    for (; k < tile.k; ++k) {
      add_step(tile.offsets[k], 0);
      advance(1);
    }
  } else if (kRows <= kStreamingRows) {
    if (b_step == kPanelColumns) {
      for (; k + kUnrolled <= tile.k; k += kUnrolled) {
#pragma GCC unroll 8
        for (int u = 0; u < kUnrolled; ++u) {
          add_step((k + u) * kPanelColumns, u);
        }
        advance(kUnrolled);
      }
    }
    for (; k < tile.k; ++k) {
      add_step(k * b_step, 0);
      advance(1);
    }
  } else {
    // Only tiles with panels to prefetch spend instructions on prefetching.
    if (tile.next_step != 0) {
      for (; k + kSteps <= tile.k; k += kSteps) {
#pragma GCC unroll 8
        for (int u = 0; u < kSteps; ++u) {
          prefetch();
          add_step((k + u) * kPanelColumns, u);
        }
        advance(kSteps);
      }
    } else {
      for (; k + kSteps <= tile.k; k += kSteps) {
#pragma GCC unroll 8
        for (int u = 0; u < kSteps; ++u) add_step((k + u) * kPanelColumns, u);
        advance(kSteps);
      }
    }
    for (; k < tile.k; ++k) {
      add_step(k * kPanelColumns, 0);
      advance(1);
    }
  }
  alignas(64) float bias[kPanels * kPanelColumns];
  alignas(64) float scale[kPanels * kPanelColumns];
  const float* add = tile.bias;
  const float* multiply = tile.scale;
  if (!whole) {
    // Copies instead of loops with a condition: compilers turn those into
    // masked loads, which emulators let fault on masked-out addresses, null
    // pointers included.
    if (add != nullptr) {
      std::memset(bias, 0, sizeof(bias));
      std::memcpy(bias, add, column_bytes);
      add = bias;
    }
    if (kForm == WeightForm::kInt8 && multiply != nullptr) {
      std::memset(scale, 0, sizeof(scale));
      std::memcpy(scale, multiply, column_bytes);
      multiply = scale;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* const row = tile.c + r * tile.c_stride;
    float* const out = whole ? row : rest;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      Vector value = sum[r][v];
      if (kForm == WeightForm::kInt8 && multiply != nullptr) {
        value = Isa::Multiply(value, Isa::Load(multiply + v * Isa::kLanes));
      }
      if (add != nullptr) {
        value = Isa::Add(value, Isa::Load(add + v * Isa::kLanes));
      }
      if (tile.relu) value = Isa::Relu(value);
      Isa::Store(value, out + v * Isa::kLanes);
    }
    if (!whole) {
      std::memcpy(row, rest, column_bytes);
    }
  }
}

// Sets functions[form][1 … kRows][kPanels].
template <typename Isa, WeightForm kForm, int kPanels, int kRows>
void AddTiles(TileSet& set) {
  set.functions[static_cast<int>(kForm)][kRows][kPanels] =
      &RunTile<Isa, kForm, kRows, kPanels>;
  if constexpr (kRows > 1) AddTiles<Isa, kForm, kPanels, kRows - 1>(set);
}

}  // namespace
}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_DENSE_TILE_TEMPLATE_H_
