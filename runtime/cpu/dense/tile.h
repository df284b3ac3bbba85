#ifndef REFRACT_RUNTIME_CPU_DENSE_TILE_H_
#define REFRACT_RUNTIME_CPU_DENSE_TILE_H_

// The innermost block of a matrix product, one table of functions per
// instruction set. Plain types only: the files that implement it are compiled
// for processors that this one may not be, so they must not share inline
// functions with the rest of the program.

#include <cstdint>

namespace refract::runtime::cpu {

// Columns of a panel: one AVX-512 register, or two AVX ones, of floats.
inline constexpr int kPanelColumns = 16;

// How weights are stored. Products and sums are float32 in any case.
enum class WeightForm : uint8_t {
  kFloat32 = 0,
  kBFloat16 = 1,  // rounded to nearest even
  kInt8 = 2,      // value = stored × the column's scale
};
inline constexpr int kNumWeightForms = 3;

// c[r][j] = act(scale[j] × sum_k a[r][k] × b[k][j] + bias[j]) for r < rows and
// j < columns. The sum is one chain of fused multiply-adds with k ascending
// from 0, for every element, whatever tile computes it and on every instruction
// set. Hence a result does not depend on how many rows there are, on how the
// product is cut into tiles, or on whether an epilogue is fused. A chain may
// also stop and go on later: `c` holds the bare sums meanwhile, which are
// float32 either way.
struct Tile {
  const float* a = nullptr;
  int64_t a_stride = 0;  // floats from row to row
  // Panels one after the other: [panel][k][kPanelColumns] of the weights' form.
  const void* b = nullptr;
  int64_t panel_elements = 0;
  // Elements from k to k + 1. Tiles of more than kStreamingRows take it for
  // what it is in panels.
  int64_t b_step = kPanelColumns;
  // What tiles of more than a few rows fetch ahead into the second-level cache,
  // `next_step` elements on with each k, and of as many panels: those after
  // these.
  const void* next = nullptr;
  int64_t next_step = 0;
  int64_t k = 0;
  // Tiles of one row: where in a panel the weights of each of the k numbers
  // begin, ascending. Null: one after the other.
  const int32_t* offsets = nullptr;
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t columns = 0;           // at most those of the tile's panels
  const float* bias = nullptr;   // per column; null: none
  const float* scale = nullptr;  // per column; kInt8 only, null: none yet
  bool resumes = false;          // sums go on from `c` instead of from 0
  bool relu = false;             // after the bias; NaN stays NaN
};
using TileFunction = void (*)(const Tile& tile);

// So few rows take less time than their weights' way to the processor, which
// its own prefetchers shorten as far as it goes: instructions that fetch ahead
// only take turns from loads.
inline constexpr int kStreamingRows = 3;
inline constexpr int kMaxTileRows = 14;
inline constexpr int kMaxTilePanels = 4;

struct TileSet {
  const char* name = "";  // "avx512", …
  int max_rows = 0;
  // [form][rows][panels], null where the registers would not suffice. For one
  // panel there is a function for every number of rows up to max_rows.
  TileFunction functions[kNumWeightForms][kMaxTileRows + 1]
                        [kMaxTilePanels + 1] = {};
};

// Whatever this processor runs fastest. REFRACT_CPU_ISA=avx512|avx2|generic
// lowers the choice, for tests and comparisons.
const TileSet& ChosenTileSet();

// Null where the program was built without the set or this processor lacks it.
const TileSet* Avx512TileSet();
const TileSet* Avx2TileSet();
const TileSet& GenericTileSet();

// Fills in `set`; false when built without. Only to be called on a processor
// that has the instructions.
bool FillAvx512TileSet(TileSet& set);
bool FillAvx2TileSet(TileSet& set);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_DENSE_TILE_H_
