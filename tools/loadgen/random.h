#ifndef REFRACT_TOOLS_LOADGEN_RANDOM_H_
#define REFRACT_TOOLS_LOADGEN_RANDOM_H_

#include <cstdint>
#include <random>

#include "absl/strings/string_view.h"

namespace refract::loadgen {

// Random numbers that depend only on the seed: the standard fixes the values of
// mt19937_64 but not those of std::*_distribution, so the distributions are
// written out here. Not thread-safe.
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
