#ifndef REFRACT_TESTS_BASE_RANDOM_SEED_H_
#define REFRACT_TESTS_BASE_RANDOM_SEED_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace refract::base {

// The seed of a random test: a new one at each call, or the value of the
// environment variable REFRACT_TEST_SEED. Printed, so that a failure can be
// repeated: a test that draws several seeds prints all of them, and names the
// current one in its trace.
inline uint32_t RandomSeed() {
  const char* const given = std::getenv("REFRACT_TEST_SEED");
  const uint32_t seed =
      given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10))
                       : std::random_device()();
  std::printf("REFRACT_TEST_SEED=%u\n", seed);
  return seed;
}

// The one seed of all tests of a program.
inline uint32_t ProgramSeed() {
  static const uint32_t seed = RandomSeed();
  return seed;
}

}  // namespace refract::base

#endif  // REFRACT_TESTS_BASE_RANDOM_SEED_H_
