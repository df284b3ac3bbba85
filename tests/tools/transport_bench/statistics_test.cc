#include "tools/transport_bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace refract::transport_bench {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(QuantileTest, InterpolatesBetweenRanks) {
  const std::vector<double> values = {1, 2, 4, 8};
  EXPECT_EQ(Quantile(values, 0), 1);
  EXPECT_EQ(Quantile(values, 1), 8);
  EXPECT_EQ(Quantile(values, 0.5), 3);
  EXPECT_DOUBLE_EQ(Quantile(values, 0.25), 1.75);
  EXPECT_EQ(Quantile({{5.0}}, 0.99), 5);
  EXPECT_TRUE(std::isnan(Quantile({}, 0.5)));
}

// Against counting: at least a share q of the values is not above the quantile,
// and at least 1 - q not below.
TEST(QuantileTest, SplitsRandomValuesInProportion) {
  const unsigned seed = std::random_device()();
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

TEST(QuartilesTest, LeaveOutAndCountWhatIsNoTime) {
  const Quartiles q = QuartilesOf({{3.0, kNaN, 1.0, kInf, 2.0, 0.0, -1.0}});
  EXPECT_EQ(q.median, 2);
  EXPECT_EQ(q.q25, 1.5);
  EXPECT_EQ(q.q75, 2.5);
  EXPECT_EQ(q.used, 3);
  EXPECT_EQ(q.discarded, 4);
}

TEST(QuartilesTest, OfNothingAreNotANumber) {
  const Quartiles q = QuartilesOf({{kNaN, kInf}});
  EXPECT_TRUE(std::isnan(q.median));
  EXPECT_TRUE(std::isnan(q.q25));
  EXPECT_TRUE(std::isnan(q.q75));
  EXPECT_EQ(q.used, 0);
  EXPECT_EQ(q.discarded, 2);
}

// Drift that hits both halves of a round is not in the ratio; dividing the
// medians would show it.
TEST(PairedRatiosTest, RemoveWhatBothHalvesOfARoundShare) {
  const Quartiles q = PairedRatios({{2.0, 20.0, 4.0}}, {{1.0, 10.0, 2.0}});
  EXPECT_EQ(q.median, 2);
  EXPECT_EQ(q.q25, 2);
  EXPECT_EQ(q.q75, 2);
}

TEST(PairedRatiosTest, DiscardAPairWithOneBadHalf) {
  const Quartiles q =
      PairedRatios({{2.0, kInf, 6.0, 8.0, 5.0}}, {{1.0, 1.0, 2.0, 0.0, kNaN}});
  EXPECT_EQ(q.used, 2);
  EXPECT_EQ(q.discarded, 3);
  EXPECT_EQ(q.median, 2.5);
}

}  // namespace
}  // namespace refract::transport_bench
