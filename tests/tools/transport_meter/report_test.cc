#include "tools/transport_meter/report.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/transport_meter/plan.h"

namespace refract::transport_meter {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(QuartilesTest, LeaveOutAndCountWhatIsNoTime) {
  const Quartiles q = QuartilesOf({{3.0, kNaN, 1.0, kInf, 2.0, 0.0, -1.0}});
  EXPECT_EQ(q.median, 2);
  EXPECT_EQ(q.q25, 1.5);
  EXPECT_EQ(q.q75, 2.5);
  EXPECT_EQ(q.used, 3);
  EXPECT_EQ(q.discarded, 4);
}

TEST(QuartilesTest, OfNothingAreNotANumber) {
  const Quartiles q = QuartilesOf({{kNaN, kInf}});
  EXPECT_TRUE(std::isnan(q.median));
  EXPECT_TRUE(std::isnan(q.q25));
  EXPECT_TRUE(std::isnan(q.q75));
  EXPECT_EQ(q.used, 0);
  EXPECT_EQ(q.discarded, 2);
}

// Drift that hits both halves of a round is not in the ratio; dividing the
// medians would show it.
TEST(PairedRatiosTest, RemoveWhatBothHalvesOfARoundShare) {
  const Quartiles q = PairedRatios({{2.0, 20.0, 4.0}}, {{1.0, 10.0, 2.0}});
  EXPECT_EQ(q.median, 2);
  EXPECT_EQ(q.q25, 2);
  EXPECT_EQ(q.q75, 2);
}

TEST(PairedRatiosTest, DiscardAPairWithOneBadHalf) {
  const Quartiles q =
      PairedRatios({{2.0, kInf, 6.0, 8.0, 5.0}}, {{1.0, 1.0, 2.0, 0.0, kNaN}});
  EXPECT_EQ(q.used, 2);
  EXPECT_EQ(q.discarded, 3);
  EXPECT_EQ(q.median, 2.5);
}

Row LatencyRow(std::string level, std::string name, size_t bytes,
               std::vector<double> p50) {
  Row row;
  row.point = {Op::kPingPong, Mode::kBusy, bytes};
  row.level = std::move(level);
  row.name = std::move(name);
  if (row.level == "raw")
    row.yardstick_of = row.name == "socket" ? "tcp" : "shm";
  row.iterations = 100;
  row.outstanding = 2;
  for (const double us : p50) {
    Figures figures = NoFigures();
    figures.p50_us = us;
    figures.p99_us = 2 * us;
    row.rounds.push_back(figures);
  }
  return row;
}

Row StreamRow(std::string level, std::string name, std::vector<double> rates) {
  Row row = LatencyRow(std::move(level), std::move(name), 64, {});
  row.point.op = Op::kStream;
  for (const double rate : rates) {
    row.rounds.push_back(NoFigures());
    row.rounds.back().bytes_per_s = rate;
  }
  return row;
}

Report SmallReport() {
  Report report;
  report.cpus = {0, 1};
  report.rows = {LatencyRow("raw", "socket", 64, {10, 20, NAN}),
                 LatencyRow("raw", "memory", 64, {1, 1, 1}),
                 LatencyRow("path", "tcp", 64, {15, 30, 40}),
                 LatencyRow("path", "tcp", 128, {7, 8, 9}),
                 StreamRow("raw", "socket", {4e9, 4e9}),
                 StreamRow("path", "tcp", {3e9, 2e9})};
  report.rows[0].error = "the peer does not answer";
  AddRatios(&report);
  return report;
}

TEST(ReportTest, HoldsEveryRowAgainstItsYardstickAtTheSamePoint) {
  const Report report = SmallReport();
  ASSERT_EQ(report.ratios.size(), 2u);
  EXPECT_EQ(report.ratios[0].subject, 2u);
  EXPECT_EQ(report.ratios[0].yardstick, 0u);
  EXPECT_EQ(report.ratios[0].quartiles.median, 1.5);
  EXPECT_EQ(report.ratios[0].quartiles.discarded, 1);
  EXPECT_EQ(report.ratios[1].subject, 5u);
  EXPECT_EQ(report.ratios[1].yardstick, 4u);
  EXPECT_EQ(report.ratios[1].quartiles.median, 0.625);
}

TEST(ReportTest, CsvHasOneLinePerRowAndAsManyFieldsAsItsHeader) {
  const std::vector<std::string> lines =
      absl::StrSplit(ReportCsv(SmallReport()), '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0],
            "op,mode,bytes,level,name,iterations,outstanding,rounds,discarded,"
            "p50_us,p50_us_q25,p50_us_q75,p99_us,one_way_us,"
            "bytes_per_s,bytes_per_s_q25,bytes_per_s_q75,"
            "yardstick,ratio,ratio_q25,ratio_q75,yardstick_of");
  EXPECT_EQ(
      lines[1],
      "pingpong,busy,64,raw,socket,100,2,3,1,15,12.5,17.5,30,7.5,,,,,,,,tcp");
  EXPECT_EQ(lines[3],
            "pingpong,busy,64,path,tcp,100,2,3,0,30,22.5,35,60,15,,,,"
            "raw socket,1.5,1.5,1.5,");
  EXPECT_EQ(lines[6],
            "stream,busy,64,path,tcp,100,2,2,0,,,,,,2.5e+09,2.25e+09,2.75e+09,"
            "raw socket,0.625,0.5625,0.6875,");
  for (const std::string& line : lines) {
    EXPECT_EQ(std::vector<std::string>(absl::StrSplit(line, ',')).size(), 22u)
        << line;
  }
}

TEST(ReportTest, TextShowsHalfRoundTripsRatiosAndLostRounds) {
  const std::string text = ReportText(SmallReport());
  const std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 8u) << text;
  EXPECT_EQ(lines[0], "pingpong, busy, µs one way (half the round trip)");
  EXPECT_THAT(lines[1], HasSubstr("7.50 [6.25, 8.75]"));
  EXPECT_THAT(lines[1], HasSubstr("1 of 3 rounds discarded: the peer does"));
  EXPECT_THAT(lines[3], HasSubstr("15.00 [11.25, 17.50]   1.50 [1.50, 1.50] x "
                                  "raw socket"));
  EXPECT_EQ(lines[5], "stream, busy, MB/s");
  EXPECT_THAT(lines[7], HasSubstr("2500.00 [2250.00, 2750.00]   0.62"));
}

TEST(PlanTest, OrdersPointsAndAddsTheChannelsOwnMode) {
  Config config;
  config.ops = {Op::kPingPong, Op::kStream};
  config.modes = {Mode::kEvent};
  config.sizes = {64, 1024};
  config.levels = {Level::kPath, Level::kChannel};
  std::vector<std::string> points;
  for (const Point& point : MakePoints(config)) {
    points.push_back(std::string(OpName(point.op)) + " " +
                     std::string(ModeName(point.mode)) + " " +
                     std::to_string(point.bytes));
  }
  EXPECT_THAT(points,
              ElementsAre("pingpong event 64", "pingpong event 1024",
                          "pingpong adaptive 64", "pingpong adaptive 1024",
                          "stream event 64", "stream event 1024",
                          "stream adaptive 64", "stream adaptive 1024"));
  config.levels = {Level::kChannel};
  EXPECT_EQ(MakePoints(config).size(), 4u);
}

TEST(PlanTest, BoundsWhatIsUnderWay) {
  Config config;
  config.window_bytes = 1 << 20;
  const auto outstanding = [&](Op op, size_t bytes) {
    return WorkFor(config, {op, Mode::kBusy, bytes}).outstanding;
  };
  EXPECT_EQ(outstanding(Op::kStream, 64), 128);
  EXPECT_EQ(outstanding(Op::kStream, 64 << 10), 16);
  EXPECT_EQ(outstanding(Op::kGetStream, 8 << 20), 2);
  EXPECT_EQ(outstanding(Op::kPingPong, 64), 2);
}

}  // namespace
}  // namespace refract::transport_meter
