#include "base/log/log_limiter.h"

#include <optional>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace refract::base {
namespace {

TEST(LogLimiterTest, HoldsBackWhatPassesTheRateAndCountsIt) {
  ManualClock clock;
  LogLimiter limiter(/*lines_per_second=*/2, clock);
  EXPECT_EQ(limiter.Admit(), "");
  EXPECT_EQ(limiter.Admit(), "");
  EXPECT_EQ(limiter.Admit(), std::nullopt);
  EXPECT_EQ(limiter.Admit(), std::nullopt);

  clock.Advance(absl::Milliseconds(999));
  EXPECT_EQ(limiter.Admit(), std::nullopt);
  clock.Advance(absl::Milliseconds(1));
  EXPECT_EQ(limiter.Admit("refusals"), " (3 earlier refusals not logged)");
  EXPECT_EQ(limiter.Admit(), "");
  EXPECT_EQ(limiter.Admit(), std::nullopt);
}

}  // namespace
}  // namespace refract::base
