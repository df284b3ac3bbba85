#include "tools/loadgen/arrivals/arrivals.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::loadgen {
namespace {

using ::testing::HasSubstr;

std::vector<double> Draw(const std::string& spec, double qps, double warmup_s,
                         double duration_s, uint64_t seed = 7) {
  const auto profile = ArrivalProfile::Parse(spec);
  EXPECT_TRUE(profile.ok()) << profile.status();
  std::vector<double> seconds;
  for (const absl::Duration at :
       profile->Draw(qps, absl::Seconds(warmup_s), absl::Seconds(duration_s),
                     seed)) {
    seconds.push_back(absl::ToDoubleSeconds(at));
  }
  EXPECT_TRUE(std::is_sorted(seconds.begin(), seconds.end()));
  return seconds;
}

double CountWithin(const std::vector<double>& arrivals, double begin,
                   double end) {
  return static_cast<double>(
      std::count_if(arrivals.begin(), arrivals.end(),
                    [&](double at) { return at >= begin && at < end; }));
}

// Five standard deviations of a Poisson count.
void ExpectCount(const std::vector<double>& arrivals, double begin, double end,
                 double expected) {
  EXPECT_NEAR(CountWithin(arrivals, begin, end), expected,
              5 * std::sqrt(expected) + 1)
      << begin << " to " << end;
}

TEST(ArrivalProfileTest, PoissonGapsAreExponential) {
  constexpr double kRate = 500;
  for (uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    const std::vector<double> arrivals = Draw("poisson", kRate, 0, 100, seed);
    double previous = 0, sum = 0, squares = 0;
    int over_mean = 0, over_three = 0;
    for (const double at : arrivals) {
      const double gap = at - previous;
      previous = at;
      sum += gap;
      squares += gap * gap;
      over_mean += gap > 1 / kRate;
      over_three += gap > 3 / kRate;
    }
    const double n = static_cast<double>(arrivals.size());
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

TEST(ArrivalProfileTest, SeedDecidesEverything) {
  EXPECT_EQ(Draw("poisson", 50, 1, 10, 7), Draw("poisson", 50, 1, 10, 7));
  EXPECT_NE(Draw("poisson", 50, 1, 10, 7), Draw("poisson", 50, 1, 10, 8));
}

TEST(ArrivalProfileTest, OtherRatesSeeTheSameBursts) {
  const auto slow = Draw("poisson", 10, 0, 20);
  const auto fast = Draw("poisson", 40, 0, 5);
  ASSERT_EQ(slow.size(), fast.size());
  for (size_t i = 0; i < slow.size(); ++i) {
    EXPECT_NEAR(slow[i], 4 * fast[i], 1e-6);
  }
}

TEST(ArrivalProfileTest, ConstantGapsAreEqual) {
  const auto arrivals = Draw("constant", 40, 0.5, 1);
  ASSERT_EQ(arrivals.size(), 60u);
  for (size_t i = 0; i < arrivals.size(); ++i) {
    EXPECT_NEAR(arrivals[i], static_cast<double>(i) / 40, 1e-9);
  }
}

TEST(ArrivalProfileTest, BurstsKeepTheMean) {
  // 5 times the mean for 1 s of 10 s; the other 9 s have 5/9 of it.
  const auto arrivals = Draw("bursts:5,1,10", 200, 5, 95);
  ExpectCount(arrivals, 0, 100, 200 * 100);
  for (double begin = 0; begin < 100; begin += 10) {
    ExpectCount(arrivals, begin, begin + 1, 1000);
    ExpectCount(arrivals, begin + 1, begin + 10, 1000);
  }
  EXPECT_LT(arrivals.back(), 100);
  // All of the load in bursts.
  const auto only = Draw("bursts:4,1,4", 100, 0, 8);
  EXPECT_EQ(CountWithin(only, 1, 4) + CountWithin(only, 5, 8), 0);
  ExpectCount(only, 0, 8, 800);
}

TEST(ArrivalProfileTest, DiurnalFollowsACosine) {
  const auto arrivals = Draw("diurnal:0.2", 1000, 10, 96);
  // Mean 0.6 of the peak: trough 1/3 of the mean, peak 5/3.
  ExpectCount(arrivals, 10, 106, 96'000);
  ExpectCount(arrivals, 10 + 44, 10 + 52, 8 * 1000 * 5 / 3.0 * 0.991);
  ExpectCount(arrivals, 10, 14, 4 * 1000 / 3.0 * 1.023);
  ExpectCount(arrivals, 10 + 20, 10 + 28, 8 * 1000);
  // The warm-up has the first rate.
  ExpectCount(arrivals, 0, 10, 10 * 1000 / 3.0);
}

TEST(ArrivalProfileTest, CurveOfAFileIsSpreadOverTheMeasuredTime) {
  const std::string path = testing::TempDir() + "/curve.txt";
  std::ofstream(path) << "# requests per minute\n100\n\n300 # noon\n0\n";
  const auto arrivals = Draw("curve:" + path, 400, 0, 30);
  ExpectCount(arrivals, 0, 10, 10 * 300);
  ExpectCount(arrivals, 10, 20, 10 * 900);
  EXPECT_EQ(CountWithin(arrivals, 20, 30), 0);
}

TEST(ArrivalProfileTest, NamesWhatIsWrong) {
  const std::string path = testing::TempDir() + "/bad_curve.txt";
  std::ofstream(path) << "1\nmany\n";
  const auto bad_line = ArrivalProfile::Parse("curve:" + path);
  EXPECT_EQ(bad_line.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad_line.status().message()),
              HasSubstr("bad_curve.txt:2: 'many'"));
  std::ofstream(path) << "0\n0\n";
  for (const std::string& spec :
       {std::string(""), std::string("Poisson"), std::string("bursts:5,1"),
        std::string("bursts:5,1,4"), std::string("bursts:0.5,1,4"),
        std::string("bursts:2,0,4"), std::string("bursts:2,4,4"),
        std::string("bursts:nan,1,4"), std::string("diurnal:1.5"),
        std::string("diurnal:-1"), std::string("curve:/nowhere/at/all"),
        "curve:" + path}) {
    const auto profile = ArrivalProfile::Parse(spec);
    EXPECT_EQ(profile.status().code(), absl::StatusCode::kInvalidArgument)
        << spec;
    EXPECT_THAT(std::string(profile.status().message()),
                HasSubstr("--arrivals"));
  }
}

}  // namespace
}  // namespace refract::loadgen
