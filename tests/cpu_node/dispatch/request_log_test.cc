#include "cpu_node/dispatch/request_log.h"

#include <string>
#include <vector>

#include "base/clock.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace refract::cpu_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RequestLogTest : public ::testing::Test, public google::LogSink {
 protected:
  RequestLogTest() { google::AddLogSink(this); }
  ~RequestLogTest() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity, const char*, const char*, int,
            const google::LogMessageTime&, const char* text,
            size_t length) override {
    lines_.emplace_back(text, length);
  }

  base::ManualClock clock_;
  std::vector<std::string> lines_;
};

TEST_F(RequestLogTest, NamesTheRequestAndItsStages) {
  RequestLog log(absl::Milliseconds(30), clock_);
  RequestLog::Ended request{.model = "ranker",
                            .id = "7f3c",
                            .gpu_node = "hn1:8100",
                            .took = absl::Milliseconds(31),
                            .times = {.queue = absl::Milliseconds(20),
                                      .compute_input = absl::Milliseconds(1),
                                      .compute_infer = absl::Milliseconds(9),
                                      .compute_output = absl::Milliseconds(1)},
                            .attempts = 1};
  log.OnEnd(request, absl::OkStatus());
  request.took = absl::Milliseconds(29.9);  // not slow
  log.OnEnd(request, absl::OkStatus());
  request = {.model = "ranker", .took = absl::Milliseconds(30)};
  log.OnEnd(request, absl::DeadlineExceededError("late"));
  EXPECT_THAT(
      lines_,
      ElementsAre("slow: request '7f3c' of model 'ranker' took 31ms: 20ms in "
                  "the queue, 1ms CN-pre, 9ms at the GPU node hn1:8100, 1ms "
                  "CN-post; 1 attempt(s), answered",
                  "slow: a request of model 'ranker' took 30ms: 0 in the "
                  "queue, 0 CN-pre, 0 here, 0 CN-post; 0 attempt(s), "
                  "DEADLINE_EXCEEDED"));
}

TEST_F(RequestLogTest, AnIdCannotForgeALine) {
  RequestLog log(absl::InfiniteDuration(), clock_);
  log.OnFailure("ranker", "a'\nE1123 fake", absl::UnavailableError("no node"));
  EXPECT_THAT(lines_, ElementsAre("request 'a\\'\\nE1123 fake' of model "
                                  "'ranker' failed: UNAVAILABLE: no node"));
}

TEST_F(RequestLogTest, WritesTenLinesOfAKindInASecond) {
  RequestLog log(absl::Milliseconds(1), clock_);
  for (int i = 0; i < 25; ++i) {
    log.OnFailure("m", "", absl::InternalError("x"));
    log.OnEnd({.model = "m", .took = absl::Seconds(1)}, absl::OkStatus());
  }
  EXPECT_EQ(lines_.size(), 20u);
  clock_.Advance(absl::Seconds(1));
  log.OnFailure("m", "", absl::InternalError("x"));
  EXPECT_THAT(lines_.back(), HasSubstr("(15 earlier failures not logged)"));
  log.OnEnd({.model = "m", .took = absl::Seconds(1)}, absl::OkStatus());
  EXPECT_THAT(lines_.back(),
              HasSubstr("(15 earlier slow requests not logged)"));
}

}  // namespace
}  // namespace refract::cpu_node
