#include "base/histogram.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/base/random_seed.h"

namespace refract::base {
namespace {

TEST(LatencyHistogramTest, IsZeroWhenEmpty) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.Percentile(0.99), absl::ZeroDuration());
  EXPECT_EQ(histogram.mean(), absl::ZeroDuration());
}

TEST(LatencyHistogramTest, PercentilesStayWithinABucketOfTheSortedValues) {
  const unsigned seed = base::RandomSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> draw(13, 2);  // around 0.4 ms
  LatencyHistogram histogram;
  std::vector<int64_t> values;
  for (int i = 0; i < 20000; ++i) {
    values.push_back(static_cast<int64_t>(draw(random)));
    histogram.Record(absl::Nanoseconds(values.back()));
  }
  std::sort(values.begin(), values.end());
  for (double fraction : {0.01, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<size_t>(
        std::ceil(fraction * static_cast<double>(values.size())));
    const double exact = static_cast<double>(values[rank - 1]);
    const double got = static_cast<double>(
        absl::ToInt64Nanoseconds(histogram.Percentile(fraction)));
    EXPECT_GE(got, exact) << fraction;
    EXPECT_LE(got, exact * (1 + 1.0 / 64) + 1) << fraction;
  }
  EXPECT_EQ(absl::ToInt64Nanoseconds(histogram.max()), values.back());
}

TEST(LatencyHistogramTest, KeepsValuesOutsideItsRange) {
  LatencyHistogram histogram;
  histogram.Record(absl::Nanoseconds(-5));
  histogram.Record(absl::Hours(10));
  EXPECT_EQ(histogram.count(), 2u);
  EXPECT_EQ(histogram.Percentile(0.5), absl::ZeroDuration());
  EXPECT_EQ(histogram.max(), absl::Hours(10));
}

}  // namespace
}  // namespace refract::base
