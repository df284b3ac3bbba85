#ifndef REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_RANDOM_H_
#define REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_RANDOM_H_

#include <cstdint>

namespace refract::transport::sim {

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): the same numbers on every
// platform and library, which std's distributions do not promise.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    return Mix(state_);
  }
  // In [0, bound), bound above 0. The bias is below bound / 2^64.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>(
        (static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  // In [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  static uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace refract::transport::sim

#endif  // REFRACT_TESTS_TRANSPORT_VERBS_SIM_FABRIC_RANDOM_H_
