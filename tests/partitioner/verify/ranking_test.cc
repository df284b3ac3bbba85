#include "partitioner/verify/ranking.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::partitioner {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

TEST(RankingTest, DriftOfWholeRoundsIsTakenOut) {
  // The machine is thrice as slow in the fourth round; the first cut missed
  // that round's worst moment, so its median alone would be too small.
  const Ranking ranking =
      RankCuts(std::vector<double>{1, 2, 3},
               std::vector<std::vector<double>>{
                   {1, 1, 1, 3}, {2, 2, 2, 6}, {4, 4, 4, 12}});
  EXPECT_THAT(ranking.steady_s,
              ElementsAre(DoubleNear(1, 1e-6), DoubleNear(2, 1e-6),
                          DoubleNear(4, 1e-6)));
  EXPECT_DOUBLE_EQ(*ranking.rank_correlation, 1);
  EXPECT_EQ(ranking.pairs, 3);
  // Four rounds: heads four times is chance once in eight.
  EXPECT_EQ(ranking.told_apart, 0);
}

TEST(RankingTest, OrderIsSeenThroughNoiseThatAllCutsShare) {
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
  const Ranking ranking =
      RankCuts(std::vector<double>{10, 20, 30, 40, 50}, turns);
  EXPECT_DOUBLE_EQ(*ranking.rank_correlation, 1);
  EXPECT_EQ(ranking.told_apart, 10);
  EXPECT_EQ(ranking.in_order, 10);
  for (size_t c = 0; c < turns.size(); ++c) {
    EXPECT_NEAR(ranking.steady_s[c] / ranking.steady_s[0],
                1 + 0.01 * static_cast<double>(c), 2e-3);
  }
  // The same against a prediction that has it backwards.
  const Ranking backwards =
      RankCuts(std::vector<double>{50, 40, 30, 20, 10}, turns);
  EXPECT_DOUBLE_EQ(*backwards.rank_correlation, -1);
  EXPECT_EQ(backwards.told_apart, 10);
  EXPECT_EQ(backwards.in_order, 0);
}

TEST(RankingTest, CutsThatAreAlikeAreNotToldApart) {
  // Now one is quicker, now the other.
  const Ranking ranking = RankCuts(
      std::vector<double>{1, 2},
      std::vector<std::vector<double>>{{1, 2, 1, 2, 1, 2, 1, 2, 1, 2},
                                       {2, 1, 2, 1, 2, 1, 2, 1, 2, 1}});
  EXPECT_EQ(ranking.pairs, 1);
  EXPECT_EQ(ranking.told_apart, 0);
  // Equal times are no evidence either.
  EXPECT_EQ(
      RankCuts(std::vector<double>{1, 2},
               std::vector<std::vector<double>>(2, std::vector<double>(20, 1)))
          .told_apart,
      0);
}

TEST(RankingTest, NothingMeasuredIsNothingRanked) {
  const Ranking ranking = RankCuts({}, {});
  EXPECT_FALSE(ranking.rank_correlation);
  EXPECT_EQ(ranking.pairs, 0);
}

}  // namespace
}  // namespace refract::partitioner
