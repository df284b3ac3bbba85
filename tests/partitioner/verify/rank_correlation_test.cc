#include "partitioner/verify/rank_correlation.h"

#include <vector>

#include "gtest/gtest.h"

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

}  // namespace
}  // namespace refract::partitioner
