#include "runtime/wire/kernels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::runtime::wire {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMaxFloat = std::numeric_limits<float>::max();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();

const char* NameOf(Isa isa) {
  return isa == Isa::kBaseline ? "baseline"
         : isa == Isa::kAvx2   ? "avx2"
                               : "avx512";
}

// Each instruction set of this processor.
class KernelsTest : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (KernelsFor(GetParam()) == nullptr) {
      GTEST_SKIP() << "this processor has no " << NameOf(GetParam());
    }
  }
  const Kernels& kernels() const { return *KernelsFor(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Isas, KernelsTest,
                         ::testing::Values(Isa::kBaseline, Isa::kAvx2,
                                           Isa::kAvx512),
                         [](const auto& info) { return NameOf(info.param); });

// The value of 16 bits by the definition of the formats: `exponent_bits` of
// exponent, the rest mantissa.
double Meaning(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  }
  if (exponent == 0) {
    return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  }
  return sign * std::ldexp(mantissa + (1 << mantissa_bits),
                           exponent - bias - mantissa_bits);
}

// The nearest finite number of the format, ties to even, found by bisection
// over all of them in order.
uint16_t Nearest(float value, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const auto infinity =
      static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) {
    return sign | infinity | (1 << (mantissa_bits - 1));
  }
  if (std::isinf(value)) return sign | infinity;
  const double magnitude = std::fabs(static_cast<double>(value));
  uint16_t low = 0;
  uint16_t high = infinity - 1;
  if (magnitude >= Meaning(high, exponent_bits)) return sign | high;
  while (high - low > 1) {
    const uint16_t middle = low + (high - low) / 2;
    (Meaning(middle, exponent_bits) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - Meaning(low, exponent_bits);
  const double above = Meaning(high, exponent_bits) - magnitude;
  const bool up = above < below || (above == below && (low & 1) != 0);
  return sign | (up ? high : low);
}

// Random bit patterns (all kinds of floats), and values on and next to the
// limits of the formats.
std::vector<float> HardFloats() {
  static const uint32_t seed = base::RandomSeed();
  std::mt19937 random(seed);
  std::vector<float> floats = {0.0f,       -0.0f,     kInfinity, -kInfinity,
                               kNan,       -kNan,     kMaxFloat, -kMaxFloat,
                               kTiny,      -kTiny,    65504.0f,  65519.996f,
                               65520.0f,   -65520.0f, 0x1p-24f,  0x1p-25f,
                               0x1.8p-25f, 0x1p-14f,  3.39e38f,  0x1.ffp127f};
  for (int i = 0; i < 20000; ++i) {
    floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  // Every float16 number, and the two floats next to each tie between
  // neighbours.
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const auto a = static_cast<float>(Meaning(bits, 5));
    const auto b = static_cast<float>(Meaning(bits + 1, 5));
    const float tie = (a + b) / 2;
    for (const float x :
         {a, tie, std::nextafter(tie, a), std::nextafter(tie, b)}) {
      floats.push_back(x);
      floats.push_back(-x);
    }
  }
  return floats;
}

TEST_P(KernelsTest, HalfPrecisionIsTheNearestNumberAndStaysFinite) {
  const std::vector<float> floats = HardFloats();
  std::vector<uint16_t> half(floats.size());
  std::vector<uint16_t> brain(floats.size());
  kernels().float16_from_float(floats.data(), floats.size(), half.data());
  kernels().bfloat16_from_float(floats.data(), floats.size(), brain.data());
  for (size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(half[i], Nearest(floats[i], 5)) << floats[i];
    ASSERT_EQ(brain[i], Nearest(floats[i], 8)) << floats[i];
  }
}

TEST_P(KernelsTest, EveryHalfPrecisionPatternIsReadExactly) {
  std::vector<uint16_t> patterns(0x10000);
  for (size_t i = 0; i < patterns.size(); ++i) {
    patterns[i] = static_cast<uint16_t>(i);
  }
  std::vector<float> half(patterns.size());
  std::vector<float> brain(patterns.size());
  kernels().float_from_float16(patterns.data(), patterns.size(), half.data());
  kernels().float_from_bfloat16(patterns.data(), patterns.size(), brain.data());
  const auto check = [](float found, uint16_t bits, int exponent_bits) {
    const double meaning = Meaning(bits, exponent_bits);
    EXPECT_EQ(std::signbit(found), (bits & 0x8000) != 0) << bits;
    if (std::isnan(meaning)) {
      EXPECT_TRUE(std::isnan(found)) << bits;
    } else {
      EXPECT_EQ(found, meaning) << bits;
    }
  };
  for (size_t i = 0; i < patterns.size(); ++i) {
    check(half[i], patterns[i], 5);
    check(brain[i], patterns[i], 8);
  }
}

TEST_P(KernelsTest, OddCountsWriteNothingBeyondThem) {
  for (size_t count = 0; count < 70; ++count) {
    const std::vector<float> floats(count + 1, 1.5f);
    std::vector<uint16_t> halves(count + 1, 0xabcd);
    std::vector<float> back(count + 1, -7);
    kernels().float16_from_float(floats.data(), count, halves.data());
    kernels().float_from_float16(halves.data(), count, back.data());
    EXPECT_EQ(halves[count], 0xabcd);
    EXPECT_EQ(back[count], -7);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(back[i], 1.5f);
    if (count == 0) continue;
    std::vector<uint8_t> row(count + 9, 0xee);
    kernels().int8_row_from_float(floats.data(), count, row.data());
    EXPECT_EQ(row.back(), 0xee);
  }
}

struct Row {
  std::vector<float> values;
  std::vector<uint8_t> coded;
  std::vector<float> back;
  float scale = 0;
};

Row RoundTrip(const Kernels& kernels, std::vector<float> values) {
  Row row;
  row.values = std::move(values);
  const size_t columns = row.values.size();
  row.coded.resize(columns + 8);
  row.back.resize(columns);
  kernels.int8_row_from_float(row.values.data(), columns, row.coded.data());
  kernels.float_from_int8_row(row.coded.data(), columns, row.back.data());
  std::memcpy(&row.scale, row.coded.data() + columns, sizeof(row.scale));
  return row;
}

// Finite elements differ by at most half a step plus the roundings of the two
// decoding operations; other elements are exact.
void ExpectClose(const Row& row) {
  float largest = 0;
  for (const float value : row.values) {
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  }
  const double bound = 0.5001 * std::fabs(static_cast<double>(row.scale)) +
                       2.0 * largest * std::numeric_limits<float>::epsilon() +
                       kTiny;
  for (size_t i = 0; i < row.values.size(); ++i) {
    if (std::isnan(row.values[i])) {
      EXPECT_TRUE(std::isnan(row.back[i])) << i;
    } else if (std::isinf(row.values[i])) {
      EXPECT_EQ(row.back[i], row.values[i]) << i;
    } else {
      EXPECT_NEAR(row.back[i], row.values[i], bound) << i;
      EXPECT_TRUE(std::isfinite(row.back[i])) << i;
    }
  }
}

TEST_P(KernelsTest, Int8RowsAreHalfAStepOffAtMost) {
  const uint32_t seed = base::RandomSeed();
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const size_t columns = 1 + random() % 200;
    // From subnormal to the largest numbers, far from zero or around it.
    const int exponent = static_cast<int>(random() % 270) - 143;
    std::uniform_real_distribution<float> distribution(-1, 1);
    const float shift = round % 3 == 0 ? 100.0f : 0.0f;
    std::vector<float> values(columns);
    for (float& value : values) {
      value = static_cast<float>(
          std::ldexp(distribution(random) + shift, exponent - 7));
    }
    const Row row = RoundTrip(kernels(), values);
    ExpectClose(row);
    // A step is a 255th of the range in ordinary rows.
    const auto [min, max] = std::minmax_element(values.begin(), values.end());
    if (row.scale > 0) {
      EXPECT_NEAR(row.scale, (static_cast<double>(*max) - *min) / 255,
                  row.scale * 1e-5 + kTiny);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(KernelsTest, RowsOfEqualElementsAreExact) {
  for (const float value :
       {0.0f, -0.0f, 0.1f, -3e38f, kMaxFloat, kTiny, -kTiny, 1.0f}) {
    for (const size_t columns : {1, 2, 17, 64}) {
      const Row row = RoundTrip(kernels(), std::vector<float>(columns, value));
      for (const float back : row.back) {
        EXPECT_EQ(std::bit_cast<uint32_t>(back),
                  std::bit_cast<uint32_t>(value));
      }
    }
  }
}

TEST_P(KernelsTest, WhatIsNotFiniteStaysAndHidesNothing) {
  Row row = RoundTrip(kernels(), {1, kNan, 2, kInfinity, 3, -kInfinity, -4});
  ExpectClose(row);
  EXPECT_LT(row.scale, 0);
  for (const std::vector<float>& values : {std::vector<float>{kNan},
                                           {kInfinity},
                                           {-kInfinity, kInfinity},
                                           {kNan, 5},
                                           {kInfinity, -0.0f},
                                           {kNan, kNan, -kNan}}) {
    ExpectClose(RoundTrip(kernels(), values));
  }
}

TEST_P(KernelsTest, ExtremeRangesStayFinite) {
  ExpectClose(RoundTrip(kernels(), {-kMaxFloat, kMaxFloat, 0, 1}));
  ExpectClose(RoundTrip(kernels(), {-3e38f, 3e38f, 2.9e38f}));
  ExpectClose(RoundTrip(kernels(), {0, kTiny, 2 * kTiny, -5 * kTiny}));
  ExpectClose(RoundTrip(kernels(), {-0.0f, 0.0f, -0.0f}));
  ExpectClose(RoundTrip(kernels(), {1, 1 + 1e-7f, 1}));
}

TEST_P(KernelsTest, NoBytesOfARowAreBad) {
  const uint32_t seed = base::RandomSeed();
  std::mt19937 random(seed);
  for (int round = 0; round < 5000; ++round) {
    std::vector<uint8_t> row(40);
    for (uint8_t& byte : row) byte = static_cast<uint8_t>(random());
    // NaN, infinity or zero as scale or offset.
    const float special[] = {kNan, -kNan, kInfinity, -kInfinity, -0.0f};
    if (round % 2 == 0) std::memcpy(&row[32], &special[random() % 5], 4);
    if (round % 3 == 0) std::memcpy(&row[36], &special[random() % 5], 4);
    std::vector<float> values(33, 42);
    kernels().float_from_int8_row(row.data(), 32, values.data());
    EXPECT_EQ(values[32], 42);
  }
}

TEST_P(KernelsTest, EveryInstructionSetGivesTheSameBits) {
  const Kernels& baseline = *KernelsFor(Isa::kBaseline);
  const std::vector<float> floats = HardFloats();
  for (size_t begin = 0; begin + 67 <= floats.size(); begin += 61) {
    std::vector<uint8_t> a(67 + 8);
    std::vector<uint8_t> b(67 + 8);
    baseline.int8_row_from_float(&floats[begin], 67, a.data());
    kernels().int8_row_from_float(&floats[begin], 67, b.data());
    ASSERT_EQ(a, b) << begin;
    // Ordinary rows as well, since the patterns above mostly have extreme
    // ranges.
    std::vector<float> mild(67);
    for (size_t i = 0; i < 67; ++i) {
      mild[i] = std::sin(static_cast<float>(begin + i));
    }
    baseline.int8_row_from_float(mild.data(), 67, a.data());
    kernels().int8_row_from_float(mild.data(), 67, b.data());
    ASSERT_EQ(a, b) << begin;
    std::vector<float> x(67);
    std::vector<float> y(67);
    baseline.float_from_int8_row(a.data(), 67, x.data());
    kernels().float_from_int8_row(a.data(), 67, y.data());
    ASSERT_EQ(std::memcmp(x.data(), y.data(), 67 * sizeof(float)), 0) << begin;
  }
  std::vector<uint16_t> patterns(0x10000);
  for (size_t i = 0; i < patterns.size(); ++i) {
    patterns[i] = static_cast<uint16_t>(i);
  }
  std::vector<uint32_t> x(patterns.size());
  std::vector<uint32_t> y(patterns.size());
  baseline.float_from_float16(patterns.data(), patterns.size(),
                              reinterpret_cast<float*>(x.data()));
  kernels().float_from_float16(patterns.data(), patterns.size(),
                               reinterpret_cast<float*>(y.data()));
  EXPECT_EQ(x, y);
}

TEST_P(KernelsTest, NarrowingTellsWhatDoesNotFit) {
  const std::vector<int64_t> fits = {0, -1, INT32_MAX, INT32_MIN, 5};
  std::vector<int32_t> narrow(fits.size());
  ASSERT_TRUE(
      kernels().int32_from_int64(fits.data(), fits.size(), narrow.data()));
  std::vector<int64_t> wide(fits.size());
  kernels().int64_from_int32(narrow.data(), narrow.size(), wide.data());
  EXPECT_EQ(wide, fits);
  for (const int64_t value : {int64_t{INT32_MAX} + 1, int64_t{INT32_MIN} - 1,
                              INT64_MAX, INT64_MIN, int64_t{1} << 32}) {
    for (size_t place = 0; place < 40; ++place) {
      std::vector<int64_t> values(40, 7);
      values[place] = value;
      std::vector<int32_t> to(40);
      EXPECT_FALSE(kernels().int32_from_int64(values.data(), 40, to.data()))
          << value << " at " << place;
    }
  }
}

}  // namespace
}  // namespace refract::runtime::wire
