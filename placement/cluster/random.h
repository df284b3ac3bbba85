#ifndef REFRACT_PLACEMENT_CLUSTER_RANDOM_H_
#define REFRACT_PLACEMENT_CLUSTER_RANDOM_H_

// Random numbers that are equal with every compiler and library, unlike the
// distributions of <random>.

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace refract::placement {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // Uniform in 0..count−1, count ≥ 1.
  uint64_t Below(uint64_t count) {
    // Lemire's multiplication; its bias is below count ÷ 2^64.
    return static_cast<uint64_t>(
        (static_cast<unsigned __int128>(engine_()) * count) >> 64);
  }
  // Uniform in [0, 1).
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[Below(i)]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_CLUSTER_RANDOM_H_
