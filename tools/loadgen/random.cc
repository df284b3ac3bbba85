#include "tools/loadgen/random.h"

#include <cmath>
#include <numbers>

#include "absl/numeric/int128.h"

namespace refract::loadgen {
namespace {

// FNV-1a, 64 bits; std::hash may differ from one library to the next.
uint64_t HashOf(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

}  // namespace

Random::Random(uint64_t seed, absl::string_view stream) {
  const uint64_t name = HashOf(stream);
  std::seed_seq sequence{
      static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
      static_cast<uint32_t>(name), static_cast<uint32_t>(name >> 32)};
  engine_.seed(sequence);
}

double Random::Uniform() {
  // The 53 bits that a double has, so that the result is below 1.
  return static_cast<double>(engine_() >> 11) * 0x1p-53;
}

// The high half of a product instead of a remainder. Its bias is at most bound
// / 2^64, too little to show in any load.
uint64_t Random::Below(uint64_t bound) {
  return absl::Uint128High64(absl::uint128(engine_()) * bound);
}

// Inverse of the distribution. log1p(−u) with u in [0, 1) is finite, unlike
// log(u).
double Random::Exponential() { return -std::log1p(-Uniform()); }

// Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.
double Random::Normal() {
  const double radius = std::sqrt(2 * Exponential());
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

}  // namespace refract::loadgen
