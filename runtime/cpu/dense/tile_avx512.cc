// Compiled for AVX-512 (see runtime/CMakeLists.txt).

#include "runtime/cpu/dense/tile.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>

#include "runtime/cpu/dense/tile_template.h"

namespace refract::runtime::cpu {
namespace {

struct Avx512 {
  using Vector = __m512;
  static constexpr int kLanes = 16;
  static Vector Zero() { return _mm512_setzero_ps(); }
  static Vector Broadcast(float x) { return _mm512_set1_ps(x); }
  static Vector Load(const float* from) { return _mm512_loadu_ps(from); }
  static void Store(Vector x, float* to) { _mm512_storeu_ps(to, x); }
  static Vector Add(Vector x, Vector y) { return _mm512_add_ps(x, y); }
  static Vector Multiply(Vector x, Vector y) { return _mm512_mul_ps(x, y); }
  static Vector MultiplyAdd(Vector x, Vector y, Vector z) {
    return _mm512_fmadd_ps(x, y, z);
  }
  // max returns its second operand if either is NaN, and for two zeros: the
  // same as x < 0 ? 0 : x.
  static Vector Relu(Vector x) { return _mm512_max_ps(Zero(), x); }
  static Vector LoadWeight(const float* from) { return _mm512_loadu_ps(from); }
  static Vector LoadWeight(const uint16_t* from) {
    const __m256i bits =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static Vector LoadWeight(const int8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
};

// 32 registers: at most 28 hold sums, the others weights and one input.
template <WeightForm kForm>
void AddForm(TileSet& set) {
  AddTiles<Avx512, kForm, 1, 14>(set);
  AddTiles<Avx512, kForm, 2, 14>(set);
  AddTiles<Avx512, kForm, 3, 9>(set);
  AddTiles<Avx512, kForm, 4, 6>(set);
}

}  // namespace

bool FillAvx512TileSet(TileSet& set) {
  set.name = "avx512";
  set.max_rows = 14;
  // Processors with AVX-512 have second-level caches of 1 MiB and more.
  set.block_bytes = int64_t{512} << 10;
  AddForm<WeightForm::kFloat32>(set);
  AddForm<WeightForm::kBFloat16>(set);
  AddForm<WeightForm::kInt8>(set);
  return true;
}

}  // namespace refract::runtime::cpu
#else
namespace refract::runtime::cpu {
bool FillAvx512TileSet(TileSet&) { return false; }
}  // namespace refract::runtime::cpu
#endif
