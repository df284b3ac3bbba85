#include "runtime/cpu/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

namespace refract::runtime::cpu {
namespace {

TEST(HalfTest, EveryFloat16SurvivesTheWayToFloatAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 half = {static_cast<uint16_t>(bits)};
    const float wide = ToFloat(half);
    // The definition: (-1)^s · 2^(e-15) · 1.m, and 2^-14 · 0.m below.
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const int mantissa = static_cast<int>(bits & 1023);
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(wide), mantissa != 0);
      ASSERT_EQ(std::isinf(wide), mantissa == 0);
      if (mantissa != 0) continue;
    } else {
      const double expected = exponent == 0
                                  ? std::ldexp(mantissa, -24)
                                  : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(wide, (bits & 0x8000) != 0 ? -expected : expected);
    }
    Float16 back;
    FromFloat(wide, back);
    ASSERT_EQ(back.bits, half.bits);
  }
}

TEST(HalfTest, RoundsToTheNearestEven) {
  const auto float16 = [](float value) {
    Float16 half;
    FromFloat(value, half);
    return half.bits;
  };
  EXPECT_EQ(float16(1.0f + 0x1p-11f), 0x3c00);      // tie: down to even
  EXPECT_EQ(float16(1.0f + 3 * 0x1p-11f), 0x3c02);  // tie: up to even
  EXPECT_EQ(float16(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);
  EXPECT_EQ(float16(65519.0f), 0x7bff);  // largest that stays
  EXPECT_EQ(float16(65520.0f), 0x7c00);
  EXPECT_EQ(float16(0x1p-25f), 0x0000);  // half the smallest
  EXPECT_EQ(float16(0x1.8p-25f), 0x0001);
  EXPECT_EQ(float16(-0.0f), 0x8000);
  const auto bfloat16 = [](float value) {
    BFloat16 half;
    FromFloat(value, half);
    return half.bits;
  };
  EXPECT_EQ(bfloat16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(bfloat16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_TRUE(std::isnan(ToFloat(BFloat16{bfloat16(std::nanf(""))})));
}

}  // namespace
}  // namespace refract::runtime::cpu
