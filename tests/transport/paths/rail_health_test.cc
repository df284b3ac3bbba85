#include "transport/paths/rail_health.h"

#include <gtest/gtest.h>

namespace refract::transport {
namespace {

class RailHealthTest : public testing::Test {
 protected:
  absl::Time At(double seconds) const {
    return absl::FromUnixSeconds(1'000'000) + absl::Seconds(seconds);
  }
  // Three errors within two seconds, the last at `seconds`.
  void Pause(double seconds) {
    for (const double before : {2.0, 1.0, 0.0}) {
      health_.OnError("verbs", At(seconds - before));
    }
  }
  RailHealth health_;
};

TEST_F(RailHealthTest, UnknownRailsAreUsable) {
  EXPECT_TRUE(health_.usable("verbs", At(0)));
  EXPECT_EQ(health_.paused_until("verbs"), absl::InfinitePast());
}

TEST_F(RailHealthTest, ThirdErrorWithinTheWindowPauses) {
  health_.OnError("verbs", At(0));
  health_.OnError("verbs", At(5));
  EXPECT_TRUE(health_.usable("verbs", At(9)));
  health_.OnError("verbs", At(9.9));
  EXPECT_FALSE(health_.usable("verbs", At(9.9)));
  EXPECT_TRUE(health_.usable("tcp", At(9.9)));
  EXPECT_EQ(health_.paused_until("verbs"), At(39.9));
  EXPECT_FALSE(health_.usable("verbs", At(39.8)));
  EXPECT_TRUE(health_.usable("verbs", At(39.9)));
  EXPECT_EQ(health_.pauses(), 1u);
}

TEST_F(RailHealthTest, ErrorsFarApartDoNotAddUp) {
  for (int i = 0; i < 20; ++i) {
    health_.OnError("verbs", At(5.0 * i));
    EXPECT_TRUE(health_.usable("verbs", At(5.0 * i))) << i;
  }
  EXPECT_EQ(health_.pauses(), 0u);
}

TEST_F(RailHealthTest, PausesDoubleUpToTheLast) {
  double at = 0;
  for (const double pause : {30, 60, 120, 240, 300, 300}) {
    Pause(at);
    EXPECT_EQ(health_.paused_until("verbs"), At(at + pause));
    at += pause + 5;
  }
  EXPECT_EQ(health_.pauses(), 6u);
}

TEST_F(RailHealthTest, LongHealthBeginsAnew) {
  Pause(0);
  Pause(35);
  ASSERT_EQ(health_.paused_until("verbs"), At(95));
  Pause(95 + 299);
  EXPECT_EQ(health_.paused_until("verbs"), At(394 + 120)) << "not long enough";
  Pause(514 + 302);
  EXPECT_EQ(health_.paused_until("verbs"), At(816 + 30));
}

TEST_F(RailHealthTest, ErrorsDuringAPauseCountForNothing) {
  Pause(0);
  Pause(20);
  EXPECT_EQ(health_.paused_until("verbs"), At(30));
  health_.OnError("verbs", At(31));
  health_.OnError("verbs", At(32));
  EXPECT_TRUE(health_.usable("verbs", At(32)));
}

TEST_F(RailHealthTest, PortStateOverrulesAndExplainsErrors) {
  health_.SetDown("verbs", true);
  EXPECT_FALSE(health_.usable("verbs", At(0)));
  EXPECT_EQ(health_.paused_until("verbs"), absl::InfiniteFuture());
  Pause(1);
  EXPECT_EQ(health_.pauses(), 0u);
  health_.SetDown("verbs", false);
  EXPECT_TRUE(health_.usable("verbs", At(1)));

  Pause(10);
  ASSERT_FALSE(health_.usable("verbs", At(11)));
  health_.SetDown("verbs", true);
  health_.SetDown("verbs", false);
  EXPECT_TRUE(health_.usable("verbs", At(11)));
  Pause(20);
  EXPECT_EQ(health_.paused_until("verbs"), At(20 + 60))
      << "the history of pauses stays";
}

}  // namespace
}  // namespace refract::transport
