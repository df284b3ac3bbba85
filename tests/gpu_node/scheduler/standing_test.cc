#include "gpu_node/scheduler/standing.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::gpu_node {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

constexpr absl::Time kStart = absl::UnixEpoch();
absl::Time Ms(double ms) { return kStart + absl::Milliseconds(ms); }

TEST(StandingTest, NominalRatesAreSharesAmongThoseThatAsk) {
  const std::vector<double> shares = {1, 3, 4};
  EXPECT_THAT(NominalRates(shares, {{true}, {true}, {true}}, 4),
              ElementsAre(0.5, 1.5, 2));
  // One that does not ask is counted for its own rate only.
  EXPECT_THAT(NominalRates(shares, {{true}, {true}, {false}}, 4),
              ElementsAre(1, 3, 2));
  EXPECT_THAT(NominalRates(shares, {{false}, {false}, {false}}, 4),
              ElementsAre(4, 4, 4));
}

TEST(StandingTest, WhatIsLeftIsDividedAmongTheOthers) {
  // By hand: half of what the third leaves, all that the others leave, and two
  // thirds of what the first leaves.
  EXPECT_THAT(MaxMinRates({1, 1, 2}, {{true, 0.2}, {true, 9}, {true, 0.1}}, 4),
              Pointwise(DoubleNear(1e-12), {3.9 / 2, 3.7, 3.8 * 2 / 3}));
}

// Water that rises in tanks as wide as shares, each closed at its demand.
double Filled(const std::vector<double>& shares,
              const std::vector<Demand>& demands, size_t open,
              double instances) {
  double low = 0;
  double high = 1e6;
  for (int i = 0; i < 200; ++i) {
    const double level = (low + high) / 2;
    double used = 0;
    for (size_t j = 0; j < shares.size(); ++j) {
      const double share = level * shares[j];
      used += j == open ? share : std::min(share, demands[j].instances);
    }
    (used <= instances ? low : high) = level;
  }
  return low * shares[open];
}

TEST(StandingTest, MaxMinRatesAreThoseOfWaterThatRises) {
  const uint32_t seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> share(0.1, 5);
  std::uniform_real_distribution<double> demand(0, 3);
  for (int round = 0; round < 300; ++round) {
    const size_t models = 1 + random() % 8;
    const double instances = 1 + static_cast<double>(random() % 6);
    std::vector<double> shares;
    std::vector<Demand> demands;
    for (size_t i = 0; i < models; ++i) {
      shares.push_back(share(random));
      demands.push_back({true, random() % 4 == 0 ? 0 : demand(random)});
    }
    const std::vector<double> rates = MaxMinRates(shares, demands, instances);
    for (size_t i = 0; i < models; ++i) {
      EXPECT_NEAR(rates[i], Filled(shares, demands, i, instances), 1e-9);
    }
  }
}

class TwoModels : public testing::Test {
 protected:
  TwoModels() {
    standings_.Advance(kStart);
    standings_.SetDemands({{true, 9}, {true, 9}}, 4);  // two instances each
  }
  Standings standings_{{1, 1}};
};

TEST_F(TwoModels, BelowItsShareIsWhoHasAskedForLessForAWhile) {
  EXPECT_EQ(standings_.Of(0), Standing::kOver);
  standings_.Advance(Ms(24));
  EXPECT_EQ(standings_.Of(0), Standing::kOver);
  standings_.Advance(Ms(26));  // 52 ms of two instances
  EXPECT_EQ(standings_.Of(0), Standing::kModest);
  standings_.Use(0, absl::Milliseconds(51));
  EXPECT_EQ(standings_.Of(0), Standing::kModest);
  standings_.Use(0, absl::Milliseconds(2));
  EXPECT_EQ(standings_.Of(0), Standing::kOver);
  EXPECT_EQ(standings_.Of(1), Standing::kModest);
}

TEST_F(TwoModels, ABurstTakesWhatWasSavedUpAndNoMore) {
  standings_.Advance(Ms(1e6));
  // All four instances for one second: half of that is due to it meanwhile.
  for (int ms = 0; ms < 990; ++ms) {
    standings_.Use(0, absl::Milliseconds(4));
    standings_.Advance(Ms(1e6 + ms));
  }
  EXPECT_EQ(standings_.Of(0), Standing::kModest);
  for (int ms = 990; ms < 1010; ++ms) {
    standings_.Use(0, absl::Milliseconds(4));
    standings_.Advance(Ms(1e6 + ms));
  }
  EXPECT_EQ(standings_.Of(0), Standing::kOver);
}

TEST_F(TwoModels, WhoIsHeldBackAsksForMoreThanItsShareAllTheSame) {
  // It executes on one of four instances, where two are due to it.
  for (int ms = 0; ms < 5000; ++ms) {
    standings_.SetWaiting(0, true, false);
    standings_.Use(0, absl::Milliseconds(1));
    standings_.Advance(Ms(ms));
    ASSERT_EQ(standings_.Of(0), Standing::kOver) << ms;
  }
  // Until it asks for less.
  standings_.SetWaiting(0, false, false);
  standings_.Advance(Ms(5030));
  EXPECT_EQ(standings_.Of(0), Standing::kModest);
}

TEST_F(TwoModels, ShortWaitsAreNoSignOfWantingMore) {
  // It uses one instance, waits half of the time, and gets there.
  for (int ms = 0; ms < 60; ++ms) {
    standings_.SetWaiting(0, ms % 20 < 10, false);
    standings_.Use(0, absl::Milliseconds(1));
    standings_.Advance(Ms(ms));
  }
  EXPECT_EQ(standings_.Of(0), Standing::kModest);
}

TEST_F(TwoModels, AnOwnLimitOfInstancesIsNoMerit) {
  standings_.Advance(Ms(1e6));
  EXPECT_EQ(standings_.Of(0), Standing::kModest);
  // Overloaded, on the one instance that it may have: what it has saved up is
  // used up although two are due to it.
  for (int ms = 0; ms < 3000; ++ms) {
    standings_.SetWaiting(0, true, true);
    standings_.Use(0, absl::Milliseconds(1));
    standings_.Advance(Ms(1e6 + ms));
  }
  EXPECT_EQ(standings_.Of(0), Standing::kOver);
}

TEST(StandingTest, LongExecutionsOneByOneAreOwedAfterwards) {
  // On one instance of which half is due to each: one client, a second's
  // execution after the other, and nothing ever waits.
  Standings standings({1, 1});
  standings.Advance(kStart);
  standings.SetDemands({{true, 0.98}, {true, 0.1}}, 1);
  double ms = 0;
  int modest = 0;
  for (int round = 0; round < 100; ++round) {
    if (standings.Of(0) == Standing::kModest) ++modest;
    standings.Use(0, absl::Seconds(1));
    standings.Advance(Ms(ms += 1020));
  }
  EXPECT_LT(modest, 5);
  // At two fifths of the device it is within its share.
  for (int round = 0; round < 10; ++round) {
    standings.Use(0, absl::Seconds(1));
    standings.Advance(Ms(ms += 2500));
  }
  EXPECT_EQ(standings.Of(0), Standing::kModest);
}

TEST(StandingTest, WhatOthersLeaveMayBeUsedButNotAtTheCostOfTheModest) {
  Standings standings({1, 1, 1});
  standings.Advance(kStart);
  // On one instance: the first uses 0.6, the others little or nothing.
  standings.SetDemands({{true, 0.6}, {true, 0.1}, {true, 0}}, 1);
  for (int ms = 0; ms < 2000; ++ms) {
    if (ms % 10 < 6) standings.Use(0, absl::Milliseconds(1));
    if (ms % 10 == 6) standings.Use(1, absl::Milliseconds(1));
    standings.Advance(Ms(ms));
  }
  EXPECT_EQ(standings.Of(0), Standing::kWithin);
  EXPECT_EQ(standings.Of(1), Standing::kModest);
  EXPECT_EQ(standings.Of(2), Standing::kModest);
}

}  // namespace
}  // namespace refract::gpu_node
