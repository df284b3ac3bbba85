// Compiled for AVX-512 F, BW, VL and F16C: see gather_kernels.h.

#include "runtime/cpu/look_ups/gather/gather_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__F16C__)

#include <immintrin.h>

namespace refract::runtime::cpu {
namespace {

#include "runtime/cpu/look_ups/gather/gather_template.h"

struct Vector {
  static constexpr int64_t kLanes = 16;
  using Reg = __m512;
  static Reg Zero() { return _mm512_setzero_ps(); }
  static Reg Set1(float x) { return _mm512_set1_ps(x); }
  static Reg Add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static Reg Mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
  static Reg MulAddExact(Reg a, Reg b, Reg c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  static Reg Div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
  static Reg Max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
  static void Store(float* to, Reg x) { _mm512_storeu_ps(to, x); }
  static __m512i LoadBits(const std::byte* p) { return _mm512_loadu_si512(p); }
  static void StoreBits(std::byte* p, __m512i x) { _mm512_storeu_si512(p, x); }

  static Reg F32(const std::byte* p) { return _mm512_loadu_ps(p); }
  static Reg F16(const std::byte* p) {
    return _mm512_cvtph_ps(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Reg BF16(const std::byte* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static Reg Floats(__m128i bytes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
  }
  static Reg U8(const std::byte* p) {
    return Floats(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // A row's values of all elements fit a register, from which a permutation
  // picks 16 at a time: a shift of each lane moves its element to the four bits
  // that the permutation looks at.
  static constexpr bool kPicks = true;
  static Reg Choices4() {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  static Reg Pick4(const std::byte* p, Reg choices) {
    int first, second;
    __builtin_memcpy(&first, p, sizeof(first));
    __builtin_memcpy(&second, p + 4, sizeof(second));
    const __m512i packed =
        _mm512_mask_set1_epi32(_mm512_set1_epi32(first), 0xff00, second);
    const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4,
                                            8, 12, 16, 20, 24, 28);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(packed, shift), choices);
  }
  // Whichever the next element is, the four bits pick the value of the lower
  // two.
  static Reg Choices2() {
    return _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
  }
  static Reg Pick2(const std::byte* p, Reg choices) {
    int packed;
    __builtin_memcpy(&packed, p, sizeof(packed));
    const __m512i shift = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18,
                                            20, 22, 24, 26, 28, 30);
    return _mm512_permutexvar_ps(
        _mm512_srlv_epi32(_mm512_set1_epi32(packed), shift), choices);
  }
  static void Halves(const std::byte* p, Reg& a, Reg& b) {
    const __m128 both = _mm_cvtph_ps(_mm_loadu_si32(p));
    a = _mm512_broadcastss_ps(both);
    b = _mm512_broadcastss_ps(_mm_movehdup_ps(both));
  }
};

}  // namespace

bool FillAvx512GatherSet(GatherSet& set) {
  FillSet<Vector>("avx512", set);
  return true;
}

}  // namespace refract::runtime::cpu

#else

namespace refract::runtime::cpu {
bool FillAvx512GatherSet(GatherSet&) { return false; }
}  // namespace refract::runtime::cpu

#endif
