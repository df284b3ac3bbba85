#include "tools/loadgen/report.h"

#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::loadgen {
namespace {

using ::testing::HasSubstr;

TEST(DescribeTest, IsNearestRank) {
  std::vector<absl::Duration> values;
  for (int i = 1000; i >= 1; --i) values.push_back(absl::Milliseconds(i));
  const Distribution d = Describe(values);
  EXPECT_EQ(d.p50, absl::Milliseconds(500));
  EXPECT_EQ(d.p90, absl::Milliseconds(900));
  EXPECT_EQ(d.p95, absl::Milliseconds(950));
  EXPECT_EQ(d.p99, absl::Milliseconds(990));
  EXPECT_EQ(d.p999, absl::Milliseconds(999));
  EXPECT_EQ(d.max, absl::Milliseconds(1000));
  EXPECT_EQ(d.mean, absl::Microseconds(500'500));
  EXPECT_EQ(Describe({absl::Seconds(3)}).p50, absl::Seconds(3));
  EXPECT_EQ(Describe({}).max, absl::ZeroDuration());
}

// One query per 100 ms for 2 s, of which 1 s is warm-up; every latency 10 ms.
struct OneRun {
  std::vector<PlannedQuery> schedule;
  std::vector<QueryResult> results;
  Measurement Measured(std::optional<absl::Duration> slo = std::nullopt) {
    return Measure(schedule, results, absl::Seconds(1), absl::Seconds(1), slo);
  }
};
OneRun Steady() {
  OneRun run;
  for (int i = 0; i < 20; ++i) {
    run.schedule.push_back({.at = absl::Milliseconds(100 * i), .items = 5});
    run.results.push_back({.code = absl::StatusCode::kOk,
                           .latency = absl::Milliseconds(10),
                           .lateness = absl::Microseconds(20)});
  }
  return run;
}

TEST(MeasureTest, CountsOnlyWhatWasDueAfterTheWarmUp) {
  OneRun run = Steady();
  run.results[9].latency = absl::Seconds(1);  // still warm-up
  const Measurement m = run.Measured();
  EXPECT_EQ(m.queries, 10);
  EXPECT_EQ(m.succeeded, 10);
  EXPECT_EQ(m.items, 50);
  EXPECT_EQ(m.window, absl::Seconds(1));
  EXPECT_DOUBLE_EQ(m.offered_qps, 10);
  EXPECT_DOUBLE_EQ(m.achieved_qps, 10);
  EXPECT_DOUBLE_EQ(m.items_per_s, 50);
  EXPECT_EQ(m.latency.max, absl::Milliseconds(10));
  EXPECT_EQ(m.lateness.p50, absl::Microseconds(20));
}

TEST(MeasureTest, ABacklogLengthensTheWindow) {
  OneRun run = Steady();
  run.results[19].latency = absl::Milliseconds(1100);  // due at 1.9 s
  const Measurement m = run.Measured();
  EXPECT_EQ(m.window, absl::Seconds(2));
  EXPECT_DOUBLE_EQ(m.offered_qps, 10);
  EXPECT_DOUBLE_EQ(m.achieved_qps, 5);
}

// One lost query of ten must not make the rate a sixth.
TEST(MeasureTest, ATimeoutLengthensNoWindow) {
  OneRun run = Steady();
  run.results[19] = {.code = absl::StatusCode::kDeadlineExceeded,
                     .latency = absl::Seconds(5)};
  const Measurement m = run.Measured();
  EXPECT_EQ(m.window, absl::Seconds(1));
  EXPECT_DOUBLE_EQ(m.achieved_qps, 9);
}

TEST(MeasureTest, ErrorsCountAgainstTheSloAndNotAsLatencies) {
  OneRun run = Steady();
  run.results[12] = {.code = absl::StatusCode::kUnavailable,
                     .latency = absl::Microseconds(1)};
  run.results[13].latency = absl::Milliseconds(50);
  const Measurement m = run.Measured(absl::Milliseconds(20));
  EXPECT_EQ(m.succeeded, 9);
  EXPECT_EQ(m.errors.at(absl::StatusCode::kUnavailable), 1);
  EXPECT_EQ(m.latency.p50, absl::Milliseconds(10));
  EXPECT_EQ(m.within_slo, 8);
  EXPECT_DOUBLE_EQ(m.goodput_qps, 8);
  EXPECT_FALSE(m.MeetsSlo());
}

TEST(MeasureTest, DropsAreCountedApartAndFailTheRun) {
  OneRun run = Steady();
  EXPECT_TRUE(run.Measured().NoneFailed());
  run.results[5] = {.dropped = true};  // warm-up
  EXPECT_TRUE(run.Measured().NoneFailed());
  run.results[12] = {.dropped = true,
                     .code = absl::StatusCode::kResourceExhausted};
  run.results[13].code = absl::StatusCode::kResourceExhausted;
  const Measurement m = run.Measured(absl::Milliseconds(20));
  EXPECT_EQ(m.queries, 10);
  EXPECT_EQ(m.dropped, 1);
  EXPECT_EQ(m.succeeded, 8);
  EXPECT_EQ(m.errors.at(absl::StatusCode::kResourceExhausted), 1);
  EXPECT_FALSE(m.NoneFailed());
  std::ostringstream out;
  Print(m, out);
  EXPECT_THAT(out.str(), HasSubstr("1 failed, 1 dropped unsent"));
}

TEST(MeasureTest, TheSloBindsTheP99) {
  OneRun run;
  for (int i = 0; i < 1000; ++i) {
    run.schedule.push_back({.at = absl::Seconds(1) + absl::Milliseconds(i)});
    run.results.push_back({.code = absl::StatusCode::kOk,
                           .latency = absl::Milliseconds(i < 10 ? 30 : 5)});
  }
  EXPECT_TRUE(run.Measured(absl::Milliseconds(20)).MeetsSlo());
  run.results[500].latency = absl::Milliseconds(30);
  EXPECT_FALSE(run.Measured(absl::Milliseconds(20)).MeetsSlo());
}

TEST(MeasureTest, NothingMeasuredMeetsNothing) {
  const Measurement m = Measure({}, {}, absl::Seconds(1), absl::Seconds(1),
                                absl::Milliseconds(20));
  EXPECT_EQ(m.queries, 0);
  EXPECT_FALSE(m.MeetsSlo());
}

TEST(PrintTest, SaysWhenTheClientWasLate) {
  OneRun run = Steady();
  std::ostringstream fine;
  Print(run.Measured(), fine);
  EXPECT_THAT(fine.str(), Not(HasSubstr("client itself was late")));
  for (QueryResult& result : run.results) {
    result.lateness = absl::Milliseconds(5);
  }
  std::ostringstream late;
  Print(run.Measured(), late);
  EXPECT_THAT(late.str(), HasSubstr("client itself was late"));
}

}  // namespace
}  // namespace refract::loadgen
