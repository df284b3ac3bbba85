#include "base/log/log_limiter.h"

#include <optional>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

TEST(LogLimiterTest, HoldsBackWhatPassesTheRateAndCountsIt) {
  ManualClock clock;
  LogLimiter limiter(/*lines_per_second=*/2, clock);
  EXPECT_EQ(limiter.Admit(), 0);
  EXPECT_EQ(limiter.Admit(), 0);
  EXPECT_EQ(limiter.Admit(), std::nullopt);
  EXPECT_EQ(limiter.Admit(), std::nullopt);

  clock.Advance(absl::Milliseconds(999));
  EXPECT_EQ(limiter.Admit(), std::nullopt);
  clock.Advance(absl::Milliseconds(1));
  EXPECT_EQ(limiter.Admit(), 3);  // the three held back
  EXPECT_EQ(limiter.Admit(), 0);
  EXPECT_EQ(limiter.Admit(), std::nullopt);
}

}  // namespace
}  // namespace refract::base
