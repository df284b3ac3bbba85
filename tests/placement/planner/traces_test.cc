#include "placement/planner/traces.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "placement/planner/recording.h"

namespace refract::placement {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kStart = 1'795'731'327'000'000'000;

// Microseconds of the stages of a request, which begins at `at`.
struct Stages {
  int64_t at = 0;
  int64_t decode = 100;
  int64_t cn_queue = 0;
  int64_t pre = 400;
  int64_t to_hn = 50;
  int64_t hn_queue = 20;
  int64_t execute = 1000;
  int64_t to_cn = 50;
  int64_t resume = 30;
  int64_t post = 200;
  int rows = 64;
  const char* model = "dlrm";
  const char* gpu_node = "10.0.0.2:8100";
};

// A line as tracing/export.cc writes it. The HN's clock is an hour ahead.
std::string Line(const Stages& one) {
  int64_t now = one.at;
  std::string spans;
  const auto span = [&](const char* name, int64_t begin, int64_t time,
                        const std::string& attributes = "") {
    absl::StrAppend(&spans, spans.empty() ? "" : ",", "{\"name\":\"", name,
                    "\",\"startTimeUnixNano\":\"", kStart + begin * 1000,
                    "\",\"endTimeUnixNano\":\"", kStart + (begin + time) * 1000,
                    "\",\"attributes\":[", attributes, "]}");
  };
  const auto next = [&](const char* name, int64_t time) {
    span(name, now, time);
    now += time;
  };
  next("decode", one.decode);
  next("cn_queue", one.cn_queue);
  next("cn_pre", one.pre);
  const int64_t there = one.hn_queue + one.execute;
  span("gpu_node", now, one.to_hn + there + one.to_cn,
       absl::StrCat(R"({"key":"server.address","value":{"stringValue":")",
                    one.gpu_node, "\"}}"));
  const int64_t hn = now + one.to_hn + int64_t{3'600'000'000};
  now += one.to_hn + there + one.to_cn;
  next("resume", one.resume);
  next("cn_post", one.post);
  span("request", one.at, now - one.at,
       absl::StrCat(R"({"key":"refract.model","value":{"stringValue":")",
                    one.model,
                    R"("}},{"key":"refract.rows","value":{"intValue":")",
                    one.rows, "\"}}"));
  std::string all = absl::StrCat(
      R"({"resourceSpans":[{"scopeSpans":[{"spans":[)", spans, "]}]},");
  spans.clear();
  span("hn_request", hn, there);
  span("hn_queue", hn, one.hn_queue);
  span("hn_execute", hn + one.hn_queue, one.execute);
  return absl::StrCat(all, R"({"scopeSpans":[{"spans":[)", spans, "]}]}]}\n");
}

std::string File(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

// 200 requests, 10 ms apart; the 100th to 119th meet a machine that takes four
// times as long for everything.
std::string SlowPhase(const Stages& usual = {}) {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    Stages one = usual;
    one.at = i * 10'000;
    if (i >= 100 && i < 120) {
      one.decode *= 4;
      one.pre *= 4;
      one.execute *= 4;
      one.to_hn *= 4;
      one.to_cn *= 4;
      one.resume *= 4;
      one.post *= 4;
    }
    text += Line(one);
  }
  return text;
}

std::string ErrorOf(const std::string& text, const std::string& model = "") {
  const auto costs = CostsFromTraces({{File("error.jsonl", text)}, model});
  EXPECT_FALSE(costs.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(costs.status()));
  return std::string(costs.status().message());
}

TEST(Traces, GiveTheTimesOfStages) {
  const auto costs = CostsFromTraces(
      {{File("slow.jsonl", SlowPhase())}, "", /*client_s=*/0.002});
  ASSERT_TRUE(costs.ok()) << costs.status();
  ASSERT_TRUE(Check(*costs).ok()) << Check(*costs);
  ASSERT_EQ(costs->points.size(), 1u);
  const RequestCost& point = costs->points[0];
  EXPECT_EQ(point.rows, 64);
  EXPECT_NEAR(point.cn_pre_s, 500e-6, 1e-8);
  EXPECT_NEAR(point.cn_post_s, 230e-6, 1e-8);
  EXPECT_NEAR(point.hn_s, 1000e-6, 1e-8);
  EXPECT_NEAR(costs->round_trip_s, 100e-6 + 0.002, 1e-8);
  // 20 of 200 take four times as long.
  EXPECT_NEAR(costs->cn.Mean(), 1.3, 1e-6);
  EXPECT_NEAR(costs->hn.Mean(), 1.3, 1e-6);
  EXPECT_THAT(costs->source, HasSubstr("traces of 200 of 200 requests"));
}

TEST(Traces, GiveSpeedsByTime) {
  const auto costs = CostsFromTraces({{File("slow.jsonl", SlowPhase())}, ""});
  ASSERT_TRUE(costs.ok()) << costs.status();
  const Recording& recording = *costs->recording;
  EXPECT_NEAR(recording.length(), 199 * 0.01 + 1850e-6, 1e-6);
  EXPECT_NEAR(recording.cn.TimeFor(0.5, 1e-3), 1e-3, 1e-8);
  EXPECT_NEAR(recording.hn.TimeFor(0.5, 1e-3), 1e-3, 1e-8);
  EXPECT_NEAR(recording.WayAt(0.5), 100e-6, 1e-8);
  // Between slow works the machine is slow, too, whatever the request.
  EXPECT_NEAR(recording.cn.TimeFor(1.105, 1e-3), 4e-3, 1e-8);
  EXPECT_NEAR(recording.hn.TimeFor(1.106, 1e-3), 4e-3, 1e-8);
  EXPECT_NEAR(recording.WayAt(1.1051), 400e-6, 1e-8);
  // The pause after the slow phase, 1.19 s and the last slow request, is not
  // known to be slow. 3 ms of work begin 2 ms before the end of the last
  // slow execution: it does 0.5 ms in them.
  const double end = 1.19 + 4 * (500e-6 + 50e-6) + 20e-6 + 4e-3;
  EXPECT_NEAR(recording.hn.TimeFor(end - 2e-3, 3e-3), 2e-3 + 2.5e-3, 1e-7);
}

TEST(Traces, HaveAPointForEachNumberOfRows) {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    const int rows = i % 3 == 0 ? 8 : 256;
    text += Line({.at = i * 10'000,
                  .pre = 100 + rows,
                  .execute = 10 * rows,
                  .rows = rows});
  }
  const auto costs = CostsFromTraces({{File("rows.jsonl", text)}, "dlrm"});
  ASSERT_TRUE(costs.ok()) << costs.status();
  ASSERT_EQ(costs->points.size(), 2u);
  EXPECT_NEAR(costs->points[0].hn_s, 80e-6, 1e-9);
  EXPECT_NEAR(costs->points[1].hn_s, 2560e-6, 1e-9);
  EXPECT_NEAR(costs->points[1].cn_pre_s, 456e-6, 1e-9);
  // Sizes do not count as slow phases.
  EXPECT_NEAR(costs->recording->hn.TimeFor(0.7, 1e-3), 1e-3, 1e-8);
  // Many numbers of rows: medians of groups, which ascend.
  text.clear();
  for (int i = 0; i < 400; ++i) {
    const int rows = 1 + i % 200;
    text += Line({.at = i * 10'000, .execute = 10 * rows, .rows = rows});
  }
  const auto many = CostsFromTraces({{File("many.jsonl", text)}, ""});
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_EQ(many->points.size(), 8u);
  EXPECT_TRUE(Check(*many).ok()) << Check(*many);
  EXPECT_NEAR(many->At(100).hn_s, 1000e-6, 20e-6);
}

TEST(Traces, OfSeveralFilesFollowEachOther) {
  const std::string usual = File("usual.jsonl", [] {
    std::string text;
    for (int i = 0; i < 200; ++i) text += Line({.at = i * 10'000});
    return text;
  }());
  const std::string slow = File("slow.jsonl", SlowPhase());
  const auto costs = CostsFromTraces({{usual, slow}, ""});
  ASSERT_TRUE(costs.ok()) << costs.status();
  const double first = 199 * 0.01 + 1850e-6;
  EXPECT_NEAR(costs->recording->length(), 2 * first, 1e-6);
  EXPECT_NEAR(costs->recording->hn.TimeFor(1.106, 1e-3), 1e-3, 1e-8);
  EXPECT_NEAR(costs->recording->hn.TimeFor(first + 1.106, 1e-3), 4e-3, 1e-8);
}

TEST(Traces, OfTheBusiestGpuNodeCount) {
  std::string text = SlowPhase();
  for (int i = 0; i < 150; ++i) {
    text += Line({.at = i * 10'000, .execute = 9000, .gpu_node = "10.0.0.3:1"});
  }
  const auto costs = CostsFromTraces({{File("two.jsonl", text)}, ""});
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_NEAR(costs->points[0].hn_s, 1000e-6, 1e-8);
  EXPECT_THAT(costs->source, HasSubstr("traces of 200 of 350 requests"));
}

TEST(Traces, NamesWhatIsWrong) {
  EXPECT_THAT(ErrorOf("\n{}\n"), HasSubstr("error.jsonl:2: is no trace"));
  EXPECT_THAT(ErrorOf("{\"resourceSpans\":[{\"scopeSpans\":7},3]}\n"),
              HasSubstr("has 0 traces"));
  EXPECT_THAT(ErrorOf("at_s\n"), HasSubstr("error.jsonl:1: is no trace"));
  EXPECT_THAT(ErrorOf(Line({})), HasSubstr("has 1 traces of requests of model "
                                           "'dlrm' that a GPU node executed; "
                                           "at least 100"));
  EXPECT_THAT(ErrorOf(SlowPhase(), "din"), HasSubstr("has 0 traces"));
  EXPECT_THAT(ErrorOf(SlowPhase() + SlowPhase({.model = "din"})),
              HasSubstr("models din, dlrm: say which"));
  EXPECT_THAT(ErrorOf(SlowPhase() + SlowPhase()),
              HasSubstr("record without --batching-window-us"));
  const auto missing = CostsFromTraces({{"/no/such.jsonl"}, ""});
  EXPECT_THAT(std::string(missing.status().message()),
              StartsWith("/no/such.jsonl: cannot be read"));
}

TEST(Traces, ThatCoverNoTimeAreRefused) {
  // The executions differ, the requests that they belong to have no length.
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += absl::StrReplaceAll(
        Line({.at = 0, .decode = 0, .pre = 0, .to_hn = 0, .hn_queue = 0,
              .execute = 0, .to_cn = 0, .resume = 0, .post = 0}),
        {{absl::StrCat(kStart + int64_t{3'600'000'000'000}),
          absl::StrCat(kStart + int64_t{3'600'000'000'000} + i)}});
  }
  EXPECT_THAT(ErrorOf(text),
              HasSubstr("all requests begin and end at one moment"));
}

TEST(SpeedTimeline, IntegratesSpeeds) {
  SpeedTimeline timeline;
  // Speed 1 for a second, 1/2 for two, then both: the mean of 1/2 and 1.
  timeline.Append({{0, 1, 1}, {1, 4, 1.5}, {3, 4, 1}}, 4);
  EXPECT_NEAR(timeline.TimeFor(0.25, 0.5), 0.5, 1e-12);
  EXPECT_NEAR(timeline.TimeFor(0.5, 1), 0.5 + 1, 1e-12);
  EXPECT_NEAR(timeline.TimeFor(3, 0.75), 1, 1e-12);
  // Over the end of the recording, and around it twice: 2.75 s of work in 4 s.
  EXPECT_NEAR(timeline.TimeFor(3, 1.25), 1 + 0.5, 1e-12);
  EXPECT_NEAR(timeline.TimeFor(0, 5.5), 8, 1e-9);
  EXPECT_NEAR(timeline.TimeFor(400.25, 0.5), 0.5, 1e-9);
  SpeedTimeline pauses;
  // The pause from 1 to 2 has the faster speed.
  pauses.Append({{0, 1, 0.1}, {2, 3, 1}}, 3);
  EXPECT_NEAR(pauses.TimeFor(1, 0.5), 0.5, 1e-12);
}

}  // namespace
}  // namespace refract::placement
