#include "runtime/cuda/calls/scalar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "runtime/cuda/calls/index_math.h"
#include "tests/base/random_seed.h"

namespace refract::runtime::cuda {
namespace {

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Floats of every exponent, with mantissas around the ties of both 16-bit
// types.
template <typename Check>
void ForManyFloats(Check check) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low :
         {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u,
          0x8001u, 0xFFFFu, static_cast<uint32_t>(random() & 0xFFFFu)}) {
      check(FloatOf((high << 16) | low));
    }
  }
}

TEST(HalfTest, EveryHalfIsReadAsTheCompilerDoes) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    _Float16 native;
    std::memcpy(&native, &half, sizeof(native));
    const auto want = static_cast<float>(native);
    const float got = ToFloat(Half{half});
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(BitsOf(got), BitsOf(want)) << bits;
    }
  }
}

TEST(HalfTest, FloatsRoundAsTheCompilerDoes) {
  ForManyFloats([](float value) {
    Half got;
    FromFloat(value, got);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(ToFloat(got)));
      return;
    }
    const auto native = static_cast<_Float16>(value);
    uint16_t want;
    std::memcpy(&want, &native, sizeof(want));
    ASSERT_EQ(got.bits, want) << value;
  });
}

TEST(BFloat16Test, FloatsRoundToTheNearestEven) {
  ForManyFloats([](float value) {
    BFloat16 got;
    FromFloat(value, got);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(ToFloat(got)));
      return;
    }
    if (std::isinf(value)) {
      ASSERT_EQ(ToFloat(got), value);
      return;
    }
    // The two neighbours, and which of them is nearer.
    const uint32_t bits = BitsOf(value);
    const float below = FloatOf(bits & 0xFFFF0000u);
    const float above = FloatOf((bits & 0xFFFF0000u) + 0x10000u);
    const uint32_t rest = bits & 0xFFFFu;
    float want = rest < 0x8000u ? below : above;
    if (rest == 0x8000u) {
      want = (BitsOf(below) >> 16) % 2 == 0 ? below : above;
    }
    ASSERT_EQ(BitsOf(ToFloat(got)), BitsOf(want)) << value;
  });
}

TEST(IndexMathTest, PairsRunRowByRowThroughTheTriangle) {
  for (bool diagonal : {false, true}) {
    int index = 0;
    for (int i = 0; i < 2048; ++i) {
      for (int j = 0; j < i + (diagonal ? 1 : 0); ++j, ++index) {
        int row = -1, col = -1;
        PairOf(index, diagonal, &row, &col);
        ASSERT_EQ(row, i) << index;
        ASSERT_EQ(col, j) << index;
      }
    }
    EXPECT_EQ(NumPairs(2048, diagonal), index);
  }
}

TEST(IndexMathTest, RowsArePaddedTo16Bytes) {
  EXPECT_EQ(PaddedLd(479, DType::kFloat16), 480);
  EXPECT_EQ(PaddedLd(13, DType::kBFloat16), 16);
  EXPECT_EQ(PaddedLd(13, DType::kFloat32), 16);
  EXPECT_EQ(PaddedLd(128, DType::kFloat32), 128);
  EXPECT_EQ(PaddedLd(1, DType::kFloat16), 8);
}

}  // namespace
}  // namespace refract::runtime::cuda
