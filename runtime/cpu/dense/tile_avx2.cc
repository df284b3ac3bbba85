// Compiled for AVX2 with FMA (see runtime/CMakeLists.txt).

#include "runtime/cpu/dense/tile.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#include "runtime/cpu/dense/tile_template.h"

namespace refract::runtime::cpu {
namespace {

struct Avx2 {
  using Vector = __m256;
  static constexpr int kLanes = 8;
  static Vector Zero() { return _mm256_setzero_ps(); }
  static Vector Broadcast(float x) { return _mm256_set1_ps(x); }
  static Vector Load(const float* from) { return _mm256_loadu_ps(from); }
  static void Store(Vector x, float* to) { _mm256_storeu_ps(to, x); }
  static Vector Add(Vector x, Vector y) { return _mm256_add_ps(x, y); }
  static Vector Multiply(Vector x, Vector y) { return _mm256_mul_ps(x, y); }
  static Vector MultiplyAdd(Vector x, Vector y, Vector z) {
    return _mm256_fmadd_ps(x, y, z);
  }
  // max returns its second operand if either is NaN, and for two zeros: the
  // same as x < 0 ? 0 : x.
  static Vector Relu(Vector x) { return _mm256_max_ps(Zero(), x); }
  static Vector LoadWeight(const float* from) { return _mm256_loadu_ps(from); }
  static Vector LoadWeight(const uint16_t* from) {
    const __m128i bits =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static Vector LoadWeight(const int8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
};

// 16 registers: at most 12 hold sums, the others weights and one input. Two
// multiply-adds begin per cycle and end four cycles later (five on some
// processors), so 8 to 10 sums keep both units busy. 6 rows × 16 columns read 8
// registers from the cache for 12 multiply-adds: at two loads per cycle, 4 of
// the 6 cycles that the multiply-adds take.
template <WeightForm kForm>
void AddForm(TileSet& set) {
  AddTiles<Avx2, kForm, 1, 6>(set);
  AddTiles<Avx2, kForm, 2, 3>(set);
  AddTiles<Avx2, kForm, 4, 1>(set);
}

}  // namespace

bool FillAvx2TileSet(TileSet& set) {
  set.name = "avx2";
  set.max_rows = 6;
  // Processors without AVX-512 have, on Zen 2 and 3, second-level caches of 512
  // KiB: half of it for a block of rows. A row of 1024 terms lets a block have
  // 64 rows; longer rows are divided, so that few blocks read the weights again.
  // Shorter ranges, whose panel would stay in a first-level cache of 32 KiB,
  // lose more in the passes over the sums than they save (Zen 3).
  set.block_bytes = int64_t{256} << 10;
  set.range_terms = 1024;
  // In the third of the time that the first of three tiles takes, memory does
  // not deliver the next panel: prefetched by that tile alone, 16 rows take
  // 1.07 to 1.15 times as long (Zen 3).
  set.prefetch_tiles = 4;
  AddForm<WeightForm::kFloat32>(set);
  AddForm<WeightForm::kBFloat16>(set);
  AddForm<WeightForm::kInt8>(set);
  return true;
}

}  // namespace refract::runtime::cpu
#else
namespace refract::runtime::cpu {
bool FillAvx2TileSet(TileSet&) { return false; }
}  // namespace refract::runtime::cpu
#endif
