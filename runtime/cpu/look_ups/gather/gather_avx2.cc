// Compiled for AVX2, FMA and F16C: see gather_kernels.h.

#include "runtime/cpu/look_ups/gather/gather_kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

namespace refract::runtime::cpu {
namespace {

#include "runtime/cpu/look_ups/gather/gather_template.h"

struct Vector {
  static constexpr int64_t kLanes = 8;
  static constexpr bool kPicks = false;
  using Reg = __m256;
  static Reg Zero() { return _mm256_setzero_ps(); }
  static Reg Set1(float x) { return _mm256_set1_ps(x); }
  static Reg Add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg Mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
  static Reg MulAddExact(Reg a, Reg b, Reg c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  static Reg Div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
  static Reg Max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
  static void Store(float* to, Reg x) { _mm256_storeu_ps(to, x); }
  static __m256i LoadBits(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static void StoreBits(std::byte* p, __m256i x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
  }

  static Reg F32(const std::byte* p) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
  static Reg F16(const std::byte* p) {
    return _mm256_cvtph_ps(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Reg BF16(const std::byte* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static Reg Floats(__m128i bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
  }
  static Reg U8(const std::byte* p) {
    return Floats(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  // Eight elements of kBits each lie in the low bits of `packed`, element 0
  // lowest. Each lane shifts its own element down.
  template <int kBits>
  static Reg Unpack(int packed) {
    const __m256i from = _mm256_mullo_epi32(
        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(kBits));
    return _mm256_cvtepi32_ps(
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(packed), from),
                         _mm256_set1_epi32((1 << kBits) - 1)));
  }
  static Reg U4(const std::byte* p) {
    int packed;
    __builtin_memcpy(&packed, p, sizeof(packed));
    return Unpack<4>(packed);
  }
  static Reg U2(const std::byte* p) {
    uint16_t packed;
    __builtin_memcpy(&packed, p, sizeof(packed));
    return Unpack<2>(packed);
  }
  static void Halves(const std::byte* p, Reg& a, Reg& b) {
    const __m128 both = _mm_cvtph_ps(_mm_loadu_si32(p));
    a = _mm256_broadcastss_ps(both);
    b = _mm256_broadcastss_ps(_mm_movehdup_ps(both));
  }
};

}  // namespace

bool FillAvx2GatherSet(GatherSet& set) {
  FillSet<Vector>("avx2", set);
  return true;
}

}  // namespace refract::runtime::cpu

#else

namespace refract::runtime::cpu {
bool FillAvx2GatherSet(GatherSet&) { return false; }
}  // namespace refract::runtime::cpu

#endif
