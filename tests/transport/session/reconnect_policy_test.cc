#include "transport/session/reconnect_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace refract::transport {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);
const absl::Status kGone = absl::UnavailableError("gone");
const absl::Status kBroken = absl::InvalidArgumentError("broken");
// No jitter: the middle of the range.
constexpr double kMiddle = 0.5;

class ReconnectPolicyTest : public testing::Test {
 protected:
  ReconnectPolicy policy_{absl::Milliseconds(50), absl::Seconds(5)};
};

TEST_F(ReconnectPolicyTest, FailuresDoubleTheWaitUntilTheBreakerOpens) {
  std::vector<int64_t> waits_ms;
  std::vector<bool> open;
  for (int i = 0; i < 9; ++i) {
    waits_ms.push_back(
        absl::ToInt64Milliseconds(policy_.OnFailed(kGone, kMiddle)));
    open.push_back(policy_.open(kStart));
  }
  EXPECT_EQ(waits_ms, (std::vector<int64_t>{50, 100, 200, 400, 800, 1600, 3200,
                                            5000, 5000}));
  EXPECT_EQ(open, (std::vector<bool>{false, false, false, false, false, false,
                                     false, true, true}));
}

TEST_F(ReconnectPolicyTest, ShortLastBackoffIsNeverExceeded) {
  ReconnectPolicy policy(absl::Milliseconds(50), absl::Milliseconds(120));
  EXPECT_EQ(policy.OnFailed(kGone, kMiddle), absl::Milliseconds(50));
  EXPECT_EQ(policy.OnFailed(kGone, kMiddle), absl::Milliseconds(100));
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(policy.OnFailed(kGone, kMiddle), absl::Milliseconds(120));
  }
}

TEST_F(ReconnectPolicyTest, JitterSpreadsFromHalfToOneAndAHalf) {
  EXPECT_EQ(policy_.OnFailed(kGone, 0), absl::Milliseconds(25));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(policy_.OnFailed(kGone, 0.999999)),
              150, 0.1);
}

TEST_F(ReconnectPolicyTest, LossAfterAStableTimeStartsAnew) {
  for (int i = 0; i < 8; ++i) policy_.OnFailed(kGone, kMiddle);
  policy_.OnConnected(kStart);
  EXPECT_TRUE(policy_.open(kStart)) << "not proven yet";
  EXPECT_FALSE(policy_.open(kStart + ReconnectPolicy::kStable));
  EXPECT_EQ(policy_.OnLost(kGone, kStart + ReconnectPolicy::kStable, kMiddle),
            absl::Milliseconds(50));
  EXPECT_FALSE(policy_.open(kStart + ReconnectPolicy::kStable));
}

TEST_F(ReconnectPolicyTest, ConnectionsThatDoNotLastAreFailures) {
  absl::Time now = kStart;
  std::vector<int64_t> waits_ms;
  for (int i = 0; i < 8; ++i) {
    policy_.OnConnected(now);
    now += absl::Milliseconds(100);
    waits_ms.push_back(
        absl::ToInt64Milliseconds(policy_.OnLost(kGone, now, kMiddle)));
  }
  EXPECT_EQ(waits_ms,
            (std::vector<int64_t>{50, 100, 200, 400, 800, 1600, 3200, 5000}));
  EXPECT_TRUE(policy_.open(now));
}

TEST_F(ReconnectPolicyTest, BrokenProtocolIsRetriedOnce) {
  EXPECT_EQ(policy_.OnFailed(kBroken, kMiddle), absl::Milliseconds(50));
  EXPECT_EQ(policy_.OnFailed(kBroken, kMiddle), absl::Seconds(5));
  EXPECT_EQ(policy_.OnFailed(kBroken, kMiddle), absl::Seconds(5));
  EXPECT_EQ(policy_.OnFailed(kGone, kMiddle), absl::Milliseconds(400))
      << "something else is wrong now";
}

}  // namespace
}  // namespace refract::transport
