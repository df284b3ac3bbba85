// A reading of the clock serves the rounds that it may serve, and no others.
#include "transport/loop/round_clock.h"

#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "base/clock.h"

namespace refract::transport {
namespace {

// Returns when the real clock has passed `time`.
void Pass(absl::Time time) {
  while (base::Clock::Real().Now() <= time) {
  }
}

TEST(RoundClockTest, AReadingServesFourIdleRounds) {
  RoundClock clock(&base::Clock::Real());
  absl::Time before = clock.Now();
  for (int reading = 0; reading < 3; ++reading) {
    for (int round = 0; round < 4; ++round) {
      Pass(before);
      EXPECT_EQ(clock.Now(), before) << round;
      clock.EndRound(false);
    }
    const absl::Time now = clock.Now();
    EXPECT_GT(now, before);
    EXPECT_LE(now, base::Clock::Real().Now());
    before = now;
  }
}

TEST(RoundClockTest, ARoundAfterWorkReadsTheClock) {
  RoundClock clock(&base::Clock::Real());
  const absl::Time before = clock.Now();
  Pass(before);
  EXPECT_EQ(clock.Now(), before) << "the same round";
  clock.EndRound(true);
  EXPECT_GT(clock.Now(), before);
}

TEST(RoundClockTest, ASleepEndsAReading) {
  RoundClock clock(&base::Clock::Real());
  const absl::Time before = clock.Now();
  Pass(before);
  clock.Forget();
  EXPECT_GT(clock.Now(), before);
}

TEST(RoundClockTest, AManualClockIsReadInEachRound) {
  base::ManualClock manual;
  RoundClock clock(&manual);
  for (int round = 0; round < 10; ++round) {
    EXPECT_EQ(clock.Now(), manual.Now());
    clock.EndRound(false);
    manual.Advance(absl::Nanoseconds(1));
  }
}

}  // namespace
}  // namespace refract::transport
