#ifndef REFRACT_TOOLS_TRANSPORT_BENCH_TICKS_H_
#define REFRACT_TOOLS_TRANSPORT_BENCH_TICKS_H_

#include <cstdint>
#include <functional>

namespace refract::transport_bench {

// A clock for intervals of a hundred nanoseconds: the processor's time stamp
// counter where it runs at a constant rate, else the steady clock, whose read
// alone would be a tenth of a shared-memory round trip.
class Ticks {
 public:
  static uint64_t Now();
  // Measured against the steady clock on first use, which takes 20 ms.
  static double PerNanosecond();
};

// Steps of `ticks` per nanosecond of `nanoseconds`, both of which only rise.
// Takes 20 ms, and as long as the thread is kept from running meanwhile, which
// changes nothing.
double MeasureRate(const std::function<uint64_t()>& nanoseconds,
                   const std::function<uint64_t()>& ticks);

}  // namespace refract::transport_bench

#endif  // REFRACT_TOOLS_TRANSPORT_BENCH_TICKS_H_
