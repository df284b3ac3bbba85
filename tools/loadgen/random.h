#ifndef REFRACT_TOOLS_LOADGEN_RANDOM_H_
#define REFRACT_TOOLS_LOADGEN_RANDOM_H_

#include <cstdint>
#include <random>

#include "absl/strings/string_view.h"

namespace refract::loadgen {

// Random numbers that depend on the seed and on nothing else: the standard
// fixes what mt19937_64 yields but not what std::*_distribution make of it, so
// those are written out here. Not thread-safe.
class Random {
 public:
  // Streams of one seed with different names are independent: drawing more ids
  // moves no arrival.
  Random(uint64_t seed, absl::string_view stream);

  // [0, 1), 53 bits.
  double Uniform();
  // [0, bound); `bound` ≥ 1.
  uint64_t Below(uint64_t bound);
  // Mean 1.
  double Exponential();
  // Mean 0, variance 1.
  double Normal();

 private:
  std::mt19937_64 engine_;
};

}  // namespace refract::loadgen

#endif  // REFRACT_TOOLS_LOADGEN_RANDOM_H_
