#include "tracing/tracer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/base/random_seed.h"

namespace refract::tracing {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kParent[] =
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceparentTest, ReadsTheStandardsExample) {
  RequestContext context;
  ASSERT_TRUE(ParseTraceparent(kParent, context));
  EXPECT_TRUE(context.sampled);
  EXPECT_THAT(context.parent,
              ElementsAre(0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31));
  EXPECT_EQ(context.trace_id[0], 0x0a);
  EXPECT_EQ(context.trace_id[15], 0x9c);
  std::string other = kParent;
  other.back() = '2';  // another flag
  ASSERT_TRUE(ParseTraceparent(other, context));
  EXPECT_FALSE(context.sampled);
  // A later version with more fields.
  EXPECT_TRUE(
      ParseTraceparent(absl::StrCat("01", kParent + 2, "-what"), context));
}

TEST(TraceparentTest, RefusesOtherTextAndChangesNothing) {
  const std::string good = kParent;
  std::vector<std::string> bad = {
      "",
      "00",
      good + "-",
      good + "0",
      "ff" + good.substr(2),
      good.substr(0, 54),
      "00-00000000000000000000000000000000-b7ad6b7169203331-01",
      "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
      "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"};
  for (size_t i = 0; i < good.size(); ++i) {
    bad.push_back(good);
    bad.back()[i] = 'x';
  }
  for (const std::string& text : bad) {
    RequestContext context;
    context.sampled = true;
    EXPECT_FALSE(ParseTraceparent(text, context)) << text;
    EXPECT_TRUE(context.sampled);
    EXPECT_EQ(context.trace_id, TraceId());
  }
}

TEST(ClockOffsetTest, IsOffByHalfOfTheShortestWayAtMost) {
  std::mt19937 random(base::RandomSeed());
  std::exponential_distribution<double> way_us(1.0 / 200);
  const absl::Duration ahead = absl::Hours(-3) + absl::Microseconds(17);
  ClockOffset offset;
  EXPECT_EQ(offset.ahead(), absl::ZeroDuration());
  absl::Time now = absl::FromUnixSeconds(1'000'000);
  for (int i = 0; i < 1000; ++i) {
    now += absl::Milliseconds(1);
    const absl::Time received = now + absl::Microseconds(10 + way_us(random));
    const absl::Time answered = received + absl::Milliseconds(1);
    const absl::Time came = answered + absl::Microseconds(10 + way_us(random));
    offset.Add(now, received + ahead, answered + ahead, came);
    EXPECT_LE(absl::AbsDuration(offset.ahead() - ahead),
              offset.shortest_way() / 2 + absl::Nanoseconds(1));
  }
  EXPECT_LT(offset.shortest_way(), absl::Microseconds(150));
  // Times that cannot be are not believed.
  const absl::Duration before = offset.ahead();
  offset.Add(now, now + absl::Hours(1), now, now);
  offset.Add(now, now, now + absl::Hours(1), now + absl::Seconds(1));
  EXPECT_EQ(offset.ahead(), before);
}

TEST(ClockOffsetTest, FollowsAClockThatDrifts) {
  ClockOffset offset;
  absl::Time now = absl::FromUnixSeconds(1'000'000);
  absl::Duration ahead = absl::Seconds(1);
  for (int i = 0; i < 600; ++i) {
    now += absl::Seconds(1);
    ahead += absl::Microseconds(50);
    const absl::Time received = now + absl::Microseconds(50);
    offset.Add(now, received + ahead, received + ahead,
               received + absl::Microseconds(50));
  }
  EXPECT_LT(absl::AbsDuration(offset.ahead() - ahead), absl::Microseconds(200));
}

// Keeps its input, and may block or refuse.
class TestExporter final : public Exporter {
 public:
  struct Log {
    absl::Mutex mu;
    std::vector<size_t> batches ABSL_GUARDED_BY(mu);  // spans
    bool open ABSL_GUARDED_BY(mu) = true;
    absl::Status status ABSL_GUARDED_BY(mu);
  };
  explicit TestExporter(Log* log) : log_(*log) {}
  absl::Status Export(absl::Span<const Trace> traces) override {
    size_t spans = 0;
    for (const Trace& trace : traces) spans += trace.spans.size();
    absl::MutexLock lock(&log_.mu);
    log_.batches.push_back(spans);
    log_.mu.Await(absl::Condition(&log_.open));
    return log_.status;
  }

 private:
  Log& log_;
};

class TracerTest : public testing::Test {
 protected:
  void Start(const Settings& settings) {
    auto tracer = Tracer::Create(settings, base::Clock::Real(),
                                 std::make_unique<TestExporter>(&log_));
    ASSERT_TRUE(tracer.ok()) << tracer.status();
    tracer_ = *std::move(tracer);
  }
  static Settings On(uint64_t rate) {
    Settings settings;
    settings.on = true;
    settings.rate = rate;
    settings.delay = absl::Milliseconds(1);
    settings.file = "traces";  // the exporter is a test's
    return settings;
  }
  int Sampled(int requests, absl::string_view traceparent) {
    int sampled = 0;
    for (int i = 0; i < requests; ++i) {
      sampled += tracer_->Begin(traceparent).sampled;
    }
    return sampled;
  }

  TestExporter::Log log_;
  std::unique_ptr<Tracer> tracer_;
};

TEST_F(TracerTest, TheFlagOfTheClientComesBeforeTheRate) {
  Start(On(10));
  EXPECT_EQ(Sampled(1000, ""), 100);
  EXPECT_EQ(Sampled(1000, "nonsense"), 100);
  EXPECT_EQ(Sampled(1000, kParent), 1000);
  std::string unsampled = kParent;
  unsampled.back() = '0';
  EXPECT_EQ(Sampled(1000, unsampled), 0);
}

TEST_F(TracerTest, RateZeroAndCountAreLimits) {
  Start(On(0));
  EXPECT_EQ(Sampled(100, ""), 0);
  EXPECT_EQ(Sampled(100, kParent), 100);
  Settings counted = On(1);
  counted.count = 7;
  Start(counted);
  EXPECT_EQ(Sampled(100, kParent), 7);
  EXPECT_EQ(tracer_->settings().count, 0);
}

TEST_F(TracerTest, FailedAndSlowRequestsAreKept) {
  Settings settings = On(0);
  settings.slow_after = absl::Milliseconds(10);
  Start(settings);
  const RequestContext request = tracer_->Begin("");
  EXPECT_FALSE(tracer_->Keeps(request, false, absl::Milliseconds(9)));
  EXPECT_TRUE(tracer_->Keeps(request, false, absl::Milliseconds(10)));
  EXPECT_TRUE(tracer_->Keeps(request, true, absl::Milliseconds(1)));
  EXPECT_FALSE(tracer_->Keeps(RequestContext(), true, absl::Seconds(1)));
  ASSERT_TRUE(
      tracer_->Change({{"failed", {"false"}}, {"slow_ms", {"0"}}}).ok());
  EXPECT_FALSE(tracer_->Keeps(request, true, absl::Seconds(1)));
  EXPECT_FALSE(tracer_->MayKeepLater());
}

TEST_F(TracerTest, WhatDoesNotFitIntoTheQueueIsDroppedAndCounted) {
  Settings settings = On(1);
  settings.max_queue = 10;
  settings.max_batch = 4;
  Start(settings);
  {
    absl::MutexLock lock(&log_.mu);
    log_.open = false;
  }
  Trace trace;
  trace.spans.resize(2);
  tracer_->Submit(trace);
  {
    // The exporter is busy with the first one.
    absl::MutexLock lock(&log_.mu);
    const auto busy = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(log_.mu) {
      return !log_.batches.empty();
    };
    log_.mu.Await(absl::Condition(&busy));
  }
  for (int i = 0; i < 8; ++i) tracer_->Submit(trace);
  EXPECT_EQ(tracer_->counts().dropped, 6u);
  {
    absl::MutexLock lock(&log_.mu);
    log_.open = true;
    const auto all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(log_.mu) {
      return log_.batches.size() == 4;
    };
    log_.mu.Await(absl::Condition(&all));
    EXPECT_THAT(log_.batches, ElementsAre(2, 4, 4, 2));
    log_.status = absl::UnavailableError("away");
  }
  tracer_->Submit(trace);
  while (tracer_->counts().failed == 0) absl::SleepFor(absl::Milliseconds(1));
  const Tracer::Counts counts = tracer_->counts();
  EXPECT_EQ(counts.exported, 12u);
  EXPECT_EQ(counts.failed, 2u);
  EXPECT_EQ(counts.dropped, 6u);
}

TEST_F(TracerTest, ClientsChangeSomeSettings) {
  Settings start = On(5);
  start.file = "/tmp/traces";
  Start(start);
  EXPECT_TRUE(tracer_->Change({{"trace_rate", {"1"}}}).ok());
  EXPECT_EQ(Sampled(10, ""), 10);
  EXPECT_TRUE(tracer_->Change({{"trace_level", {"OFF"}}}).ok());
  EXPECT_FALSE(tracer_->on());
  EXPECT_FALSE(tracer_->Begin(kParent).on);
  // An empty list: as at the start.
  EXPECT_TRUE(tracer_->Change({{"trace_rate", {}}, {"trace_level", {}}}).ok());
  EXPECT_EQ(ToValues(tracer_->settings()), ToValues(start));
  for (const Values& wrong :
       std::vector<Values>{{{"trace_file", {"/etc/passwd"}}},
                           {{"trace_mode", {"opentelemetry"}}},
                           {{"log_frequency", {"3"}}},
                           {{"trace_rate", {"-1"}}},
                           {{"trace_rate", {"1x"}}},
                           {{"trace_level", {"TENSORS"}}},
                           {{"trace_level", {"TIMESTAMPS", "TENSORS"}}},
                           {{"trace_rate", {"2"}}, {"what", {"1"}}}}) {
    const absl::Status status = tracer_->Change(wrong);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                HasSubstr(wrong.size() == 1 ? wrong.begin()->first : "what"));
    EXPECT_EQ(ToValues(tracer_->settings()), ToValues(start));
  }
}

TEST(TraceConfigTest, ReadsTritonsForms) {
  Settings settings;
  ASSERT_TRUE(ParseTraceConfig(
                  {"mode=opentelemetry", "rate=100", "level=TIMESTAMPS",
                   "opentelemetry,url=http://otel:4318/v1/traces",
                   "opentelemetry,resource=service.name=ranker", "count=-1",
                   "opentelemetry,bsp_max_queue_size=100", "slow-ms=2.5"},
                  settings)
                  .ok());
  EXPECT_TRUE(settings.on && settings.otlp);
  EXPECT_EQ(settings.rate, 100u);
  EXPECT_EQ(settings.max_queue, 100u);
  EXPECT_EQ(settings.slow_after, absl::Microseconds(2500));
  EXPECT_THAT(settings.resource,
              ElementsAre(testing::Pair("service.name", "ranker")));
  settings = Settings();
  ASSERT_TRUE(ParseTraceConfig({"triton,file=/tmp/t"}, settings).ok());
  EXPECT_TRUE(settings.on && !settings.otlp);
  for (const char* const off : {"level=OFF", "trace_level=OFF"}) {
    settings = Settings();
    ASSERT_TRUE(ParseTraceConfig({off, "triton,file=/tmp/t"}, settings).ok());
    EXPECT_FALSE(settings.on) << off;
  }
  settings = Settings();
  ASSERT_TRUE(ParseTraceConfig({}, settings).ok());
  EXPECT_FALSE(settings.on);
}

TEST(FileExporterTest, AWriteThatFailsMidwayLeavesWholeLines) {
  Settings settings;
  settings.file = testing::TempDir() + "/traces_cut";
  std::remove(settings.file.c_str());
  const auto exporter = Exporter::Create(settings);
  ASSERT_TRUE(exporter.ok()) << exporter.status();
  Trace trace;
  trace.spans.emplace_back().name = "request";
  const std::vector<Trace> two = {trace, trace};
  ASSERT_TRUE((*exporter)->Export(two).ok());
  const auto text = [&] {
    std::ifstream in(settings.file);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string before = text();
  const size_t line = before.size() / 2;
  // The "disk" is full after one and a half more lines.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit limit = {before.size() + line * 3 / 2, old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = (*exporter)->Export(two);
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  const std::string one = before.substr(0, line);
  EXPECT_EQ(text(), before + one);
  ASSERT_TRUE((*exporter)->Export({&trace, 1}).ok());
  EXPECT_EQ(text(), before + one + one);
}

TEST(TraceConfigTest, NamesWhatIsWrong) {
  for (const std::string text :
       {"rate", "rate=x", "level=TENSORS", "what=1", "opentelemetry,what=1",
        "triton,what=1", "mode=jaeger", "opentelemetry,resource=x",
        "slow-ms=-1", "level=TIMESTAMPS"}) {
    Settings settings;
    const absl::Status status = ParseTraceConfig({text}, settings);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("--trace-config"));
  }
  for (const char* const url :
       {"https://otel:4318/v1/traces", "otel:4318", "http://", "http:///v1",
        "http://otel:0/", "http://otel:65536/", "http://otel:x/",
        "http://otel/a b"}) {
    Settings otlp;
    otlp.otlp = true;
    otlp.url = url;
    EXPECT_THAT(Exporter::Create(otlp).status().message(),
                HasSubstr("wanted http://HOST[:PORT]/PATH"))
        << url;
  }
  Settings folder;
  folder.file = "/no/such/folder/file";
  EXPECT_THAT(Exporter::Create(folder).status().message(),
              HasSubstr("/no/such/folder/file"));
}

}  // namespace
}  // namespace refract::tracing
