#include "bench/runtime/peak.h"

#include <cstdint>

namespace refract::bench {
namespace {

// Enough independent sums to cover a multiply-add's latency on two ports.
constexpr int kSums = 12;

template <typename Vector>
inline __attribute__((always_inline)) double Loop(double flops) {
  constexpr int kLanes = sizeof(Vector) / sizeof(float);
  const auto rounds = static_cast<int64_t>(flops / (2.0 * kLanes * kSums)) + 1;
  Vector sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = Vector{} + static_cast<float>(i);
  Vector factor = Vector{} + 0.999f;
  Vector addend = Vector{} + 1e-3f;
  for (int64_t r = 0; r < rounds; ++r) {
    // The compiler can neither hoist nor drop what the asm may have changed.
    asm volatile("" : "+x"(factor), "+x"(addend));
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * factor + addend;
  }
  float total = 0;
  for (const Vector& sum : sums) total += sum[0];
  return total;
}

#if defined(__x86_64__)
typedef float Vector256 __attribute__((vector_size(32)));
typedef float Vector512 __attribute__((vector_size(64)));

__attribute__((target("avx512f"))) double Loop512(double flops) {
  return Loop<Vector512>(flops);
}
__attribute__((target("avx2,fma"))) double Loop256(double flops) {
  return Loop<Vector256>(flops);
}
#endif

}  // namespace

double RunFmaLoop(double flops, [[maybe_unused]] std::string_view isa) {
#if defined(__x86_64__)
  if (isa == "avx512") return Loop512(flops);
  if (isa == "avx2") return Loop256(flops);
#endif
  typedef float Vector128 __attribute__((vector_size(16)));
  return Loop<Vector128>(flops);
}

}  // namespace refract::bench
