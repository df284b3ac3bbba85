// The rules of scheduling, by tables that were computed by hand.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/admission.h"
#include "scheduling/deficit_round_robin.h"
#include "scheduling/execution_times.h"

namespace refract::scheduling {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1000);
absl::Time AtUs(int us) { return kNow + absl::Microseconds(us); }
constexpr auto Us = [](double us) { return absl::Microseconds(us); };

TEST(ExecutionTimesTest, BucketsArePowersOfTwo) {
  const std::pair<int64_t, int> cases[] = {{-1, 0}, {0, 0},  {1, 0}, {2, 1},
                                           {3, 2},  {4, 2},  {5, 3}, {8, 3},
                                           {9, 4},  {64, 6}, {65, 7}};
  for (const auto& [rows, bucket] : cases) {
    EXPECT_EQ(BucketOf(rows), bucket) << rows;
    EXPECT_GE(RowsOfBucket(bucket), rows);
  }
}

TEST(ExecutionTimesTest, MedianAndNinetiethOfTheLastOnes) {
  ExecutionTimes times;
  EXPECT_FALSE(times.known(kNow));
  EXPECT_EQ(times.Typical(5, kNow), absl::ZeroDuration());
  for (int i = 1; i <= 10; ++i) times.Record(5, Us(10 * i), kNow);
  EXPECT_EQ(times.Typical(7, kNow), Us(50));  // same bucket as 5
  EXPECT_EQ(times.High(8, kNow), Us(90));
  // A window of 32: the ten above are forgotten.
  for (int i = 0; i < 32; ++i) times.Record(5, Us(7), kNow);
  EXPECT_EQ(times.High(5, kNow), Us(7));
}

TEST(ExecutionTimesTest, WhatIsNotKnownIsTakenFromItsNeighbours) {
  ExecutionTimes times;
  times.Record(16, Us(100), kNow);
  EXPECT_EQ(times.Typical(1, kNow), Us(100));   // at most
  EXPECT_EQ(times.Typical(64, kNow), Us(200));  // √4
  EXPECT_EQ(times.High(64, kNow), Us(200));
  times.Record(64, Us(148), kNow);
  EXPECT_EQ(times.Typical(32, kNow), Us(116));   // a third of the way
  EXPECT_EQ(times.Typical(128, kNow), Us(212));  // 1 µs for each more
  // The last bucket counts, and buckets whose times are forgotten do not.
  times.Record(int64_t{1} << 40, Us(1000), kNow);
  EXPECT_EQ(times.Typical(int64_t{1} << 31, kNow), Us(1000));
  const absl::Time later = kNow + 2 * ExecutionTimes::kMemory;
  times.Record(256, Us(500), later);
  EXPECT_EQ(times.Typical(16, later), Us(500));
  EXPECT_EQ(times.Typical(1024, later), Us(1000));  // √4
}

TEST(ExecutionTimesTest, OldOnesGiveWayToTheWarmUp) {
  ExecutionTimes times;
  times.Prime(4, Us(20));
  EXPECT_EQ(times.Typical(4, kNow), Us(20));
  times.Record(4, Us(90), kNow);
  EXPECT_EQ(times.Typical(4, kNow), Us(90));
  const absl::Time later = kNow + ExecutionTimes::kMemory + Us(1);
  EXPECT_EQ(times.Typical(4, later), Us(20));
  times.Record(4, Us(30), later);  // alone: the window began anew
  EXPECT_EQ(times.High(4, later), Us(30));
}

TEST(ExecutionTimesTest, AFastOneAfterAPauseMakesTheSlowOnesForgotten) {
  ExecutionTimes times;
  for (int i = 0; i < 32; ++i) times.Record(4, Us(90), kNow);
  times.Record(4, Us(30), kNow + ExecutionTimes::kPause);  // no pause
  EXPECT_EQ(times.Typical(4, kNow), Us(90));
  const absl::Time later = kNow + 2 * ExecutionTimes::kPause + Us(1);
  times.Record(4, Us(46), later);  // not even half
  EXPECT_EQ(times.Typical(4, later), Us(90));
  const absl::Time last = later + ExecutionTimes::kPause + Us(1);
  times.Record(4, Us(44), last);
  EXPECT_EQ(times.Typical(4, last), Us(44));
  EXPECT_EQ(times.High(4, last), Us(44));
}

TEST(AdmissionTest, WorkFillsTheInstancesThatAreFreeFirst) {
  struct Case {
    std::vector<int> free_at;
    int ahead;
    int start;
  } const cases[] = {
      {{0}, 0, 0},       {{-5}, 0, 0},          {{0}, 30, 30},
      {{10}, 30, 40},    {{0, 0}, 30, 15},      {{0, 10}, 0, 0},
      {{0, 10}, 10, 10}, {{0, 10}, 6, 6},       {{0, 10}, 30, 20},
      {{20, 10}, 4, 14}, {{0, 10, 40}, 30, 20}, {{0, 10, 40}, 100, 50},
  };
  for (const Case& c : cases) {
    std::vector<absl::Time> free_at;
    for (const int us : c.free_at) free_at.push_back(AtUs(us));
    EXPECT_EQ(PredictStart(kNow, free_at, Us(c.ahead)), AtUs(c.start))
        << ::testing::PrintToString(c.free_at) << " " << c.ahead;
  }
  EXPECT_EQ(PredictStart(kNow, {}, Us(1)), absl::InfiniteFuture());
}

TEST(AdmissionTest, OthersRunTheirShareMeanwhileAndNoMoreThanTheyHave) {
  EXPECT_EQ(CompetingWork(Us(10), 1, {}), Us(0));
  EXPECT_EQ(CompetingWork(Us(10), 1, {{Us(100), 1}}), Us(10));
  EXPECT_EQ(CompetingWork(Us(10), 2, {{Us(100), 1}}), Us(5));
  EXPECT_EQ(CompetingWork(Us(10), 1, {{Us(100), 3}, {Us(4), 1}}), Us(34));
}

AdmissionSnapshot Snapshot(absl::Span<const absl::Time> free_at, int ahead,
                           int own, absl::Time deadline) {
  AdmissionSnapshot snapshot;
  snapshot.now = kNow;
  snapshot.deadline = deadline;
  snapshot.free_at = free_at;
  snapshot.ahead = Us(ahead);
  snapshot.own = Us(own);
  return snapshot;
}

TEST(AdmissionTest, RefusesWhatCannotBeDoneInTime) {
  struct Case {
    int busy, ahead, own, deadline;
    bool admitted;
  } const cases[] = {
      {0, 0, 10, 10, true}, {0, 0, 10, 9, false},  {5, 0, 10, 14, false},
      {5, 0, 10, 15, true}, {5, 7, 10, 21, false}, {5, 7, 10, 22, true},
      {0, 0, 0, 1, true},
  };
  for (const Case& c : cases) {
    const absl::Time free_at[] = {AtUs(c.busy)};
    const std::optional<Refusal> refusal =
        DecideAdmission(Snapshot(free_at, c.ahead, c.own, AtUs(c.deadline)));
    EXPECT_EQ(!refusal.has_value(), c.admitted) << c.busy << " " << c.deadline;
    if (!refusal.has_value()) continue;
    EXPECT_EQ(refusal->kind, Refusal::Kind::kTooLate);
    EXPECT_EQ(refusal->status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refusal->status.message()),
                HasSubstr(absl::FormatDuration(Us(c.deadline))));
  }
  // No other node could be in time either.
  const absl::Time free_now[] = {AtUs(0)};
  for (const bool possible : {false, true}) {
    AdmissionSnapshot snapshot =
        Snapshot(free_now, 0, 30, AtUs(possible ? 10 : 9));
    snapshot.own_at_best = Us(10);
    EXPECT_EQ(DecideAdmission(snapshot)->status.code(),
              possible ? absl::StatusCode::kResourceExhausted
                       : absl::StatusCode::kDeadlineExceeded);
  }
  const absl::Time later[] = {AtUs(1 << 30)};
  for (const absl::Time deadline : {absl::InfiniteFuture(), AtUs(-1)}) {
    EXPECT_FALSE(DecideAdmission(Snapshot(later, 1 << 30, 1 << 30, deadline)));
  }
  EXPECT_FALSE(DecideAdmission(Snapshot({}, 10, 10, AtUs(1))));
}

TEST(AdmissionTest, RefusesWhatHasNoRoomAndWhatNoInstanceTakes) {
  using Kind = Refusal::Kind;
  struct Case {
    const char* what;
    std::function<void(AdmissionSnapshot&)> change;
    std::optional<Kind> kind;
  } const cases[] = {
      {"as it is", [](AdmissionSnapshot&) {}, std::nullopt},
      {"the node is full", [](auto& s) { s.node_queue = 8; }, Kind::kQueueFull},
      {"the node is full, but its part is not",
       [](auto& s) { s.node_queue = 8, s.quota = 3; }, std::nullopt},
      {"the model is full", [](auto& s) { s.model_queue = 4; },
       Kind::kQueueFull},
      {"too many rows", [](auto& s) { s.rows = 65, s.divisible = false; },
       Kind::kTooLarge},
      {"many rows", [](auto& s) { s.rows = 65; }, std::nullopt},
      {"no instance",
       [](auto& s) { s.available = absl::UnavailableError("lost"); },
       Kind::kUnavailable},
  };
  for (const Case& c : cases) {
    AdmissionSnapshot snapshot;
    snapshot.now = kNow;
    snapshot.most_rows = 64;
    snapshot.node_places = 8;
    snapshot.node_queue = 7;
    snapshot.model_places = 4;
    snapshot.model_queue = 2;
    c.change(snapshot);
    const std::optional<Refusal> refusal = DecideAdmission(snapshot);
    EXPECT_EQ(refusal.has_value(), c.kind.has_value()) << c.what;
    if (!refusal.has_value()) continue;
    EXPECT_EQ(refusal->kind, *c.kind) << c.what;
  }
}

TEST(JudgeTest, DropsWhatNobodyCanUse) {
  struct Case {
    absl::Time deadline;
    bool abandoned;
    int time_us;
    Verdict verdict;
  } const cases[] = {
      {AtUs(11), false, 0, Verdict::kRun},
      {AtUs(11), false, 1, Verdict::kRun},
      {AtUs(11), false, 2, Verdict::kDropHopeless},
      {AtUs(10), false, 0, Verdict::kDropExpired},
      {AtUs(9), false, 0, Verdict::kDropExpired},
      {absl::InfiniteFuture(), false, 1000, Verdict::kRun},
      {AtUs(11), true, 0, Verdict::kDropAbandoned},
      {AtUs(9), true, 0, Verdict::kDropAbandoned},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Judge(c.deadline, c.abandoned, Us(c.time_us), AtUs(10)),
              c.verdict)
        << c.deadline << " " << c.abandoned << " " << c.time_us;
  }
}

// 100 µs + 1 µs a row.
ExecutionTimes LaunchBound() {
  ExecutionTimes times;
  for (int bucket = 0; bucket <= 12; ++bucket) {
    const int64_t rows = RowsOfBucket(bucket);
    times.Prime(rows, Us(100.0 + static_cast<double>(rows)));
  }
  return times;
}

// Names of the models that take `turns` of 10 µs each, all of which have work.
std::string Turns(DeficitRoundRobin& robin, size_t models, int turns) {
  std::string order;
  for (int i = 0; i < turns; ++i) {
    size_t next = 0;
    for (size_t model = 1; model < models; ++model) {
      if (robin.Before(model, next)) next = model;
    }
    robin.TakeTurn(next, Us(10));
    order += static_cast<char>('a' + next);
  }
  return order;
}

TEST(DeficitRoundRobinTest, TurnsAreDividedByShares) {
  DeficitRoundRobin robin({1, 3}, 1);
  EXPECT_EQ(Turns(robin, 2, 12), "abbbabbbabbb");
  DeficitRoundRobin equal({1, 1, 1}, 1);
  EXPECT_EQ(Turns(equal, 3, 6), "abcabc");
}

TEST(DeficitRoundRobinTest, AModelThatUsesLessThanItsShareGoesFirst) {
  DeficitRoundRobin robin({1, 1}, 1);
  for (int i = 0; i < 1000; ++i) {
    for (int k = 0; k < 3; ++k) robin.TakeTurn(0, Us(10));
    EXPECT_FALSE(robin.BelowShare(0));
    EXPECT_TRUE(robin.BelowShare(1)) << i;
    EXPECT_TRUE(robin.Before(1, 0));
    robin.TakeTurn(1, Us(10));
  }
}

TEST(DeficitRoundRobinTest, WhoWasIdleMayCatchUpButNotWithoutEnd) {
  // Two of four instances are the share of each: 2 s of them in a second.
  for (const bool idle : {false, true}) {
    DeficitRoundRobin robin({1, 1}, 4);
    const absl::Duration turn = DeficitRoundRobin::kMemory / 5;
    if (idle) {
      robin.PassIdle(absl::Hours(1));
      for (int i = 0; i < 10; ++i) robin.TakeTurn(0, turn);
    } else {
      for (int i = 0; i < 1000; ++i) robin.TakeTurn(0, turn);
    }
    int in_a_row = 0;
    while (robin.Before(1, 0)) {
      robin.TakeTurn(1, turn);
      ++in_a_row;
    }
    EXPECT_GE(in_a_row, 10);
    EXPECT_LE(in_a_row, 12);  // sums are rounded
    EXPECT_FALSE(robin.BelowShare(1));
  }
}

TEST(DeficitRoundRobinTest, WhatTookLongerIsPaidFor) {
  DeficitRoundRobin robin({1, 1}, 1);
  robin.TakeTurn(0, Us(10));
  robin.TakeTurn(1, Us(10));
  robin.Correct(1, Us(25));
  EXPECT_TRUE(robin.Before(0, 1));
  robin.Correct(1, -Us(30));
  EXPECT_TRUE(robin.Before(1, 0));
}

// 2 own, or 50 ms, or a fifth of the other's time.
TEST(DeficitRoundRobinTest, TurnsAreShortBesideAQuickModel) {
  struct Case {
    double own_us, other_us, longest_us;
  } const cases[] = {
      {10, 1000, 200},   {99, 1000, 200},   {150, 1000, 300},
      {500, 1000, 1000}, {10, 1e6, 50'000}, {30'000, 1e6, 60'000},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Quantum(Us(c.own_us), Us(c.other_us)), Us(c.longest_us))
        << c.own_us << " " << c.other_us;
  }
  EXPECT_EQ(Quantum(Us(5), absl::InfiniteDuration()), absl::Milliseconds(50));
}

TEST(DeficitRoundRobinTest, RowsThatAreExecutedInTime) {
  const ExecutionTimes times = LaunchBound();  // 100 us + 1 us a row
  struct Case {
    double longest_us;
    int64_t least, most, rows;
  } const cases[] = {
      {164, 1, 1024, 64}, {163, 1, 1024, 32},   {50, 1, 1024, 1},
      {50, 2, 1024, 2},   {1e6, 1, 1024, 1024}, {1e6, 1, 100, 100},
      {150, 1, 100, 32},  {164, 1, 40, 40},     {164, 3, 1024, 64},
      {50, 5, 5, 5},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(RowsWithin(Us(c.longest_us), times, c.least, c.most, kNow),
              c.rows)
        << c.longest_us << " " << c.least << " " << c.most;
  }
}

}  // namespace
}  // namespace refract::scheduling
