#include "tools/loadgen/ids.h"

#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace refract::loadgen {
namespace {

// The distribution against its definition, by Pearson's chi-squared.
TEST(IdSamplerTest, ZipfRanksHaveTheirWeights) {
  constexpr int kRows = 50, kDraws = 200'000;
  for (double exponent : {0.5, 0.9, 1.0, 1.2, 3.0}) {
    SCOPED_TRACE(exponent);
    double total = 0;
    for (int k = 1; k <= kRows; ++k) total += std::pow(k, -exponent);
    Random random(11, "ids");
    const IdSampler sampler({exponent}, kRows);
    std::vector<int> counts(kRows + 1);
    for (int i = 0; i < kDraws; ++i) {
      const int64_t rank = sampler.DrawRank(random);
      ASSERT_GE(rank, 1);
      ASSERT_LE(rank, kRows);
      ++counts[rank];
    }
    double chi_squared = 0;
    int cells = 0;
    for (int k = 1; k <= kRows; ++k) {
      const double expected = kDraws * std::pow(k, -exponent) / total;
      if (expected < 5) continue;
      ++cells;
      chi_squared += (counts[k] - expected) * (counts[k] - expected) / expected;
    }
    // Mean n - 1, variance 2 (n - 1): five deviations above.
    EXPECT_LT(chi_squared, cells - 1 + 5 * std::sqrt(2.0 * (cells - 1)));
  }
}

TEST(IdSamplerTest, UniformReachesEveryRow) {
  Random random(3, "ids");
  const IdSampler sampler({}, 7);
  std::vector<int> counts(7);
  for (int i = 0; i < 70'000; ++i) ++counts[sampler.Draw(random)];
  for (int count : counts) EXPECT_NEAR(count, 10'000, 5 * 93);
}

TEST(IdSamplerTest, StaysInTablesOfAnySize) {
  Random random(4, "ids");
  for (int64_t rows : {1LL, 2LL, 3LL, 40'000'000LL, 5'000'000'000LL}) {
    for (double exponent : {0.0, 0.9, 1.0, 1.3}) {
      const IdSampler sampler({exponent}, rows);
      for (int i = 0; i < 2'000; ++i) {
        const int64_t id = sampler.Draw(random);
        ASSERT_GE(id, 0);
        ASSERT_LT(id, rows);
      }
    }
  }
}

// The hottest rows are apart, and no two ranks share a row.
TEST(IdSamplerTest, PopularIdsAreSpreadOverTheTable) {
  constexpr int64_t kRows = 1'000'000;
  Random random(6, "ids");
  const IdSampler sampler({1.2}, kRows);
  std::set<int64_t> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(sampler.Draw(random));
  int neighbours = 0;
  for (auto it = ids.begin(); std::next(it) != ids.end(); ++it) {
    neighbours += *std::next(it) - *it == 1;
  }
  EXPECT_LT(neighbours, 5);
  EXPECT_GT(*ids.rbegin(), kRows / 2);
}

TEST(ParseIdSkewTest, TakesTwoForms) {
  EXPECT_EQ(ParseIdSkew("uniform")->exponent, 0);
  EXPECT_EQ(ParseIdSkew("zipf:0.9")->exponent, 0.9);
  for (const char* bad : {"", "zipf", "zipf:", "zipf:0", "zipf:-1", "zipf:11",
                          "zipf:nan", "zipf:1x"}) {
    EXPECT_EQ(ParseIdSkew(bad).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

// The shares of peers that the published histogram gives: its 1.8 % most used
// rows take 52 % of the look-ups, the 63.5 % least used 8.9 %.
TEST(IdSamplerTest, EmbeddingTracesHaveTheirPublishedShares) {
  constexpr int64_t kRows = 1'000'000;
  constexpr int kDraws = 200'000;
  const auto skew = ParseIdSkew("meta");
  ASSERT_TRUE(skew.ok()) << skew.status();
  const IdSampler sampler(*skew, kRows);
  Random random(3, "ids");
  int most_used = 0, least_used = 0, hottest = 0;
  std::set<int64_t> ids;
  for (int i = 0; i < kDraws; ++i) {
    const int64_t rank = sampler.DrawRank(random);
    ASSERT_GE(rank, 1);
    ASSERT_LE(rank, kRows);
    most_used += rank <= 0.018 * kRows;
    least_used += rank > (1 - 0.635) * kRows;
    hottest += rank <= 15;  // more than 32,768 uses each
    ids.insert(sampler.Draw(random));
  }
  EXPECT_NEAR(most_used / double{kDraws}, 0.52, 0.01);
  EXPECT_NEAR(least_used / double{kDraws}, 0.089, 0.005);
  EXPECT_NEAR(hottest / double{kDraws}, 0.076, 0.005);
  EXPECT_GE(*ids.begin(), 0);
  EXPECT_LT(*ids.rbegin(), kRows);
  // Small tables draw each of their rows.
  for (const int64_t rows : {1, 2, 3, 30}) {
    const IdSampler small(*skew, rows);
    std::set<int64_t> drawn;
    for (int i = 0; i < 20'000; ++i) drawn.insert(small.Draw(random));
    EXPECT_EQ(static_cast<int64_t>(drawn.size()), rows);
    EXPECT_EQ(*drawn.begin(), 0);
    EXPECT_EQ(*drawn.rbegin(), rows - 1);
  }
}

}  // namespace
}  // namespace refract::loadgen
