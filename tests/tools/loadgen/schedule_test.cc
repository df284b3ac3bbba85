#include "tools/loadgen/schedule.h"

#include <cmath>
#include <fstream>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::loadgen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<double> Gaps(const std::vector<absl::Duration>& arrivals) {
  std::vector<double> gaps;
  absl::Duration previous;
  for (absl::Duration at : arrivals) {
    gaps.push_back(absl::ToDoubleSeconds(at - previous));
    previous = at;
  }
  return gaps;
}

TEST(PoissonArrivalsTest, GapsAreExponential) {
  constexpr double kRate = 500;
  for (uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    const std::vector<double> gaps =
        Gaps(PoissonArrivals(kRate, absl::Seconds(100), seed));
    double sum = 0, squares = 0;
    int over_mean = 0, over_three = 0;
    for (double gap : gaps) {
      sum += gap;
      squares += gap * gap;
      over_mean += gap > 1 / kRate;
      over_three += gap > 3 / kRate;
    }
    const double n = static_cast<double>(gaps.size());
    const double mean = sum / n;
    // Five standard errors each: 50,000 gaps, a coefficient of variation of 1.
    EXPECT_NEAR(mean * kRate, 1, 5 / std::sqrt(n));
    const double deviation = std::sqrt(squares / n - mean * mean);
    EXPECT_NEAR(deviation / mean, 1, 0.05);
    // P(gap > k means) = exp(-k).
    EXPECT_NEAR(over_mean / n, std::exp(-1), 5 * 0.5 / std::sqrt(n));
    EXPECT_NEAR(over_three / n, std::exp(-3), 5 * 0.22 / std::sqrt(n));
  }
}

TEST(PoissonArrivalsTest, SeedDecidesEverything) {
  const auto first = PoissonArrivals(50, absl::Seconds(10), 7);
  EXPECT_EQ(first, PoissonArrivals(50, absl::Seconds(10), 7));
  EXPECT_NE(first, PoissonArrivals(50, absl::Seconds(10), 8));
}

TEST(PoissonArrivalsTest, OtherRatesSeeTheSameBursts) {
  const auto slow = PoissonArrivals(10, absl::Seconds(20), 7);
  const auto fast = PoissonArrivals(40, absl::Seconds(5), 7);
  ASSERT_EQ(slow.size(), fast.size());
  for (size_t i = 0; i < slow.size(); ++i) {
    EXPECT_NEAR(absl::ToDoubleSeconds(slow[i]),
                4 * absl::ToDoubleSeconds(fast[i]), 1e-6);
  }
}

TEST(PoissonArrivalsTest, StaysWithinTheLength) {
  const auto arrivals = PoissonArrivals(1000, absl::Seconds(1), 3);
  ASSERT_FALSE(arrivals.empty());
  EXPECT_GE(arrivals.front(), absl::ZeroDuration());
  EXPECT_LT(arrivals.back(), absl::Seconds(1));
  EXPECT_TRUE(std::is_sorted(arrivals.begin(), arrivals.end()));
}

TEST(QuerySizesTest, MlperfHasTwentyQuantilesOfMean270) {
  const auto sizes = QuerySizes::Parse("mlperf");
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->values().size(), 20u);
  EXPECT_DOUBLE_EQ(sizes->mean(), 270);
  Random random(5, "test");
  std::map<int64_t, int> drawn;
  for (int i = 0; i < 20'000; ++i) ++drawn[sizes->Draw(random)];
  // MLPerf's shares: 100 twice, 200 twelve times, 300 twice, the others once.
  // Five standard deviations of a count of mean 1000 are about 155.
  const std::map<int64_t, int> shares = {
      {100, 2}, {200, 12}, {300, 2}, {400, 1}, {500, 1}, {600, 1}, {700, 1}};
  ASSERT_EQ(drawn.size(), shares.size());
  for (const auto& [size, share] : shares) {
    EXPECT_NEAR(drawn[size], 1000 * share, 350) << size;
  }
}

TEST(QuerySizesTest, ReadsFixedAndFile) {
  EXPECT_THAT(QuerySizes::Parse("fixed:33")->values(), ElementsAre(33));
  const std::string path = testing::TempDir() + "/query_sizes.txt";
  std::ofstream(path) << "# sizes\n10\n\n 20 # twice as many\n";
  const auto sizes = QuerySizes::Parse("file:" + path);
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_THAT(sizes->values(), ElementsAre(10, 20));
}

TEST(QuerySizesTest, NamesWhatIsWrong) {
  const std::string path = testing::TempDir() + "/bad_sizes.txt";
  std::ofstream(path) << "10\n0\n";
  const auto bad_line = QuerySizes::Parse("file:" + path);
  EXPECT_EQ(bad_line.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad_line.status().message()),
              HasSubstr("bad_sizes.txt:2"));
  for (const char* spec : {"", "mlperf2", "fixed:", "fixed:0", "fixed:-3",
                           "fixed:9999999", "file:/nowhere/at/all"}) {
    EXPECT_EQ(QuerySizes::Parse(spec).status().code(),
              absl::StatusCode::kInvalidArgument)
        << spec;
  }
}

}  // namespace
}  // namespace refract::loadgen
