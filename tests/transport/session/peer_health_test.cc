#include "transport/session/peer_health.h"

#include <gtest/gtest.h>

#include <vector>

namespace refract::transport {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);
const absl::Status kGone = absl::UnavailableError("gone");
const absl::Status kBroken = absl::InvalidArgumentError("broken");
// No jitter: the middle of the range.
constexpr double kMiddle = 0.5;

// An event of a peer; a number lets this many milliseconds pass.
struct Event {
  enum Kind {
    kPass,
    kConnect,
    kAttemptFails,
    kLose,
    kStops,
    kSilent,
    kHeard,
    kRequestOk,
    kRequestFails,
    kRequestLate,
  };
  Kind kind = kPass;
  int count = 1;  // times; of kPass: milliseconds
};
using E = Event;

struct Case {
  const char* what;
  std::vector<Event> events;
  PeerState state;
  int in_flight = 0;  // of the model that asks
};

const std::vector<Case>& Cases() {
  static const auto* cases = new std::vector<Case>{
      {"begins", {}, PeerState::kConnecting},
      {"one attempt failed", {{E::kAttemptFails}}, PeerState::kConnecting},
      {"one attempt short of down",
       {{E::kAttemptFails, 7}},
       PeerState::kConnecting},
      {"down", {{E::kAttemptFails, 8}}, PeerState::kDown},
      {"down, then there",
       {{E::kAttemptFails, 8}, {E::kConnect}},
       PeerState::kReady},
      {"was down, lost at once: down again",
       {{E::kAttemptFails, 8}, {E::kConnect}, {E::kPass, 4999}, {E::kLose}},
       PeerState::kDown},
      {"was down, lost after it has lasted",
       {{E::kAttemptFails, 8}, {E::kConnect}, {E::kPass, 5000}, {E::kLose}},
       PeerState::kConnecting},
      {"connected", {{E::kConnect}}, PeerState::kReady},
      {"lost", {{E::kConnect}, {E::kLose}}, PeerState::kConnecting},
      {"silent", {{E::kConnect}, {E::kSilent}}, PeerState::kSuspect},
      {"heard again",
       {{E::kConnect}, {E::kSilent}, {E::kHeard}},
       PeerState::kReady},
      {"silent, then another connection",
       {{E::kConnect}, {E::kSilent}, {E::kConnect}},
       PeerState::kReady},
      {"silent, then lost",
       {{E::kConnect}, {E::kSilent}, {E::kLose}},
       PeerState::kConnecting},
      {"stops", {{E::kConnect}, {E::kStops}}, PeerState::kDraining},
      {"stopped, and the next attempt fails",
       {{E::kConnect}, {E::kStops}, {E::kAttemptFails}},
       PeerState::kConnecting},
      {"stopped, and another process is there",
       {{E::kConnect}, {E::kStops}, {E::kConnect}},
       PeerState::kReady},
      {"results while it stops change nothing",
       {{E::kConnect}, {E::kStops}, {E::kRequestFails, 5}},
       PeerState::kDraining},
      {"two failed requests",
       {{E::kConnect}, {E::kRequestFails, 2}},
       PeerState::kReady},
      {"three failed requests",
       {{E::kConnect}, {E::kRequestFails, 3}},
       PeerState::kEjected},
      {"not in a row",
       {{E::kConnect},
        {E::kRequestFails, 2},
        {E::kRequestOk},
        {E::kRequestFails, 2}},
       PeerState::kReady},
      {"late requests are not the peer's fault",
       {{E::kConnect}, {E::kRequestLate, 9}},
       PeerState::kReady},
      {"late requests do not end a row",
       {{E::kConnect},
        {E::kRequestFails, 2},
        {E::kRequestLate},
        {E::kRequestFails}},
       PeerState::kEjected},
      {"ejected and silent is ejected",
       {{E::kConnect}, {E::kSilent}, {E::kRequestFails, 3}},
       PeerState::kEjected},
      {"ejection is not over",
       {{E::kConnect}, {E::kRequestFails, 3}, {E::kPass, 999}},
       PeerState::kEjected},
      {"ejection is over: one request may try",
       {{E::kConnect}, {E::kRequestFails, 3}, {E::kPass, 1000}},
       PeerState::kReady},
      {"not while another of the model tries",
       {{E::kConnect}, {E::kRequestFails, 3}, {E::kPass, 1000}},
       PeerState::kEjected,
       1},
      {"it tries a silent peer",
       {{E::kConnect}, {E::kSilent}, {E::kRequestFails, 3}, {E::kPass, 1000}},
       PeerState::kSuspect},
      {"one more failure is enough then",
       {{E::kConnect},
        {E::kRequestFails, 3},
        {E::kPass, 1000},
        {E::kRequestFails}},
       PeerState::kEjected},
      {"the second ejection is longer",
       {{E::kConnect},
        {E::kRequestFails, 3},
        {E::kPass, 1000},
        {E::kRequestFails},
        {E::kPass, 1999}},
       PeerState::kEjected},
      {"it ends too",
       {{E::kConnect},
        {E::kRequestFails, 3},
        {E::kPass, 1000},
        {E::kRequestFails},
        {E::kPass, 2000}},
       PeerState::kReady},
      {"failures during an ejection do not lengthen it",
       {{E::kConnect},
        {E::kRequestFails, 3},
        {E::kPass, 500},
        {E::kRequestFails, 10},
        {E::kPass, 500}},
       PeerState::kReady},
      {"a success ends an ejection",
       {{E::kConnect}, {E::kRequestFails, 3}, {E::kRequestOk}},
       PeerState::kReady,
       9},
      {"a success forgives all",
       {{E::kConnect},
        {E::kRequestFails, 3},
        {E::kPass, 1000},
        {E::kRequestOk},
        {E::kRequestFails, 2}},
       PeerState::kReady},
      {"another process has a clean record",
       {{E::kConnect}, {E::kRequestFails, 3}, {E::kLose}, {E::kConnect}},
       PeerState::kReady,
       9},
  };
  return *cases;
}

void Apply(const Event& event, PeerHealth& health, absl::Time& now) {
  if (event.kind == E::kPass) {
    now += absl::Milliseconds(event.count);
    return;
  }
  for (int i = 0; i < event.count; ++i) {
    switch (event.kind) {
      case E::kPass:
        break;
      case E::kConnect:
        health.OnConnected(now);
        break;
      case E::kAttemptFails:
        health.OnAttemptFailed(kGone, kMiddle);
        break;
      case E::kLose:
        health.OnLost(kGone, now, kMiddle);
        break;
      case E::kStops:
        health.OnStopping(now, kMiddle);
        break;
      case E::kSilent:
        health.OnSilence(true);
        break;
      case E::kHeard:
        health.OnSilence(false);
        break;
      case E::kRequestOk:
        health.OnResult(absl::OkStatus(), now);
        break;
      case E::kRequestFails:
        health.OnResult(kGone, now);
        break;
      case E::kRequestLate:
        health.OnResult(absl::DeadlineExceededError("late"), now);
        break;
    }
  }
}

TEST(PeerHealthTest, FollowsTheTable) {
  for (const Case& c : Cases()) {
    PeerHealth health(absl::Milliseconds(50), absl::Seconds(5));
    absl::Time now = kStart;
    for (const Event& event : c.events) Apply(event, health, now);
    EXPECT_EQ(Name(health.state(now, c.in_flight)), Name(c.state)) << c.what;
  }
}

TEST(PeerHealthTest, OnlyConnectedStatesTakeRequests) {
  EXPECT_TRUE(IsConnected(PeerState::kReady));
  EXPECT_TRUE(IsConnected(PeerState::kSuspect));
  EXPECT_TRUE(IsConnected(PeerState::kEjected));
  EXPECT_FALSE(IsConnected(PeerState::kConnecting));
  EXPECT_FALSE(IsConnected(PeerState::kDraining));
  EXPECT_FALSE(IsConnected(PeerState::kDown));
}

TEST(PeerHealthTest, ErrorsThatAreThePeersFault) {
  struct FaultCase {
    absl::StatusCode code;
    bool fault;
  };
  for (const FaultCase& c : {FaultCase{absl::StatusCode::kUnavailable, true},
                             {absl::StatusCode::kInternal, true},
                             {absl::StatusCode::kUnknown, true},
                             {absl::StatusCode::kDataLoss, true},
                             {absl::StatusCode::kDeadlineExceeded, false},
                             {absl::StatusCode::kResourceExhausted, false},
                             {absl::StatusCode::kInvalidArgument, false},
                             {absl::StatusCode::kCancelled, false}}) {
    PeerHealth health(absl::Milliseconds(50), absl::Seconds(5),
                      {.failures = 1});
    health.OnConnected(kStart);
    health.OnResult(absl::Status(c.code, ""), kStart);
    EXPECT_EQ(health.state(kStart) == PeerState::kEjected, c.fault)
        << absl::StatusCodeToString(c.code);
  }
}

TEST(PeerHealthTest, EjectionsDoubleUpToTheLongest) {
  PeerHealth health(
      absl::Milliseconds(50), absl::Seconds(5),
      {.failures = 3, .first = absl::Seconds(1), .longest = absl::Seconds(5)});
  health.OnConnected(kStart);
  absl::Time now = kStart;
  for (int i = 0; i < 2; ++i) health.OnResult(kGone, now);
  for (const int seconds : {1, 2, 4, 5, 5}) {
    ASSERT_EQ(health.state(now), PeerState::kReady);
    health.OnResult(kGone, now);
    now += absl::Seconds(seconds);
    EXPECT_EQ(health.state(now - absl::Nanoseconds(1)), PeerState::kEjected);
    EXPECT_EQ(health.state(now), PeerState::kReady);
  }
}

// ------------------------------------------------------------------- back-off

class BackoffTest : public testing::Test {
 protected:
  PeerHealth health_{absl::Milliseconds(50), absl::Seconds(5)};
};

TEST_F(BackoffTest, FailuresDoubleTheWaitUntilThePeerIsDown) {
  std::vector<int64_t> waits_ms;
  std::vector<bool> down;
  for (int i = 0; i < 9; ++i) {
    waits_ms.push_back(
        absl::ToInt64Milliseconds(health_.OnAttemptFailed(kGone, kMiddle)));
    down.push_back(health_.state(kStart) == PeerState::kDown);
  }
  EXPECT_EQ(waits_ms, (std::vector<int64_t>{50, 100, 200, 400, 800, 1600, 3200,
                                            5000, 5000}));
  EXPECT_EQ(down, (std::vector<bool>{false, false, false, false, false, false,
                                     false, true, true}));
}

TEST_F(BackoffTest, ShortLastBackoffIsNeverExceeded) {
  PeerHealth health(absl::Milliseconds(50), absl::Milliseconds(120));
  EXPECT_EQ(health.OnAttemptFailed(kGone, kMiddle), absl::Milliseconds(50));
  EXPECT_EQ(health.OnAttemptFailed(kGone, kMiddle), absl::Milliseconds(100));
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(health.OnAttemptFailed(kGone, kMiddle), absl::Milliseconds(120));
  }
}

TEST_F(BackoffTest, JitterSpreadsFromHalfToOneAndAHalf) {
  EXPECT_EQ(health_.OnAttemptFailed(kGone, 0), absl::Milliseconds(25));
  EXPECT_NEAR(
      absl::ToDoubleMilliseconds(health_.OnAttemptFailed(kGone, 0.999999)), 150,
      0.1);
}

TEST_F(BackoffTest, LossAfterAStableTimeStartsAnew) {
  for (int i = 0; i < 8; ++i) health_.OnAttemptFailed(kGone, kMiddle);
  health_.OnConnected(kStart);
  EXPECT_EQ(health_.OnLost(kGone, kStart + PeerHealth::kStable, kMiddle),
            absl::Milliseconds(50));
  EXPECT_EQ(health_.failures(), 1);
}

TEST_F(BackoffTest, ConnectionsThatDoNotLastAreFailures) {
  absl::Time now = kStart;
  std::vector<int64_t> waits_ms;
  for (int i = 0; i < 8; ++i) {
    health_.OnConnected(now);
    now += absl::Milliseconds(100);
    waits_ms.push_back(
        absl::ToInt64Milliseconds(health_.OnLost(kGone, now, kMiddle)));
  }
  EXPECT_EQ(waits_ms,
            (std::vector<int64_t>{50, 100, 200, 400, 800, 1600, 3200, 5000}));
  EXPECT_EQ(health_.state(now), PeerState::kDown);
}

TEST_F(BackoffTest, BrokenProtocolIsRetriedOnce) {
  EXPECT_EQ(health_.OnAttemptFailed(kBroken, kMiddle), absl::Milliseconds(50));
  EXPECT_EQ(health_.OnAttemptFailed(kBroken, kMiddle), absl::Seconds(5));
  EXPECT_EQ(health_.OnAttemptFailed(kBroken, kMiddle), absl::Seconds(5));
  EXPECT_EQ(health_.OnAttemptFailed(kGone, kMiddle), absl::Milliseconds(400))
      << "something else is wrong now";
}

}  // namespace
}  // namespace refract::transport
