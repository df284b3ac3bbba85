#include "tools/transport_bench/ticks.h"

#include <chrono>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace refract::transport_bench {
namespace {

uint64_t SteadyNanoseconds() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

#if defined(__x86_64__)
bool HasInvariantCounter() {
  unsigned int a = 0;
  unsigned int b = 0;
  unsigned int c = 0;
  unsigned int d = 0;
  // Advanced power management: bit 8 of edx is "invariant TSC".
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
}
const bool kCounter = HasInvariantCounter();
#endif

double Measure() {
  constexpr uint64_t kInterval = 20'000'000;
  const uint64_t start = SteadyNanoseconds();
  const uint64_t first = Ticks::Now();
  uint64_t now = start;
  while (now - start < kInterval) now = SteadyNanoseconds();
  return static_cast<double>(Ticks::Now() - first) /
         static_cast<double>(now - start);
}

}  // namespace

uint64_t Ticks::Now() {
#if defined(__x86_64__)
  if (kCounter) return __rdtsc();
#endif
  return SteadyNanoseconds();
}

double Ticks::PerNanosecond() {
  static const double per_nanosecond = Measure();
  return per_nanosecond;
}

}  // namespace refract::transport_bench
