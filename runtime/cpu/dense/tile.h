#ifndef REFRACT_RUNTIME_CPU_DENSE_TILE_H_
#define REFRACT_RUNTIME_CPU_DENSE_TILE_H_

// The innermost block of a matrix product, one table of functions per
// instruction set. Plain types only: the implementing files are compiled for
// processors other than this one, so they must not share inline functions with
// the rest of the program.

#include <cstdint>

namespace refract::runtime::cpu {

// Columns of a panel: one AVX-512 register, or two AVX ones, of floats.
inline constexpr int kPanelColumns = 16;

// Storage of weights. Products and sums are float32 in every form.
enum class WeightForm : uint8_t {
  kFloat32 = 0,
  kBFloat16 = 1,  // rounded to nearest even
  kInt8 = 2,      // value = stored × the column's scale
};
inline constexpr int kNumWeightForms = 3;

// c[r][j] = act(scale[j] × sum_k a[r][k] × b[k][j] + bias[j]) for r < rows and
// j < columns. The sum of every element is one chain of fused multiply-adds
// with k ascending from 0, in every tile and on every instruction set. So a
// result depends neither on the number of rows, nor on the division of the
// product into tiles, nor on a fused epilogue. A chain may also stop and
// continue later: meanwhile `c` holds the sums, which are float32 in either
// place.
struct Tile {
  const float* a = nullptr;
  int64_t a_stride = 0;  // floats from row to row
  // Consecutive panels: [panel][k][kPanelColumns] in the weights' form.
  const void* b = nullptr;
  int64_t panel_elements = 0;
  // Elements from k to k + 1. Tiles of more than kStreamingRows ignore it and
  // assume panels.
  int64_t b_step = kPanelColumns;
  // Prefetched into the second-level cache by tiles of more than kStreamingRows:
  // `next_step` elements further with each k, from the panels after these.
  // `next_step` 0: nothing.
  const void* next = nullptr;
  int64_t next_step = 0;
  int64_t k = 0;
  // For tiles of one row: offset in a panel of the weights of each of the k
  // inputs, ascending. Null: consecutive.
  const int32_t* offsets = nullptr;
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t columns = 0;           // at most the columns of the tile's panels
  const float* bias = nullptr;   // per column; null: none
  const float* scale = nullptr;  // per column; kInt8 only, null: not applied
  bool resumes = false;          // sums continue from `c` instead of 0
  bool relu = false;             // after the bias; NaN stays NaN
};
using TileFunction = void (*)(const Tile& tile);

// Up to this number of rows, reading the weights takes longer than the
// arithmetic. The processor's own prefetchers suffice then, and prefetch
// instructions would only delay loads.
inline constexpr int kStreamingRows = 3;
inline constexpr int kMaxTileRows = 14;
inline constexpr int kMaxTilePanels = 4;

struct TileSet {
  const char* name = "";  // "avx512", …
  int max_rows = 0;
  // Bytes of a block of rows of `a` that is multiplied with all panels, so that
  // the rows and a tile's panels stay in the second-level cache: about half of
  // the smallest of the processors that use the set.
  int64_t block_bytes = 0;
  // Products of many rows take at most this many terms of all sums at a time,
  // so that a block has many rows. 0: all terms.
  int64_t range_terms = 0;
  // Tiles of rows, at most, over which the prefetches of the next group of
  // panels are spread.
  int64_t prefetch_tiles = 1;
  // [form][rows][panels], null where the registers do not suffice. For one
  // panel there is a function for every number of rows up to max_rows.
  TileFunction functions[kNumWeightForms][kMaxTileRows + 1]
                        [kMaxTilePanels + 1] = {};
};

// The fastest allowed set of this processor (instruction_sets.h).
const TileSet& ChosenTileSet();

// Null where the program was built without the set or this processor lacks the
// instructions.
const TileSet* Avx512TileSet();
const TileSet* Avx2TileSet();
const TileSet& GenericTileSet();

// Fills in `set`; false when built without it. Only to be called on a processor
// that has the instructions.
bool FillAvx512TileSet(TileSet& set);
bool FillAvx2TileSet(TileSet& set);

}  // namespace refract::runtime::cpu

#endif  // REFRACT_RUNTIME_CPU_DENSE_TILE_H_
