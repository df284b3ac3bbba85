#include "tools/transport_bench/ticks.h"

#include <chrono>
#include <limits>

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

bool Counts() {
#if defined(__x86_64__)
  return kCounter;
#else
  return false;
#endif
}

// The two clocks at the same moment, as nearly as a few tries find it: the
// thread may be kept from running between two reads for longer than the whole
// measurement takes.
struct Moment {
  uint64_t nanoseconds;
  uint64_t ticks;
};
Moment ReadBoth(const std::function<uint64_t()>& nanoseconds,
                const std::function<uint64_t()>& ticks) {
  constexpr int kTries = 20;
  uint64_t closest = std::numeric_limits<uint64_t>::max();
  Moment best = {};
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = nanoseconds();
    const uint64_t between = ticks();
    const uint64_t gap = nanoseconds() - before;
    if (gap >= closest) continue;
    closest = gap;
    best = {before + gap / 2, between};
  }
  return best;
}

}  // namespace

uint64_t Ticks::Now() {
#if defined(__x86_64__)
  if (kCounter) return __rdtsc();
#endif
  return SteadyNanoseconds();
}

double Ticks::PerNanosecond() {
  static const double per_nanosecond =
      Counts() ? MeasureRate(SteadyNanoseconds, Now) : 1;
  return per_nanosecond;
}

double MeasureRate(const std::function<uint64_t()>& nanoseconds,
                   const std::function<uint64_t()>& ticks) {
  constexpr uint64_t kInterval = 20'000'000;
  const Moment begin = ReadBoth(nanoseconds, ticks);
  while (nanoseconds() - begin.nanoseconds < kInterval) {
  }
  const Moment end = ReadBoth(nanoseconds, ticks);
  return static_cast<double>(end.ticks - begin.ticks) /
         static_cast<double>(end.nanoseconds - begin.nanoseconds);
}

}  // namespace refract::transport_bench
