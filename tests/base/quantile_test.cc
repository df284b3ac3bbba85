#include "base/quantile.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::base {
namespace {

TEST(QuantileTest, InterpolatesBetweenRanks) {
  const std::vector<double> values = {1, 2, 4, 8};
  EXPECT_EQ(Quantile(values, 0), 1);
  EXPECT_EQ(Quantile(values, 1), 8);
  EXPECT_EQ(Quantile(values, 0.5), 3);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.25), 1.75);
  EXPECT_EQ(Quantile({{5.0}}, 0.99), 5);
  EXPECT_TRUE(std::isnan(Quantile({}, 0.5)));
}

// Oracle by counting: at least a share q of the values is ≤ the quantile, and
// at least 1 - q is ≥ it.
TEST(QuantileTest, SplitsRandomValuesInProportion) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> value(0, 100);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> values(1 + random() % 40);
    for (double& v : values) v = value(random);
    std::sort(values.begin(), values.end());
    for (const double q : {0.25, 0.5, 0.75, 0.99}) {
      const double cut = Quantile(values, q);
      const auto count = static_cast<double>(values.size());
      const auto below = static_cast<double>(
          std::count_if(values.begin(), values.end(),
                        [&](double v) { return v < cut - 1e-9; }));
      const auto above = static_cast<double>(
          std::count_if(values.begin(), values.end(),
                        [&](double v) { return v > cut + 1e-9; }));
      EXPECT_LE(below, q * (count - 1) + 1);
      EXPECT_LE(above, (1 - q) * (count - 1) + 1);
    }
  }
}

TEST(QuartilesTest, InterpolateBetweenNeighbours) {
  // NumPy: percentile([1, 2, 3, 4], [25, 50, 75]) = 1.75, 2.5, 3.25.
  const Quartiles four = QuartilesOf({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(four.least, 1);
  EXPECT_DOUBLE_EQ(four.q1, 1.75);
  EXPECT_DOUBLE_EQ(four.median, 2.5);
  EXPECT_DOUBLE_EQ(four.q3, 3.25);
  const Quartiles five = QuartilesOf({5, 50, 2, 1, 3});
  EXPECT_DOUBLE_EQ(five.q1, 2);
  EXPECT_DOUBLE_EQ(five.median, 3);
  EXPECT_DOUBLE_EQ(five.q3, 5);
  EXPECT_DOUBLE_EQ(QuartilesOf({7}).q3, 7);
  EXPECT_DOUBLE_EQ(QuartilesOf({}).median, 0);
}

}  // namespace
}  // namespace refract::base
