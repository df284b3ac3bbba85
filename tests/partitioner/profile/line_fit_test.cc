#include "partitioner/profile/line_fit.h"

#include "gtest/gtest.h"

namespace refract::partitioner {
namespace {

TEST(FitLineTest, GoesThroughPointsOfALine) {
  const Line line =
      FitLine({{1, 5e-6}, {16, 35e-6}, {64, 131e-6}, {256, 515e-6}});
  EXPECT_NEAR(line.fixed_s, 3e-6, 1e-14);
  EXPECT_NEAR(line.item_s, 2e-6, 1e-14);
  EXPECT_NEAR(line.At(100), 203e-6, 1e-12);
}

// Minimises Σ ((a + b·B − t) / t)² over (1, 1), (2, 2), (3, 6): with w = 1/t²
// the normal equations are 23/18·a + 19/12·b = 5/3 and 19/12·a + 9/4·b = 5/2,
// hence a = −30/53. Of the two borders a = 0, b = 10/9 leaves 18/81, and b = 0,
// a = 30/23 leaves more.
TEST(FitLineTest, CountsRelativeErrorsAndHasNoNegativePart) {
  const Line line = FitLine({{1, 1}, {2, 2}, {3, 6}});
  EXPECT_DOUBLE_EQ(line.fixed_s, 0);
  EXPECT_NEAR(line.item_s, 10.0 / 9, 1e-12);
}

// (1, 1), (2, 4), (3, 2): 21/16·a + 15/8·b = 7/4 and 15/8·a + 7/2·b = 3.
TEST(FitLineTest, MatchesTheNormalEquationsByHand) {
  const Line line = FitLine({{1, 1}, {2, 4}, {3, 2}});
  EXPECT_NEAR(line.fixed_s, 32.0 / 69, 1e-12);
  EXPECT_NEAR(line.item_s, 14.0 / 23, 1e-12);
}

// Falling times: b = 0 and a = Σ 1/t ÷ Σ 1/t² = 1.5 ÷ 1.25.
TEST(FitLineTest, FallingTimesAreFlat) {
  const Line line = FitLine({{1, 2}, {100, 1}});
  EXPECT_NEAR(line.fixed_s, 1.2, 1e-12);
  EXPECT_DOUBLE_EQ(line.item_s, 0);
}

TEST(FitLineTest, OneBatchSizeIsFixed) {
  const Line line = FitLine({{16, 3e-6}});
  EXPECT_DOUBLE_EQ(line.fixed_s, 3e-6);
  EXPECT_DOUBLE_EQ(line.item_s, 0);
  EXPECT_DOUBLE_EQ(FitLine({}).At(5), 0);
}

TEST(FitLineTest, TimesOfZeroAreFitted) {
  const Line zero = FitLine({{1, 0}, {16, 0}, {256, 0}});
  EXPECT_DOUBLE_EQ(zero.At(256), 0);
  // A zero counts as an error of this many nanoseconds.
  const Line some = FitLine({{1, 0}, {16, 0}, {256, 1e-6}});
  EXPECT_GE(some.fixed_s, 0);
  EXPECT_GE(some.item_s, 0);
  EXPECT_LT(some.At(1), 1e-7);
}

}  // namespace
}  // namespace refract::partitioner
