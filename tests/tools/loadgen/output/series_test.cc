#include "tools/loadgen/output/series.h"

#include <algorithm>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::loadgen {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kWarmup = absl::Seconds(1);

// One query every 10 ms for 3 s, the first second of which is warm-up. The n-th
// after it takes n + 1 ms, but every tenth fails.
struct Load {
  Load() {
    for (int i = 0; i < 300; ++i) {
      schedule.push_back({.at = absl::Milliseconds(10 * i), .items = i});
      results.push_back({.code = absl::StatusCode::kOk,
                         .latency = absl::Milliseconds(i < 100 ? 9999 : i - 99),
                         .lateness = absl::Microseconds(i)});
      if (i % 10 == 9) results.back().code = absl::StatusCode::kUnavailable;
    }
  }
  std::vector<PlannedQuery> schedule;
  std::vector<QueryResult> results;
};

TEST(SeriesTest, PercentileCurveEndsAtTheGreatest) {
  const Load load;
  const auto curve = PercentileCurve(load.schedule, load.results, kWarmup);
  // 180 latencies: rest 2^(-k/4) until it is below one of them, then 1.
  ASSERT_EQ(curve.size(), 31u);
  EXPECT_EQ(curve[0].fraction, 0);
  EXPECT_EQ(curve[0].latency, absl::Milliseconds(1));
  EXPECT_DOUBLE_EQ(curve[4].fraction, 0.5);
  EXPECT_EQ(curve[4].latency, absl::Milliseconds(99));  // the 90th
  EXPECT_DOUBLE_EQ(curve[8].fraction, 0.75);
  EXPECT_EQ(curve[8].latency, absl::Milliseconds(149));  // the 135th
  EXPECT_EQ(curve.back().fraction, 1);
  EXPECT_EQ(curve.back().latency, absl::Milliseconds(199));
  EXPECT_TRUE(PercentileCurve({}, {}, kWarmup).empty());
}

TEST(SeriesTest, TimelineCountsWhatWasDue) {
  const Load load;
  const auto points = Timeline(load.schedule, load.results, kWarmup,
                               absl::Seconds(2), absl::Milliseconds(500));
  ASSERT_EQ(points.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(points[i].at, absl::Milliseconds(500 * i));
    EXPECT_EQ(points[i].queries, 50);
    EXPECT_EQ(points[i].succeeded, 45);
    EXPECT_EQ(points[i].max, absl::Milliseconds(50 * i + 49));
  }
  EXPECT_EQ(points[1].p50, absl::Milliseconds(75));  // the 23rd of 51 to 99
  // A stretch without queries.
  EXPECT_EQ(Timeline(load.schedule, load.results, kWarmup, absl::Seconds(9),
                     absl::Seconds(3))[1]
                .queries,
            0);
}

// A shorter last stretch would look like a rate that falls.
TEST(SeriesTest, TimelineEndsWithAWholeStretch) {
  for (const double seconds : {0.05, 0.25, 7.53, 10.0, 13.0, 60.0, 100.7}) {
    const absl::Duration duration = absl::Seconds(seconds);
    const absl::Duration width = TimelineWidth(duration);
    const auto points = Timeline({}, {}, kWarmup, duration, width);
    EXPECT_LE(points.size(), 120u);
    EXPECT_GE(width, std::min(duration, absl::Milliseconds(100)));
    EXPECT_LT(points.back().at + width - duration, absl::Microseconds(1))
        << seconds;
  }
}

TEST(SeriesTest, CsvHasALinePerQuery) {
  const std::vector<PlannedQuery> schedule = {
      {.at = absl::Milliseconds(500), .items = 3},
      {.at = absl::Milliseconds(1250), .items = 5},
      {.at = absl::Milliseconds(1500), .items = 6},
      {.at = absl::Milliseconds(2000), .items = 7}};
  const std::vector<QueryResult> results = {
      {},
      {.code = absl::StatusCode::kOk,
       .latency = absl::Microseconds(1500),
       .lateness = absl::Microseconds(20)},
      {.code = absl::StatusCode::kDeadlineExceeded,
       .latency = absl::Seconds(10)},
      {.dropped = true, .code = absl::StatusCode::kResourceExhausted}};
  std::ostringstream out;
  WriteQueriesCsv(schedule, results, kWarmup, out);
  EXPECT_EQ(out.str(),
            "due_s,items,sent_late_ms,latency_ms,outcome\n"
            "0.250000,5,0.020,1.500,OK\n"
            "0.500000,6,0.000,10000.000,DEADLINE_EXCEEDED\n"
            "1.000000,7,0.000,,DROPPED\n");
}

}  // namespace
}  // namespace refract::loadgen
