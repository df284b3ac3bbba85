// The scheduler's rules, by tables that were computed by hand.
#include <vector>

#include "gmock/gmock.h"
#include "gpu_node/scheduler/resident_set.h"
#include "gtest/gtest.h"
#include "scheduling/batch_policy.h"
#include "scheduling/execution_times.h"

namespace refract::gpu_node {
namespace {

using scheduling::ArrivalRate;
using scheduling::BatchCandidate;
using scheduling::BatchDecision;
using scheduling::BatchingOptions;
using scheduling::ExecutionTimes;
using scheduling::kNumBuckets;
using scheduling::RowsOfBucket;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1000);
absl::Time At(int us) { return kNow + absl::Microseconds(us); }
constexpr auto Us = [](double us) { return absl::Microseconds(us); };

// 100 µs + 1 µs a row.
ExecutionTimes LaunchBoundTimes() {
  ExecutionTimes times;
  for (int bucket = 0; bucket <= 12; ++bucket) {
    const int64_t rows = RowsOfBucket(bucket);
    times.Prime(rows, Us(100.0 + static_cast<double>(rows)));
  }
  return times;
}

std::vector<size_t> MembersOf(
    const std::vector<BatchCandidate>& candidates,
    const BatchingOptions& options,
    const ExecutionTimes& times = LaunchBoundTimes()) {
  return DecideBatch(candidates, options, times, {}, kNow).members;
}

TEST(BatchPolicyTest, MergesWhatPaysFitsAndIsInTime) {
  const absl::Time none = absl::InfiniteFuture();
  BatchingOptions on{.enabled = true, .max_rows = 64};
  const std::vector<BatchCandidate> three = {
      {8, none, kNow}, {8, none, kNow}, {8, none, kNow}};
  EXPECT_THAT(MembersOf(three, {.enabled = false}), ElementsAre(0));
  EXPECT_THAT(MembersOf(three, on), ElementsAre(0, 1, 2));
  // 40 rows more do not fit, 8 do.
  EXPECT_THAT(
      MembersOf({{30, none, kNow}, {40, none, kNow}, {8, none, kNow}}, on),
      ElementsAre(0, 2));
  // 16 rows take 116 µs: the first one's deadline allows that, but not 32.
  EXPECT_THAT(
      MembersOf({{8, At(120), kNow}, {8, none, kNow}, {16, none, kNow}}, on),
      ElementsAre(0, 1));
  // The same deadline, of the second request.
  EXPECT_THAT(
      MembersOf({{8, none, kNow}, {8, At(115), kNow}, {8, none, kNow}}, on),
      ElementsAre(0, 2));
  // Larger than any batch: alone.
  EXPECT_THAT(MembersOf({{100, none, kNow}, {1, none, kNow}}, on),
              ElementsAre(0));
  // Twice the rows, twice the time: nothing to gain.
  ExecutionTimes linear;
  for (int bucket = 0; bucket <= 8; ++bucket) {
    linear.Prime(RowsOfBucket(bucket), Us(10.0 * RowsOfBucket(bucket)));
  }
  EXPECT_THAT(MembersOf({{8, none, kNow}, {8, none, kNow}}, on, linear),
              ElementsAre(0));
  // Without execution times, merging is tried.
  EXPECT_THAT(MembersOf(three, on, ExecutionTimes()), ElementsAre(0, 1, 2));
}

TEST(BatchPolicyTest, PreferredSizesAreMadeExactly) {
  const absl::Time none = absl::InfiniteFuture();
  BatchingOptions options{.enabled = true,
                          .window = Us(1000),
                          .max_rows = 64,
                          .preferred_rows = {8, 16}};
  const std::vector<BatchCandidate> fives(5, {4, none, kNow});
  const ArrivalRate busy{.gap = Us(1), .rows = 4, .last = kNow};
  const BatchDecision full =
      DecideBatch(fives, options, LaunchBoundTimes(), busy, kNow);
  EXPECT_THAT(full.members, ElementsAre(0, 1, 2, 3));  // 16
  EXPECT_LE(full.wait_until, kNow);
  // 4 is none of them: it waits.
  EXPECT_GT(
      DecideBatch({{4, none, kNow}}, options, LaunchBoundTimes(), busy, kNow)
          .wait_until,
      kNow);
}

TEST(BatchPolicyTest, WaitsOnlyWhileItPays) {
  const absl::Time none = absl::InfiniteFuture();
  const ExecutionTimes times = LaunchBoundTimes();
  // Two of one row: 101 + 101 − 102 = 100 µs are saved.
  struct Case {
    const char* what;
    int window, gap, last, arrival, deadline;
    int wait_until;  // 0: none
  } const cases[] = {
      {"as long as a merge would save", 1000, 50, 0, 0, 0, 100},
      {"counted from the last arrival", 1000, 50, -30, -30, 0, 70},
      {"no longer than the window", 40, 50, 0, 0, 0, 40},
      {"counted from the oldest arrival", 40, 50, 0, -15, 0, 25},
      {"the window is over", 40, 50, 0, -40, 0, 0},
      {"no window", 0, 50, 0, 0, 0, 0},
      {"the next is far", 1000, 100, 0, 0, 0, 0},
      {"two rows must still be in time", 1000, 50, 0, 0, 150, 48},
      {"no time left for two", 1000, 50, 0, 0, 102, 0},
  };
  for (const Case& c : cases) {
    const BatchingOptions options{
        .enabled = true, .window = Us(c.window), .max_rows = 64};
    const ArrivalRate arrivals{Us(c.gap), 1, At(c.last)};
    const BatchDecision decision = DecideBatch(
        {{1, c.deadline == 0 ? none : At(c.deadline), At(c.arrival)}}, options,
        times, arrivals, kNow);
    if (c.wait_until == 0) {
      EXPECT_LE(decision.wait_until, kNow) << c.what;
    } else {
      EXPECT_EQ(decision.wait_until, At(c.wait_until)) << c.what;
    }
  }
  // A full batch has nothing to wait for, nor has one whose times are unknown.
  const BatchingOptions options{
      .enabled = true, .window = Us(1000), .max_rows = 4};
  const ArrivalRate busy{Us(1), 1, kNow};
  EXPECT_LE(
      DecideBatch({{4, none, kNow}}, options, times, busy, kNow).wait_until,
      kNow);
  EXPECT_LE(
      DecideBatch({{1, none, kNow}}, options, ExecutionTimes(), busy, kNow)
          .wait_until,
      kNow);
}

TEST(ResidentSetTest, EvictsTheLeastRecentlyUsedAndNoMoreThanNeeded) {
  ResidentSet set(100, {40, 40, 20, 50, 101});
  const std::vector<bool> all(5, true);
  for (const size_t model : {0, 1, 2}) {
    EXPECT_THAT(*set.PlanLoad(model, all), IsEmpty());
    set.BeginLoad(model);
    set.FinishLoad(model, true);
  }
  EXPECT_EQ(set.free(), 0);
  set.Touch(0);  // now 1 is the oldest, then 2
  EXPECT_THAT(*set.PlanLoad(3, all), ElementsAre(1, 2));
  EXPECT_THAT(*set.PlanLoad(3, {true, true, false, true, true}),
              ElementsAre(1, 0));
  EXPECT_FALSE(set.PlanLoad(3, {true, false, false, true, true}).has_value());
  set.Evict(1);
  set.Evict(2);
  EXPECT_THAT(*set.PlanLoad(3, all), IsEmpty());
  set.BeginLoad(3);
  EXPECT_EQ(set.free(), 10);
  set.FinishLoad(3, false);
  EXPECT_EQ(set.free(), 60);
  EXPECT_EQ(set.state(3), ResidentSet::State::kOut);

  EXPECT_TRUE(set.CheckFits(3).ok());
  const absl::Status too_large = set.CheckFits(4);
  EXPECT_EQ(too_large.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(too_large.message()),
              ::testing::AllOf(HasSubstr("need 101 bytes"),
                               HasSubstr("has 100"), HasSubstr("60 are free")));
  EXPECT_TRUE(ResidentSet(0, {size_t{1} << 50}).CheckFits(0).ok());
}

TEST(ResidentSetTest, SmallOnesStayWhereALargeOneMakesTheRoom) {
  ResidentSet set(100, {5, 60, 10, 70});
  const std::vector<bool> all(4, true);
  for (const size_t model : {0, 1, 2}) {
    set.BeginLoad(model);
    set.FinishLoad(model, true);
  }
  // 0 and 2 were used before 1.
  set.Touch(2);
  set.Touch(1);
  EXPECT_THAT(*set.PlanLoad(3, all), ElementsAre(1));
  // There is room for one of them: the model that was used later stays.
  ResidentSet tight(80, {5, 60, 10, 70});
  for (const size_t model : {0, 2, 1}) {
    tight.BeginLoad(model);
    tight.FinishLoad(model, true);
  }
  EXPECT_THAT(*tight.PlanLoad(3, all), ElementsAre(0, 1));
}

}  // namespace
}  // namespace refract::gpu_node
