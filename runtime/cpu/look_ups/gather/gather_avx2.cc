// Compiled for AVX2 and F16C: see gather_kernels.h.

#include "runtime/cpu/look_ups/gather/gather_kernels.h"

#if defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>

namespace refract::runtime::cpu {
namespace {

#include "runtime/cpu/look_ups/gather/gather_template.h"

struct Vector {
  static constexpr int64_t kLanes = 8;
  using Reg = __m256;
  static Reg Zero() { return _mm256_setzero_ps(); }
  static Reg Set1(float x) { return _mm256_set1_ps(x); }
  static Reg Add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static Reg Mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
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
  static Reg U4(const std::byte* p) {
    // A byte's two elements in two bytes: b | b << 4 in 16 bits.
    const __m128i words = _mm_cvtepu8_epi16(_mm_loadu_si32(p));
    return Floats(_mm_and_si128(_mm_or_si128(words, _mm_slli_epi16(words, 4)),
                                _mm_set1_epi8(0x0f)));
  }
  static Reg U2(const std::byte* p) {
    // A byte's four elements in four bytes: two bits move six further each.
    const __m128i dwords = _mm_cvtepu8_epi32(_mm_loadu_si16(p));
    const __m128i two = _mm_or_si128(dwords, _mm_slli_epi32(dwords, 6));
    return Floats(_mm_and_si128(_mm_or_si128(two, _mm_slli_epi32(two, 12)),
                                _mm_set1_epi8(3)));
  }
  static float Half(const std::byte* p) {
    uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof(bits));
    return _cvtsh_ss(bits);
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
