#include "tools/loadgen/max_rate.h"

#include <vector>

#include "gtest/gtest.h"

namespace refract::loadgen {
namespace {

struct Service {
  double limit;
  std::vector<double> tried;
  absl::StatusOr<std::optional<double>> Find(double start) {
    return FindMaxRate(start, [this](double rate) -> absl::StatusOr<bool> {
      tried.push_back(rate);
      return rate <= limit;
    });
  }
};

TEST(FindMaxRateTest, ComesWithinFivePercentFromBelow) {
  for (double limit : {1.0, 3.3, 99.0, 100.0, 777.0}) {
    for (double start : {1.0, 10.0, 100.0}) {
      SCOPED_TRACE(testing::Message() << limit << " from " << start);
      Service service{limit, {}};
      const auto found = service.Find(start);
      ASSERT_TRUE(found.ok()) << found.status();
      ASSERT_TRUE(found->has_value());
      EXPECT_LE(**found, limit);
      EXPECT_GE(**found, limit / 1.05);
      EXPECT_LE(service.tried.size(), 17u);
    }
  }
}

TEST(FindMaxRateTest, DoublesThenBisects) {
  Service service{55, {}};
  ASSERT_TRUE(service.Find(10).ok());
  EXPECT_EQ(service.tried,
            (std::vector<double>{10, 20, 40, 80, 60, 50, 55, 57.5}));
}

TEST(FindMaxRateTest, GivesUpBothWays) {
  Service dead{0, {}};
  const auto none = dead.Find(10);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  EXPECT_LE(dead.tried.size(), 11u);
  Service endless{1e300, {}};
  EXPECT_EQ(endless.Find(10).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(FindMaxRateTest, AnErrorEndsTheSearch) {
  int calls = 0;
  const auto found = FindMaxRate(1, [&](double) -> absl::StatusOr<bool> {
    if (++calls == 3) return absl::UnavailableError("gone");
    return true;
  });
  EXPECT_EQ(found.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace refract::loadgen
