#include "tools/loadgen/open_loop.h"

#include <algorithm>
#include <functional>

#include "gtest/gtest.h"
#include "tools/loadgen/report.h"
#include "tools/loadgen/schedule.h"

namespace refract::loadgen {
namespace {

// Waiting takes no real time: the clock jumps to the deadline.
class JumpingClock : public base::Clock {
 public:
  absl::Time Now() override { return now_; }
  bool AwaitWithDeadline(absl::Mutex&, const absl::Condition& condition,
                         absl::Time deadline) override {
    now_ = std::max(now_, deadline);
    return condition.Eval();
  }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

// Answers at once. An answer that moves the clock holds up the sender as well.
class FakeSystem : public SystemUnderTest {
 public:
  using Answer = std::function<absl::StatusCode(size_t query)>;
  explicit FakeSystem(Answer answer) : answer_(std::move(answer)) {}

  void Issue(size_t query, size_t request, absl::Time deadline,
             CompletionSink& sink) override {
    issued_.push_back(request);
    deadlines_.push_back(deadline);
    sink.Done(query, answer_(query));
  }
  const std::vector<size_t>& issued() const { return issued_; }
  const std::vector<absl::Time>& deadlines() const { return deadlines_; }

 private:
  Answer answer_;
  std::vector<size_t> issued_;
  std::vector<absl::Time> deadlines_;
};

std::vector<PlannedQuery> EveryMillisecond(int count) {
  std::vector<PlannedQuery> schedule;
  for (int i = 0; i < count; ++i) {
    schedule.push_back({.at = absl::Milliseconds(i),
                        .items = 1,
                        .request = static_cast<size_t>(i) % 3});
  }
  return schedule;
}

TEST(OpenLoopTest, SendsOnTimeAndTheRightRequest) {
  JumpingClock clock;
  FakeSystem system([](size_t) { return absl::StatusCode::kOk; });
  const auto schedule = EveryMillisecond(5);
  OpenLoopRun run(clock, schedule, {.timeout = absl::Seconds(10)});
  const auto results = run.Run(system);
  ASSERT_EQ(results.size(), 5u);
  for (const QueryResult& result : results) {
    EXPECT_EQ(result.code, absl::StatusCode::kOk);
    EXPECT_EQ(result.lateness, absl::ZeroDuration());
    EXPECT_EQ(result.latency, absl::ZeroDuration());
  }
  EXPECT_EQ(system.issued(), (std::vector<size_t>{0, 1, 2, 0, 1}));
  EXPECT_EQ(system.deadlines()[3] - system.deadlines()[0],
            absl::Milliseconds(3));
  EXPECT_EQ(system.deadlines()[0] - run.start(), absl::Seconds(10));
}

// A stall of 200 ms delays the sending of 200 queries: each is charged for the
// time since it was due. From the time of sending, all but one would show 0.
TEST(OpenLoopTest, AStallIsChargedToEveryQueryThatWasDue) {
  JumpingClock clock;
  FakeSystem system([&clock](size_t query) {
    if (query == 100) clock.Advance(absl::Milliseconds(200));
    return absl::StatusCode::kOk;
  });
  const auto schedule = EveryMillisecond(1000);
  const auto results = OpenLoopRun(clock, schedule, {}).Run(system);
  EXPECT_EQ(results[99].latency, absl::ZeroDuration());
  EXPECT_EQ(results[100].latency, absl::Milliseconds(200));
  EXPECT_EQ(results[100].lateness, absl::ZeroDuration());
  EXPECT_EQ(results[101].latency, absl::Milliseconds(199));
  EXPECT_EQ(results[101].lateness, absl::Milliseconds(199));
  EXPECT_EQ(results[300].latency, absl::ZeroDuration());

  const Measurement measured = Measure(schedule, results, absl::ZeroDuration(),
                                       absl::Seconds(1), std::nullopt);
  // The ten worst of a thousand are 200 … 191 ms.
  EXPECT_EQ(measured.latency.p99, absl::Milliseconds(190));
  EXPECT_EQ(measured.latency.p50, absl::ZeroDuration());
  EXPECT_EQ(measured.latency.max, absl::Milliseconds(200));
}

TEST(OpenLoopTest, CodesAreKept) {
  JumpingClock clock;
  FakeSystem system([](size_t query) {
    return query % 2 == 0 ? absl::StatusCode::kOk
                          : absl::StatusCode::kUnavailable;
  });
  const auto schedule = EveryMillisecond(4);
  const auto results = OpenLoopRun(clock, schedule, {}).Run(system);
  EXPECT_EQ(results[2].code, absl::StatusCode::kOk);
  EXPECT_EQ(results[3].code, absl::StatusCode::kUnavailable);
}

// Answers only when told to.
class SilentSystem : public SystemUnderTest {
 public:
  void Issue(size_t query, size_t, absl::Time, CompletionSink& sink) override {
    waiting_.push_back(query);
    if (query + 1 < answer_all_at_) return;
    for (size_t waiting : waiting_) sink.Done(waiting, absl::StatusCode::kOk);
    waiting_.clear();
  }
  size_t answer_all_at_ = 0;
  std::vector<size_t> waiting_;
};

TEST(OpenLoopTest, NeverWaitsForAnAnswer) {
  JumpingClock clock;
  SilentSystem system;
  system.answer_all_at_ = 50;
  const auto schedule = EveryMillisecond(50);
  const auto results = OpenLoopRun(clock, schedule, {}).Run(system);
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(results[i].lateness, absl::ZeroDuration());
    EXPECT_EQ(results[i].latency, absl::Milliseconds(49 - i));
  }
}

TEST(OpenLoopTest, RefusesMoreThanTheLimitInFlight) {
  JumpingClock clock;
  SilentSystem system;
  system.answer_all_at_ = 3;
  const auto schedule = EveryMillisecond(3);
  const auto results =
      OpenLoopRun(clock, schedule, {.max_in_flight = 3}).Run(system);
  EXPECT_EQ(results[2].code, absl::StatusCode::kOk);
  EXPECT_FALSE(results[2].dropped);

  FakeSystem unsent([](size_t) { return absl::StatusCode::kOk; });
  const auto refused =
      OpenLoopRun(clock, schedule, {.max_in_flight = 0}).Run(unsent);
  EXPECT_TRUE(unsent.issued().empty());
  for (const QueryResult& result : refused) {
    EXPECT_EQ(result.code, absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(result.dropped);
  }
}

TEST(OpenLoopTest, AServerThatIsExhaustedDropsNothing) {
  JumpingClock clock;
  FakeSystem system(
      [](size_t) { return absl::StatusCode::kResourceExhausted; });
  const auto results = OpenLoopRun(clock, EveryMillisecond(1), {}).Run(system);
  EXPECT_EQ(results[0].code, absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(results[0].dropped);
}

}  // namespace
}  // namespace refract::loadgen
