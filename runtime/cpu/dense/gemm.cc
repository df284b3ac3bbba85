// Loops around the tiles: ranges of terms, blocks of rows that fit the cache,
// then groups of panels, then tiles of nearly equal height. Loop order and tile
// shape change neither the terms of a sum nor their order.

#include "runtime/cpu/dense/gemm.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/cpu/half.h"
#include "runtime/cpu/instruction_sets.h"
#include "runtime/cpu/scratch.h"

namespace refract::runtime::cpu {
namespace {

int64_t PanelsOf(int64_t n) { return (n + kPanelColumns - 1) / kPanelColumns; }

size_t ElementBytes(WeightForm form) {
  switch (form) {
    case WeightForm::kBFloat16:
      return sizeof(uint16_t);
    case WeightForm::kInt8:
      return sizeof(int8_t);
    case WeightForm::kFloat32:
      break;
  }
  return sizeof(float);
}

// Calls store(panel element index, k, n) for every element of the panels, n
// past the end for padding.
template <typename Store>
void ForEachElement(int64_t k, int64_t n, Store store) {
  int64_t index = 0;
  for (int64_t first = 0; first < n; first += kPanelColumns) {
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t j = first; j < first + kPanelColumns; ++j) {
        store(index++, i, j);
      }
    }
  }
}

bool AllFinite(const float* values, size_t count) {
  // x × 0 is NaN for infinite and NaN x, and any sum with a NaN is NaN.
  float sum = 0;
  for (size_t i = 0; i < count; ++i) sum += values[i] * 0.0f;
  return sum == 0.0f;
}

// Rows whose distance is a multiple of this map to few sets of a first-level
// cache and evict each other while a tile walks along them.
constexpr int64_t kAliasBytes = 1024;
// Copying rows pays when at least this many panels read them.
constexpr int64_t kCopyPanels = 8;

struct Product {
  const void* panels;  // at the first multiplied row
  size_t element_bytes;
  WeightForm form;
  const float* scale;
  int64_t k;  // multiplied rows
  int64_t n;
  int64_t panel_elements;
  bool resumes = false;
  bool finite = false;  // no weight is known to be infinite or NaN
};

// Zeros of a row are skipped where at least this share of it is zero. With
// fewer zeros, reading all lines in sequence is as fast because of the
// processor's prefetchers. The break-even depends on where the weights are: on
// Zen 5 a quarter with weights in the cache, 3/8 with weights in memory. Zeros
// are only skipped before this many panels, so that finding them costs little.
constexpr int64_t kZerosOfEight = 3;
constexpr int64_t kSkipPanels = 8;
constexpr int64_t kMostSkipTerms = int64_t{1} << 20;  // 8 MiB of scratch

// Collects the nonzero elements of `a` and lets `tile` multiply only these.
// About half of a ReLU's outputs are zero before training and often more
// afterwards. While weights are finite, a zero changes no sum, except the sign
// of a zero sum. For a single item most of the time goes into reading weights,
// and skipped weights are not read. NaN is not zero.
void SkipZeros(const float* a, Tile& tile) {
  // Room for a row without zeros, so that no later row needs more. One element
  // past the end: each element is written before it is known to stay.
  const size_t room = static_cast<size_t>(tile.k) + 1;
  float* const values = ThreadScratch(ScratchUse::kRows,
                                      room * (sizeof(float) + sizeof(int32_t)));
  auto* const offsets = reinterpret_cast<int32_t*>(values + room);
  int64_t zeros = 0;
  for (int64_t i = 0; i < tile.k; ++i) zeros += a[i] == 0.0f ? 1 : 0;
  tile.a = a;
  if (zeros * 8 < tile.k * kZerosOfEight) return;
  int64_t count = 0;
  for (int64_t i = 0; i < tile.k; ++i) {
    values[count] = a[i];
    offsets[count] = static_cast<int32_t>(i * kPanelColumns);
    count += a[i] == 0.0f ? 0 : 1;
  }
  tile.a = values;
  tile.offsets = offsets;
  tile.k = count;
}

// Reads ahead of the tile that will store these results: their lines are rarely
// in a near cache, and a tile that continues sums begins with them.
void PrefetchResults(const float* c, int64_t c_stride, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) __builtin_prefetch(c + r * c_stride, 1);
}

// Number of panels of the next tile: as many as possible, but one fewer where
// the last tile would otherwise have a single panel. With one panel and few
// rows, sums wait for each other instead of for weights.
int64_t TilePanels(const TileFunction* functions, int64_t left) {
  int64_t width = std::min<int64_t>(kMaxTilePanels, left);
  while (functions[width] == nullptr) --width;
  return left - width == 1 && width > 2 && functions[width - 1] != nullptr
             ? width - 1
             : width;
}

void RunTerms(const TileSet& tiles, const float* a, int64_t a_stride, int64_t m,
              const Product& b, const Epilogue& epilogue, float* c,
              int64_t c_stride) {
  const auto& functions = tiles.functions[static_cast<int>(b.form)];
  const int64_t num_panels = PanelsOf(b.n);
  const int64_t row_bytes = std::max<int64_t>(1, b.k) * sizeof(float);
  // Blocks of nearly equal height in whole tiles.
  const int64_t most =
      std::max<int64_t>(tiles.max_rows, tiles.block_bytes / row_bytes);
  const int64_t blocks = (m + most - 1) / most;
  const int64_t block = ((m + blocks - 1) / blocks + tiles.max_rows - 1) /
                        tiles.max_rows * tiles.max_rows;
  const bool copies =
      m > 4 && num_panels >= kCopyPanels &&
      a_stride * static_cast<int64_t>(sizeof(float)) % kAliasBytes == 0;
  // One cache line more than a row, so that rows map to different sets.
  const int64_t copy_stride =
      (b.k + kPanelColumns - 1) / kPanelColumns * kPanelColumns + kPanelColumns;
  Tile tile;
  tile.a_stride = copies ? copy_stride : a_stride;
  tile.panel_elements = b.panel_elements;
  tile.k = b.k;
  tile.c_stride = c_stride;
  tile.relu = epilogue.relu;
  tile.resumes = b.resumes;
  const bool skips =
      m == 1 && b.finite && num_panels >= kSkipPanels && b.k < kMostSkipTerms;
  if (skips) SkipZeros(a, tile);
  for (int64_t top = 0; top < m; top += block) {
    const int64_t rows = std::min(block, m - top);
    const float* from = a + top * a_stride;
    if (copies) {
      float* const copy =
          ThreadScratch(ScratchUse::kRows,
                        static_cast<size_t>(std::min(block, m) * copy_stride) *
                            sizeof(float));
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(from + r * a_stride, b.k, copy + r * copy_stride);
      }
      from = copy;
    }
    // Tiles of nearly equal height: 16 rows become 8 + 8, not 14 + 2.
    const int64_t count = (rows + tiles.max_rows - 1) / tiles.max_rows;
    const int64_t high = rows % count;  // tiles of one row more
    const int64_t low_rows = rows / count;
    const int64_t most_rows = low_rows + (high > 0 ? 1 : 0);
    // Tiles that prefetch the next group of panels, and elements of a panel
    // that each of them prefetches per term.
    const int64_t ahead = std::min(count, tiles.prefetch_tiles);
    const int64_t step = (kPanelColumns + ahead - 1) / ahead;
    for (int64_t panel = 0; panel < num_panels;) {
      const int64_t width =
          TilePanels(functions[most_rows], num_panels - panel);
      const int64_t column = panel * kPanelColumns;
      tile.b =
          static_cast<const std::byte*>(b.panels) +
          static_cast<size_t>(panel * tile.panel_elements) * b.element_bytes;
      tile.columns = std::min(width * kPanelColumns, b.n - column);
      tile.bias = epilogue.bias == nullptr ? nullptr : epilogue.bias + column;
      tile.scale = b.scale == nullptr ? nullptr : b.scale + column;
      int64_t row = 0;
      for (int64_t t = 0; t < count; ++t) {
        const int64_t height = low_rows + (t < high ? 1 : 0);
        // Each element is prefetched once per group of panels. With few rows,
        // where weights pass through the cache, this hides most of their
        // latency.
        tile.next = static_cast<const std::byte*>(tile.b) +
                    static_cast<size_t>(width * tile.panel_elements +
                                        t * step * tile.k) *
                        b.element_bytes;
        tile.next_step = t < ahead && panel + width < num_panels ? step : 0;
        if (!skips) tile.a = from + row * tile.a_stride;
        tile.c = c + (top + row) * c_stride + column;
        row += height;
        if (row < rows) {
          PrefetchResults(tile.c + height * c_stride, c_stride, height);
        }
        functions[height][width](tile);
      }
      panel += width;
    }
  }
}

// As RunTerms(), with the terms in nearly equal ranges where TileSet says so.
// In between, `c` holds the sums. A panel that is read by a few tiles only is
// not worth the passes over `c`.
constexpr int64_t kRangeTiles = 4;

void Run(const TileSet& tiles, const float* a, int64_t a_stride, int64_t m,
         const Product& b, const Epilogue& epilogue, float* c,
         int64_t c_stride) {
  if (m == 0 || b.n == 0) return;
  const int64_t ranges =
      tiles.range_terms == 0 || m < kRangeTiles * tiles.max_rows
          ? 1
          : std::max<int64_t>(
                1, (b.k + tiles.range_terms - 1) / tiles.range_terms);
  int64_t first = 0;
  for (int64_t r = 0; r < ranges; ++r) {
    const bool last = r + 1 == ranges;
    Product range = b;
    range.panels = static_cast<const std::byte*>(b.panels) +
                   static_cast<size_t>(first * kPanelColumns) * b.element_bytes;
    range.k = last ? b.k - first : b.k / ranges;
    range.resumes = b.resumes || r > 0;
    if (!last) range.scale = nullptr;
    RunTerms(tiles, a + first, a_stride, m, range, last ? epilogue : Epilogue{},
             c, c_stride);
    first += range.k;
  }
}

const TileSet& Choose() {
  const InstructionSet allowed = AllowedInstructionSet();
  if (allowed >= InstructionSet::kAvx512 && Avx512TileSet() != nullptr) {
    return *Avx512TileSet();
  }
  if (allowed >= InstructionSet::kAvx2 && Avx2TileSet() != nullptr) {
    return *Avx2TileSet();
  }
  return GenericTileSet();
}

// Packs four columns that are contiguous, as in a transposed matrix. Products
// between vectors of an item pack their right operand for every item, so this
// must be fast.
void PackFourColumns(const float* from, int64_t k, int64_t column_stride,
                     float* to) {
  int64_t i = 0;
#if defined(__SSE2__)
  for (; i + 4 <= k; i += 4) {
    __m128 rows[4];
    for (int j = 0; j < 4; ++j) {
      rows[j] = _mm_loadu_ps(from + j * column_stride + i);
    }
    _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]);
    for (int j = 0; j < 4; ++j) {
      _mm_storeu_ps(to + (i + j) * kPanelColumns, rows[j]);
    }
  }
#endif
  for (; i < k; ++i) {
    for (int j = 0; j < 4; ++j) {
      to[i * kPanelColumns + j] = from[j * column_stride + i];
    }
  }
}

}  // namespace

// This check is not beside the tiles, because it must run before any code that
// is compiled for the instruction set.
const TileSet* Avx512TileSet() {
#if defined(__x86_64__)
  static const TileSet* const found = []() -> const TileSet* {
    static TileSet set;
    const bool runs = __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl");
    return runs && FillAvx512TileSet(set) ? &set : nullptr;
  }();
  return found;
#else
  return nullptr;
#endif
}

const TileSet* Avx2TileSet() {
#if defined(__x86_64__)
  static const TileSet* const found = []() -> const TileSet* {
    static TileSet set;
    const bool runs =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return runs && FillAvx2TileSet(set) ? &set : nullptr;
  }();
  return found;
#else
  return nullptr;
#endif
}

const TileSet& ChosenTileSet() {
  static const TileSet& chosen = Choose();
  return chosen;
}

PackedMatrix::PackedMatrix(const float* b, int64_t k, int64_t n,
                           int64_t row_stride, int64_t column_stride,
                           WeightForm form, std::shared_ptr<WeightArena> arena)
    : k_(k),
      n_(n),
      form_(form),
      bytes_(static_cast<size_t>(PanelsOf(n) * kPanelColumns * k) *
             ElementBytes(form)) {
  if (arena == nullptr) arena = std::make_shared<WeightArena>();
  std::byte* const panels = arena->Allocate(bytes_);
  panels_ = panels;
  arena_ = std::move(arena);
  const auto at = [&](int64_t i, int64_t j) {
    return j < n ? b[i * row_stride + j * column_stride] : 0.0f;
  };
  switch (form) {
    case WeightForm::kFloat32:
      PackPanels(b, k, n, row_stride, column_stride,
                 reinterpret_cast<float*>(panels));
      finite_ = AllFinite(reinterpret_cast<const float*>(panels),
                          bytes_ / sizeof(float));
      return;
    case WeightForm::kBFloat16: {
      auto* const to = reinterpret_cast<BFloat16*>(panels);
      finite_ = true;
      ForEachElement(k, n, [&](int64_t index, int64_t i, int64_t j) {
        FromFloat(at(i, j), to[index]);
        finite_ = finite_ && std::isfinite(ToFloat(to[index]));
      });
      return;
    }
    case WeightForm::kInt8: {
      auto* const to = reinterpret_cast<int8_t*>(panels);
      scale_.assign(static_cast<size_t>(n), 0.0f);
      for (int64_t j = 0; j < n; ++j) {
        float most = 0;
        // A NaN becomes the scale, so that results show it.
        for (int64_t i = 0; i < k; ++i) {
          const float size = std::fabs(at(i, j));
          if (size > most || std::isnan(size)) most = size;
        }
        scale_[j] = most / 127.0f;
      }
      ForEachElement(k, n, [&](int64_t index, int64_t i, int64_t j) {
        const float scale = j < n ? scale_[j] : 0.0f;
        to[index] = scale == 0.0f || !std::isfinite(scale)
                        ? 0
                        : static_cast<int8_t>(std::lrint(
                              std::clamp(at(i, j) / scale, -127.0f, 127.0f)));
      });
      finite_ = true;  // infinities and NaN are in the scale
      return;
    }
  }
}

float PackedMatrix::At(int64_t k, int64_t n) const {
  const int64_t index = n / kPanelColumns * kPanelColumns * k_ +
                        k * kPanelColumns + n % kPanelColumns;
  switch (form_) {
    case WeightForm::kBFloat16:
      return ToFloat(reinterpret_cast<const BFloat16*>(panels_)[index]);
    case WeightForm::kInt8:
      return static_cast<float>(
                 reinterpret_cast<const int8_t*>(panels_)[index]) *
             scale_[n];
    case WeightForm::kFloat32:
      break;
  }
  return reinterpret_cast<const float*>(panels_)[index];
}

size_t PackedMatrix::PanelBytes(int64_t k, int64_t n) {
  return static_cast<size_t>(PanelsOf(n) * kPanelColumns * k) * sizeof(float);
}

void PackPanels(const float* b, int64_t k, int64_t n, int64_t row_stride,
                int64_t column_stride, float* panels) {
  for (int64_t first = 0; first < n; first += kPanelColumns) {
    const int64_t columns = std::min<int64_t>(kPanelColumns, n - first);
    const float* const from = b + first * column_stride;
    if (column_stride == 1) {
      for (int64_t i = 0; i < k; ++i) {
        float* const to = panels + i * kPanelColumns;
        std::copy_n(from + i * row_stride, columns, to);
        std::fill(to + columns, to + kPanelColumns, 0.0f);
      }
    } else {
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        if (row_stride == 1 && j % 4 == 0 && j + 4 <= columns) {
          PackFourColumns(from + j * column_stride, k, column_stride,
                          panels + j);
          j += 3;
          continue;
        }
        float* const to = panels + j;
        if (j < columns) {
          const float* const column = from + j * column_stride;
          for (int64_t i = 0; i < k; ++i) {
            to[i * kPanelColumns] = column[i * row_stride];
          }
        } else {
          for (int64_t i = 0; i < k; ++i) to[i * kPanelColumns] = 0.0f;
        }
      }
    }
    panels += k * kPanelColumns;
  }
}

void Gemm(const TileSet& tiles, const float* a, int64_t a_stride, int64_t m,
          const PackedMatrix& b, const Terms& terms, const Epilogue& epilogue,
          float* c, int64_t c_stride) {
  const size_t bytes = ElementBytes(b.form());
  const Product product = {
      static_cast<const std::byte*>(b.data()) +
          static_cast<size_t>(terms.first * kPanelColumns) * bytes,
      bytes,
      b.form(),
      terms.ends ? b.scale() : nullptr,
      terms.count,
      b.n(),
      b.k() * kPanelColumns,
      terms.resumes,
      b.finite()};
  Run(tiles, a, a_stride, m, product, terms.ends ? epilogue : Epilogue{}, c,
      c_stride);
}

void Gemm(const float* a, int64_t a_stride, int64_t m, const PackedMatrix& b,
          const Terms& terms, const Epilogue& epilogue, float* c,
          int64_t c_stride) {
  Gemm(ChosenTileSet(), a, a_stride, m, b, terms, epilogue, c, c_stride);
}

void Gemm(const TileSet& tiles, const float* a, int64_t a_stride, int64_t m,
          const PackedMatrix& b, const Epilogue& epilogue, float* c,
          int64_t c_stride) {
  Gemm(tiles, a, a_stride, m, b, {0, b.k()}, epilogue, c, c_stride);
}

void Gemm(const float* a, int64_t a_stride, int64_t m, const PackedMatrix& b,
          const Epilogue& epilogue, float* c, int64_t c_stride) {
  Gemm(ChosenTileSet(), a, a_stride, m, b, epilogue, c, c_stride);
}

void GemmUnpacked(const float* a, int64_t a_stride, int64_t m, const float* b,
                  int64_t k, int64_t n, const Epilogue& epilogue, float* c,
                  int64_t c_stride) {
  if (m == 0) return;
  const auto& functions =
      ChosenTileSet().functions[static_cast<int>(WeightForm::kFloat32)][m];
  Tile tile;
  tile.a = a;
  tile.a_stride = a_stride;
  tile.panel_elements = kPanelColumns;
  tile.b_step = n;
  tile.k = k;
  tile.c_stride = c_stride;
  tile.relu = epilogue.relu;
  for (int64_t column = 0; column < n; column += tile.columns) {
    const int64_t width = TilePanels(functions, (n - column) / kPanelColumns);
    tile.b = b + column;
    tile.c = c + column;
    tile.columns = width * kPanelColumns;
    tile.bias = epilogue.bias == nullptr ? nullptr : epilogue.bias + column;
    functions[width](tile);
  }
}

void Gemm(const float* a, int64_t a_stride, int64_t m, const float* panels,
          int64_t k, int64_t n, const Epilogue& epilogue, float* c,
          int64_t c_stride, bool resumes) {
  Gemm(a, a_stride, m, panels, k, n, {0, k, resumes}, epilogue, c, c_stride);
}

void Gemm(const float* a, int64_t a_stride, int64_t m, const float* panels,
          int64_t k, int64_t n, const Terms& terms, const Epilogue& epilogue,
          float* c, int64_t c_stride) {
  const Product product = {panels + terms.first * kPanelColumns,
                           sizeof(float),
                           WeightForm::kFloat32,
                           nullptr,
                           terms.count,
                           n,
                           k * kPanelColumns,
                           terms.resumes};
  Run(ChosenTileSet(), a, a_stride, m, product,
      terms.ends ? epilogue : Epilogue{}, c, c_stride);
}

}  // namespace refract::runtime::cpu
