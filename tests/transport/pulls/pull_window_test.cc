// The control law of the window of pulls: transport/pulls/pull_window.h.
#include "transport/pulls/pull_window.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>

namespace refract::transport {
namespace {

constexpr size_t kWindowChunk = 1000;
constexpr absl::Duration kWindowMs = absl::Milliseconds(1);

PullWindow::Options SmallOptions() {
  PullWindow::Options options;
  options.chunk_bytes = kWindowChunk;
  options.max_bytes = 100 * kWindowChunk;
  return options;
}

class PullWindowTest : public testing::Test {
 protected:
  void Post(const char* connection, size_t bytes = kWindowChunk) {
    const PullWindow::Get get{connection, posted_[*connection]++, bytes};
    under_way_.push_back(get);
    window_.Posted(get, now_);
  }
  // Completes the oldest get under way.
  void Complete() {
    window_.Completed(under_way_.front(), now_);
    under_way_.pop_front();
  }
  // A get that travels alone and takes `took`.
  void Alone(absl::Duration took, size_t bytes = kWindowChunk) {
    Post(&a_, bytes);
    now_ += took;
    Complete();
  }
  // Keeps the window full for `time`. A get takes at least `delay`, and one get
  // completes per `gap`.
  void Flood(absl::Duration delay, absl::Duration gap, absl::Duration time) {
    const absl::Time until = now_ + time;
    std::deque<absl::Time> done;
    while (now_ < until || !done.empty()) {
      while (now_ < until && window_.HasRoom()) {
        Post(&a_);
        done.push_back(
            std::max(now_ + delay, done.empty() ? now_ : done.back() + gap));
        most_ = std::max(most_, under_way_.size());
      }
      now_ = done.front();
      done.pop_front();
      Complete();
    }
  }

  PullWindow window_{SmallOptions()};
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::deque<PullWindow::Get> under_way_;
  std::map<char, uint64_t> posted_;
  size_t most_ = 0;
  const char a_ = 'a';
  const char b_ = 'b';
};

TEST_F(PullWindowTest, FirstGetTravelsAlone) {
  EXPECT_EQ(window_.bytes(), kWindowChunk);
  EXPECT_TRUE(window_.HasRoom());
  EXPECT_EQ(window_.TimeFor(1'000'000), absl::ZeroDuration());
  Post(&a_);
  EXPECT_FALSE(window_.HasRoom());
  now_ += kWindowMs;
  Complete();
  EXPECT_EQ(window_.bytes(), 2 * kWindowChunk);
  EXPECT_EQ(window_.bytes_per_second(), 1e6);
  EXPECT_EQ(window_.TimeFor(1'000'000), absl::Seconds(1));
}

TEST_F(PullWindowTest, GrowsToWhatFillsTheLink) {
  // 10 chunks per ms, each under way for at least 2 ms: 20 chunks, and the
  // window is an eighth larger.
  Flood(2 * kWindowMs, 0.1 * kWindowMs, 1000 * kWindowMs);
  EXPECT_NEAR(window_.bytes_per_second(), 10e6, 0.1e6);
  EXPECT_NEAR(static_cast<double>(window_.bytes()), 22500, 1);
  EXPECT_EQ(most_, 23u);
}

TEST_F(PullWindowTest, FollowsALinkThatGetsSlower) {
  Flood(2 * kWindowMs, 0.1 * kWindowMs, 500 * kWindowMs);
  // At half the rate 10 chunks fill the link.
  Flood(2 * kWindowMs, 0.2 * kWindowMs, 500 * kWindowMs);
  EXPECT_NEAR(window_.bytes_per_second(), 5e6, 0.1e6);
  EXPECT_NEAR(static_cast<double>(window_.bytes()), 11250, 1);
}

TEST_F(PullWindowTest, StaysWithinItsBounds) {
  Flood(absl::Seconds(1), absl::Microseconds(1), absl::Seconds(200));
  EXPECT_EQ(window_.bytes(), 100 * kWindowChunk);
  PullWindow still(SmallOptions());
  for (uint64_t i = 0; i < 100; ++i) {  // time stands still
    still.Posted({&a_, i, kWindowChunk}, now_);
    still.Completed({&a_, i, kWindowChunk}, now_);
  }
  EXPECT_EQ(still.bytes(), 2 * kWindowChunk);
  EXPECT_EQ(still.bytes_per_second(), 0);
}

TEST_F(PullWindowTest, IdleTimeIsNotBusyTime) {
  for (int i = 0; i < 50; ++i) {
    Alone(kWindowMs);
    now_ += 9 * kWindowMs;
  }
  EXPECT_EQ(window_.bytes_per_second(), 1e6);
}

TEST_F(PullWindowTest, ALateLookDoesNotMakeTheLinkFaster) {
  Flood(2 * kWindowMs, 0.1 * kWindowMs, 500 * kWindowMs);
  const double rate = window_.bytes_per_second();
  for (int i = 0; i < 20; ++i) {
    // The thread does not run for 10 ms; then all gets under way have
    // completed.
    while (window_.HasRoom()) Post(&a_);
    now_ += 10 * kWindowMs;
    while (!under_way_.empty()) Complete();
    Flood(2 * kWindowMs, 0.1 * kWindowMs, 20 * kWindowMs);
  }
  EXPECT_LE(window_.bytes_per_second(), 1.001 * rate);
  EXPECT_NEAR(static_cast<double>(window_.bytes()), 22500, 1);
}

TEST_F(PullWindowTest, LackOfDemandNeverLowersTheRate) {
  Alone(kWindowMs);
  ASSERT_EQ(window_.bytes_per_second(), 1e6);
  for (int i = 0; i < 100; ++i) {
    Post(&a_);
    window_.LackedDemand();
    now_ += 4 * kWindowMs;
    Complete();
  }
  EXPECT_EQ(window_.bytes_per_second(), 1e6);
  // Under demand, the same times lower it.
  for (int i = 0; i < 100; ++i) Alone(4 * kWindowMs);
  EXPECT_NEAR(window_.bytes_per_second(), 0.25e6, 1);
  // A higher rate raises the estimate even without demand.
  for (int i = 0; i < 100; ++i) {
    Post(&a_);
    window_.LackedDemand();
    now_ += kWindowMs;
    Complete();
  }
  EXPECT_NEAR(window_.bytes_per_second(), 1e6, 1);
}

TEST_F(PullWindowTest, OnlyGetsThatAreAloneTellTheDelay) {
  Alone(3 * kWindowMs);
  for (int i = 0; i < 10; ++i) {
    // Two at once: the round is a's, a chunk in 0.2 ms.
    Post(&a_);
    Post(&b_);
    now_ += 0.2 * kWindowMs;
    Complete();
    Complete();
  }
  // 5 chunks per ms for 3 ms. With the delay of 0.2 ms it would be 2 chunks.
  EXPECT_NEAR(static_cast<double>(window_.bytes()), 1.125 * 15 * kWindowChunk,
              1);
}

TEST_F(PullWindowTest, ShortGetsCountAsIfTheyWereWhole) {
  Alone(kWindowMs);
  // 1/10 of a chunk in 0.4 ms: at 1 chunk per ms a whole one takes 1.3 ms,
  // which is no better than 1 ms.
  now_ += absl::Seconds(2);
  Alone(0.4 * kWindowMs, kWindowChunk / 10);
  for (int i = 0; i < 10; ++i) {
    Post(&a_);
    Post(&b_);
    now_ += 0.2 * kWindowMs;
    Complete();
    Complete();
  }
  EXPECT_NEAR(static_cast<double>(window_.bytes()), 1.125 * 5 * kWindowChunk,
              1);
}

TEST_F(PullWindowTest, DrainsForADelayNowAndThen) {
  Alone(kWindowMs);
  const absl::Time sampled = now_;
  // Two outstanding all the time; 1000 delays are a second.
  Post(&a_);
  while (window_.HasRoom()) {
    Post(&b_);
    now_ += kWindowMs / 2;
    Complete();
    ASSERT_LE(now_ - sampled, absl::Seconds(2));
  }
  EXPECT_GE(now_ - sampled, absl::Seconds(1));
  EXPECT_LE(now_ - sampled, absl::Seconds(1) + kWindowMs);
  // Gets under way end, then one get is alone, then all go on.
  while (!under_way_.empty()) {
    EXPECT_FALSE(window_.HasRoom());
    now_ += kWindowMs;
    Complete();
  }
  Post(&a_);
  EXPECT_FALSE(window_.HasRoom());
  now_ += kWindowMs;
  Complete();
  Post(&a_);
  EXPECT_TRUE(window_.HasRoom());
}

TEST_F(PullWindowTest, ForgetsAShortDelayThatIsGone) {
  Flood(kWindowMs, 0.1 * kWindowMs, absl::Seconds(1.5));
  EXPECT_NEAR(static_cast<double>(window_.bytes()), 11250, 1);
  Flood(4 * kWindowMs, 0.1 * kWindowMs, absl::Seconds(4));
  EXPECT_LT(window_.bytes(), 15 * kWindowChunk) << "held down by the old delay";
  Flood(4 * kWindowMs, 0.1 * kWindowMs, absl::Seconds(18.5));
  EXPECT_NEAR(static_cast<double>(window_.bytes()), 45000, 1);
}

TEST_F(PullWindowTest, WhatIsLostLeavesTheWindow) {
  Post(&a_);
  window_.Lost(&a_, kWindowChunk);
  under_way_.clear();
  EXPECT_EQ(window_.outstanding(), 0u);
  EXPECT_EQ(window_.bytes(), kWindowChunk)
      << "no delay was seen, so still probing";
  Alone(kWindowMs);
  EXPECT_EQ(window_.bytes(), 2 * kWindowChunk);
}

TEST_F(PullWindowTest, MarksHalveAndTheirAbsenceAddsAChunk) {
  Flood(absl::Seconds(1), absl::Microseconds(1), absl::Seconds(200));
  ASSERT_EQ(window_.bytes(), 100 * kWindowChunk);
  struct Step {
    int pulls;
    uint64_t marks;
    size_t chunks;  // then
  };
  const Step steps[] = {
      {10, 11, 50},  // 1.1 each: halved
      {10, 10, 50},  // 1.0 is not above the threshold
      {10, 1, 50},   // 0.1 is not below the other
      {11, 1, 51},   // 0.09
      {0, 0, 52},    // nothing happened at all
      {0, 2, 26},    // marks of pulls that go on
      {1, 5, 13},   {1, 5, 6}, {1, 5, 3}, {1, 5, 2}, {1, 5, 2},  // the least
      {10, 0, 3},
  };
  for (const Step& step : steps) {
    for (int i = 0; i < step.pulls; ++i) window_.PullFinished();
    window_.CountMarks(step.marks);
    EXPECT_EQ(window_.bytes() / kWindowChunk, step.chunks)
        << step.marks << " marks in " << step.pulls << " pulls";
  }
  for (int i = 0; i < 200; ++i) window_.CountMarks(0);
  EXPECT_EQ(window_.bytes(), 100 * kWindowChunk);
}

}  // namespace
}  // namespace refract::transport
