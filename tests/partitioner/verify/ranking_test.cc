#include "partitioner/verify/ranking.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::partitioner {
namespace {

struct Case {
  std::vector<double> a;
  std::vector<double> b;
  double expected;
};

TEST(RankCorrelationTest, IsSpearmans) {
  // The fourth is the textbook's 1 - 6·Σd²/(n(n²-1)) with d = 0, 1, -1, 0, 0;
  // the fifth has ranks 0, 1.5, 1.5, 3 and 0, 2, 1, 3: 4.5 / sqrt(4.5·5).
  const std::vector<Case> cases = {
      {{1, 2, 3}, {10, 200, 3000}, 1},
      {{1, 2, 3}, {3, 2, 1}, -1},
      {{3, 1, 2}, {9, 7, 8}, 1},
      {{1, 2, 3, 4, 5}, {1, 3, 2, 4, 5}, 0.9},
      {{1, 2, 2, 3}, {1, 3, 2, 4}, 0.9486832980505138},
  };
  for (const Case& c : cases) {
    const auto found = RankCorrelation(c.a, c.b);
    ASSERT_TRUE(found.has_value());
    EXPECT_NEAR(*found, c.expected, 1e-12);
  }
}

TEST(RankCorrelationTest, NeedsSomethingToRank) {
  EXPECT_FALSE(RankCorrelation({}, {}).has_value());
  EXPECT_FALSE(RankCorrelation({1.0}, {2.0}).has_value());
  EXPECT_FALSE(RankCorrelation({1.0, 1.0}, {2.0, 3.0}).has_value());
}

TEST(RelativeTimesTest, DriftOfWholeRoundsCancels) {
  // The machine is thrice as slow in the fourth round. Geometric mean of 1, 2
  // and 4: 2.
  const std::vector<double> times =
      RelativeTimes(std::vector<std::vector<double>>{
          {1, 1, 1, 3}, {2, 2, 2, 6}, {4, 4, 4, 12}});
  ASSERT_EQ(times.size(), 3u);
  EXPECT_NEAR(times[0], 0.5, 1e-12);
  EXPECT_NEAR(times[1], 1, 1e-12);
  EXPECT_NEAR(times[2], 2, 1e-12);
}

TEST(RelativeTimesTest, OrderIsSeenThroughNoiseThatAllCutsShare) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> drift(1, 2);
  // Cuts 1 % apart in rounds that differ by a factor of up to two, each cut
  // with 0.1 % of its own.
  std::uniform_real_distribution<double> own(1, 1.001);
  std::vector<std::vector<double>> turns(5);
  for (int round = 0; round < 15; ++round) {
    const double machine = drift(random);
    for (size_t c = 0; c < turns.size(); ++c) {
      turns[c].push_back(machine * own(random) *
                         (1 + 0.01 * static_cast<double>(c)));
    }
  }
  const std::vector<double> times = RelativeTimes(turns);
  EXPECT_DOUBLE_EQ(
      *RankCorrelation(std::vector<double>{10, 20, 30, 40, 50}, times), 1);
  EXPECT_DOUBLE_EQ(
      *RankCorrelation(std::vector<double>{50, 40, 30, 20, 10}, times), -1);
  for (size_t c = 0; c < turns.size(); ++c) {
    EXPECT_NEAR(times[c] / times[0], 1 + 0.01 * static_cast<double>(c), 2e-3);
  }
}

TEST(RelativeTimesTest, NothingMeasuredIsNothingRanked) {
  EXPECT_TRUE(RelativeTimes({}).empty());
}

}  // namespace
}  // namespace refract::partitioner
