#include "tools/transport_bench/statistics.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace refract::transport_bench {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

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
