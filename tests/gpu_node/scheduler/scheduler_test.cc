// The scheduler on a fake device in virtual time: order, admission, shares.
#include "gpu_node/scheduler/scheduler.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu_node/scheduler/scheduler_fixture.h"

namespace refract::gpu_node {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SchedulerTest, ExecutesOneAtATimeAndAnswersAll) {
  Simulation sim(Fixed(Ms(10)), {Model("a", Ms(10))});
  for (int i = 0; i < 3; ++i) sim.Submit({});
  EXPECT_EQ(sim.scheduler().pending(), 3);
  sim.Drain();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sim.outcomes()[i].status, absl::OkStatus());
    EXPECT_EQ(sim.outcomes()[i].latency, Ms(10 * (i + 1)));
  }
  EXPECT_TRUE(sim.scheduler().AwaitIdle(absl::ZeroDuration()));
  const ModelStats stats = sim.scheduler().stats(0);
  EXPECT_EQ(stats.succeeded, 3);
  EXPECT_EQ(stats.batches, 3);
  EXPECT_EQ(stats.device_time, Ms(30));
  EXPECT_EQ(stats.queue_time, Ms(30));
}

TEST(SchedulerTest, TheNextUploadRunsBesideAnExecution) {
  const auto run = [](int slots) {
    FakeDevice::Options options = Fixed(Ms(10), 1, slots);
    options.upload = [](const Batch&) { return Ms(4); };
    options.download = [](const Batch&) { return Ms(2); };
    Simulation sim(options, {Model("a", Ms(10))});
    for (int i = 0; i < 10; ++i) sim.Submit({});
    sim.Drain();
    EXPECT_THAT(sim.device().violations(), IsEmpty());
    return sim.now();
  };
  EXPECT_EQ(run(1), Ms(160));
  // Only the first upload and the last download overlap no execution.
  EXPECT_EQ(run(2), Ms(106));
}

TEST(SchedulerTest, UploadsAsLateAsTheyMaySoThatUrgentOnesGoFirst) {
  FakeDevice::Options options = Fixed(Ms(10), 1, 2);
  options.upload = [](const Batch&) { return Ms(1); };
  Simulation sim(options, {Model("a", Ms(10))});
  sim.Submit({});  // teaches how long an upload takes
  sim.Drain();
  sim.Submit({});
  const size_t patient = sim.Submit({});
  sim.RunUntil(sim.now() + Ms(5));
  const size_t urgent = sim.Submit({.time_left = Ms(50)});
  sim.Drain();
  EXPECT_LT(sim.outcomes()[urgent].latency, Ms(17));
  EXPECT_GT(sim.outcomes()[patient].latency, Ms(30));
}

TEST(SchedulerTest, RefusesWhatItPredictsToBeLate) {
  Simulation sim(Fixed(Ms(10)), {Model("a", Ms(10))});
  sim.Submit({.time_left = Ms(10)});  // at 10
  sim.RunUntil(Ms(4));
  // 6 ms until it could begin.
  const size_t late = sim.Submit({.time_left = Ms(15)});
  EXPECT_TRUE(absl::IsResourceExhausted(sim.outcomes()[late].status));
  EXPECT_THAT(std::string(sim.outcomes()[late].status.message()),
              HasSubstr("cannot finish in time"));
  EXPECT_TRUE(absl::IsResourceExhausted(
      sim.scheduler().Admit(0, 0, 1, absl::FromUnixSeconds(1000) + Ms(19))));
  const size_t just = sim.Submit({.time_left = Ms(16)});
  const size_t none = sim.Submit({});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[just].status, absl::OkStatus());
  EXPECT_EQ(sim.outcomes()[none].status, absl::OkStatus());
  EXPECT_EQ(sim.scheduler().stats(0).refused, 2);
  EXPECT_EQ(sim.scheduler().stats(0).expired, 0);
}

TEST(SchedulerTest, AWrongPredictionIsFoundOut) {
  // Said to take 100 ms, takes 1.
  Simulation sim(Fixed(Ms(1)), {Model("a", Ms(100))});
  sim.RunUntil(Ms(2000));
  std::vector<size_t> sent;
  for (int i = 0; i < 5; ++i) {
    sent.push_back(sim.Submit({.time_left = Ms(20)}));
    sim.RunUntil(sim.now() + Ms(5));
  }
  // A probe request is admitted first, then the other requests.
  for (const size_t i : sent) {
    EXPECT_EQ(sim.outcomes()[i].status, absl::OkStatus()) << i;
  }
  // A right one is not doubted more than once a second.
  Simulation slow(Fixed(Ms(100)), {Model("a", Ms(100))});
  slow.RunUntil(Ms(2000));
  for (int i = 0; i < 30; ++i) {
    slow.Submit({.time_left = Ms(20)});
    slow.RunUntil(slow.now() + Ms(100));
  }
  const uint64_t probes = 30 - slow.scheduler().stats(0).refused;
  EXPECT_GE(probes, 2);
  EXPECT_LE(probes, 3);
}

TEST(SchedulerTest, AWrongPredictionOfOneSizeIsFoundOutBesideTheOthers) {
  // 64 rows are said to take 100 ms; they take that, or 10.
  for (const bool right : {false, true}) {
    FakeDevice::Options options;
    options.execute = [right](const Batch& batch) {
      return batch.rows == 1 ? Ms(1) : Ms(right ? 100 : 10);
    };
    ScheduledModel model = Model("a", Ms(1));
    model.times.Prime(64, Ms(100));
    Simulation sim(options, {model});
    std::vector<size_t> sent;
    for (int i = 0; i < 1000; ++i) {
      sim.Submit({.rows = 1});
      sent.push_back(sim.Submit({.rows = 64, .time_left = Ms(50)}));
      sim.RunUntil(Ms(20) * (i + 1));
    }
    sim.Drain();
    int64_t let_through = 0;
    absl::Duration last_refused;
    for (size_t i = 0; i < sent.size(); ++i) {
      const Outcome& outcome = sim.outcomes()[sent[i]];
      let_through += outcome.status.ok();
      if (!outcome.status.ok()) {
        last_refused = Ms(20) * static_cast<int64_t>(i);
      }
    }
    if (right) {
      // A twentieth of the 20 s at most, 100 ms each.
      EXPECT_GE(let_through, 5);
      EXPECT_LE(let_through, 10);
    } else {
      // 20 times what was predicted, and while the first one is on its way.
      EXPECT_LE(last_refused, Ms(2000 + 40));
    }
  }
}

TEST(SchedulerTest, AModelThatHasBecomeFasterIsFoundOutSoon) {
  absl::Duration takes = Ms(100);
  FakeDevice::Options options;
  options.execute = [&takes](const Batch&) { return takes; };
  Simulation sim(options, {Model("a", Ms(100))});
  for (int i = 0; i < 40; ++i) {
    sim.Submit({});
    sim.RunUntil(sim.now() + Ms(110));
  }
  takes = Ms(10);
  std::vector<size_t> sent;
  for (int i = 0; i < 500; ++i) {
    sent.push_back(sim.Submit({.time_left = Ms(50)}));
    sim.RunUntil(sim.now() + Ms(20));
  }
  sim.Drain();
  for (size_t i = 0; i < sent.size(); ++i) {
    // The prediction was 100 ms.
    if (i * Ms(20) < Scheduler::kProbeRest * Ms(100) + Ms(20)) continue;
    EXPECT_EQ(sim.outcomes()[sent[i]].status, absl::OkStatus()) << i;
  }
}

TEST(SchedulerTest, DropsWhatHasBecomeTooLateWhileItWaited) {
  // The first one takes longer than anybody could know.
  FakeDevice::Options options = Fixed(Ms(0));
  options.execute = [n = 0](const Batch&) mutable {
    return n++ == 0 ? Ms(100) : Ms(10);
  };
  Simulation sim(options, {Model("a", Ms(10))});
  sim.Submit({});
  const size_t expires = sim.Submit({.time_left = Ms(50)});
  const size_t hopeless = sim.Submit({.time_left = Ms(105)});
  const size_t gone = sim.Submit({.time_left = Ms(1000), .abandoned = true});
  const size_t fine = sim.Submit({.time_left = Ms(1000)});
  sim.Drain();
  EXPECT_TRUE(absl::IsDeadlineExceeded(sim.outcomes()[expires].status));
  EXPECT_THAT(std::string(sim.outcomes()[expires].status.message()),
              HasSubstr("at HN queue"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(sim.outcomes()[hopeless].status));
  EXPECT_TRUE(absl::IsCancelled(sim.outcomes()[gone].status));
  EXPECT_EQ(sim.outcomes()[fine].status, absl::OkStatus());
  EXPECT_EQ(sim.device().executions().size(), 2);
}

TEST(SchedulerTest, WhatIsGivenUpLeavesTheQueueAtOnce) {
  Simulation sim(Fixed(Ms(10)), {Model("a", Ms(10)), Model("b", Ms(10))},
                 {.max_queue = 4});
  const size_t executes = sim.Submit({});
  std::vector<size_t> waiting;
  for (int i = 0; i < 4; ++i) waiting.push_back(sim.Submit({}));
  sim.RunUntil(Ms(5));
  EXPECT_TRUE(absl::IsResourceExhausted(
      sim.scheduler().Admit(0, 0, 1, absl::InfiniteFuture())));
  // waiting[0] has the next turn and is not cancelled.
  for (const int i : {1, 2, 3}) sim.GiveUp(waiting[i]);
  for (const int i : {1, 2, 3}) {
    EXPECT_TRUE(absl::IsCancelled(sim.outcomes()[waiting[i]].status));
    EXPECT_EQ(sim.outcomes()[waiting[i]].latency, Ms(5));
  }
  EXPECT_EQ(sim.scheduler().pending(), 2);
  // Cancelled requests take neither place nor time. The prediction is the rest
  // of the execution (5 ms), the waiting request and the new request.
  EXPECT_TRUE(
      sim.scheduler().Admit(0, 0, 1, absl::FromUnixSeconds(1000) + Ms(30)).ok());
  // Cancelling an execution, again, or of another model has no effect.
  sim.GiveUp(executes);
  sim.GiveUp(waiting[1]);
  sim.scheduler().OnAbandoned(1);
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[executes].status, absl::OkStatus());
  EXPECT_EQ(sim.outcomes()[waiting[0]].status, absl::OkStatus());
  EXPECT_EQ(sim.device().executions().size(), 2);
  const ModelStats stats = sim.scheduler().stats(0);
  EXPECT_EQ(stats.abandoned, 3);
  EXPECT_EQ(stats.succeeded, 2);
  EXPECT_EQ(sim.scheduler().stats(1).abandoned, 0);
  for (const Outcome& outcome : sim.outcomes()) EXPECT_EQ(outcome.answers, 1);
}

TEST(SchedulerTest, WhatIsGivenUpIsNotMergedWithTheNext) {
  Simulation sim(LaunchBound(), {Merging(Ms(0))});
  sim.Submit({});
  std::vector<size_t> waiting;
  for (int i = 0; i < 8; ++i) waiting.push_back(sim.Submit({}));
  for (const int i : {2, 5, 7}) sim.GiveUp(waiting[i]);
  sim.Drain();
  ASSERT_EQ(sim.device().executions().size(), 2);
  EXPECT_EQ(sim.scheduler().stats(0).largest_batch, 5);
  EXPECT_EQ(sim.scheduler().stats(0).abandoned, 3);
  EXPECT_EQ(sim.scheduler().stats(0).succeeded, 6);
}

TEST(SchedulerTest, CountsWhatWasGivenUpBeforeItCame) {
  Simulation sim(Fixed(Ms(10)), {Model("a", Ms(10)), Model("b", Ms(10))});
  sim.scheduler().OnWithdrawn(1);
  EXPECT_EQ(sim.scheduler().stats(0).abandoned, 0);
  EXPECT_EQ(sim.scheduler().stats(1).abandoned, 1);
  EXPECT_EQ(sim.scheduler().pending(), 0);
}

TEST(SchedulerTest, QueuesAreBounded) {
  ScheduledModel bounded = Model("a", Ms(10));
  bounded.max_queue = 1;
  Simulation sim(Fixed(Ms(10)), {bounded, Model("b", Ms(10))},
                 {.max_queue = 4});
  sim.Submit({});  // executes
  sim.Submit({});  // waits
  const size_t over = sim.Submit({});
  EXPECT_TRUE(absl::IsResourceExhausted(sim.outcomes()[over].status));
  for (int i = 0; i < 3; ++i) sim.Submit({.model = 1});
  const size_t over_all = sim.Submit({.model = 1});
  EXPECT_TRUE(absl::IsResourceExhausted(sim.outcomes()[over_all].status));
  EXPECT_THAT(std::string(sim.outcomes()[over_all].status.message()),
              HasSubstr("queue is full, 4 requests"));
  EXPECT_EQ(sim.scheduler().stats(0).queue_full, 1);
  EXPECT_EQ(sim.scheduler().stats(1).queue_full, 1);
}

TEST(SchedulerTest, WhatIsTooLateKeepsNoPlaces) {
  for (const bool own_limit : {false, true}) {
    for (const bool announced : {false, true}) {
      ScheduledModel model = Model("a", Ms(1));
      if (own_limit) model.max_queue = 4;
      Simulation sim(Fixed(Ms(1000)), {model},
                     {.max_queue = own_limit ? 100u : 4u});
      sim.Submit({});
      for (int i = 0; i < 4; ++i) sim.Submit({.time_left = Ms(10)});
      EXPECT_TRUE(absl::IsResourceExhausted(
          sim.scheduler().Admit(0, 0, 1, absl::InfiniteFuture())));
      sim.RunUntil(Ms(500));
      if (announced) {
        EXPECT_EQ(sim.scheduler().Admit(0, 0, 1, absl::InfiniteFuture()),
                  absl::OkStatus());
      }
      const size_t in_time = sim.Submit({});
      EXPECT_EQ(sim.outcomes()[in_time].answers, 0);
      EXPECT_EQ(sim.scheduler().stats(0).expired, 4);
      sim.Drain();
      EXPECT_EQ(sim.outcomes()[in_time].status, absl::OkStatus());
      EXPECT_EQ(sim.scheduler().pending(), 0);
    }
  }
}

TEST(SchedulerTest, AFullQueueKeepsPlacesForTheOthers) {
  Simulation sim(Fixed(Ms(10)), {Model("loud", Ms(10)), Model("b", Ms(10), 3)},
                 {.max_queue = 8});
  for (int i = 0; i < 20; ++i) sim.Submit({.model = 0});
  EXPECT_EQ(sim.scheduler().stats(0).queue_full, 11);  // 1 executes, 8 wait
  for (int i = 0; i < 7; ++i) sim.Submit({.model = 1});
  // Three quarters of 8.
  EXPECT_EQ(sim.scheduler().stats(1).queue_full, 1);
}

TEST(SchedulerTest, SharesDivideTheDevice) {
  Simulation sim(Fixed(Ms(1)), {Model("a", Ms(1), 3), Model("b", Ms(1), 1)});
  for (int i = 0; i < 200; ++i) {
    sim.Submit({.model = 0});
    sim.Submit({.model = 1});
  }
  sim.RunUntil(Ms(100.5));
  EXPECT_NEAR(absl::FDivDuration(sim.scheduler().stats(0).device_time, Ms(1)),
              75, 2);
  EXPECT_NEAR(absl::FDivDuration(sim.scheduler().stats(1).device_time, Ms(1)),
              25, 2);
  // Alone, it has the rest.
  sim.Drain();
  EXPECT_EQ(sim.now(), Ms(400));
}

TEST(SchedulerTest, AModelMayBeHeldToFewerInstances) {
  ScheduledModel held = Model("a", Ms(10));
  held.max_instances = 1;
  Simulation sim(Fixed(Ms(10), /*instances=*/3), {held, Model("b", Ms(10))});
  for (int i = 0; i < 4; ++i) {
    sim.Submit({.model = 0});
    sim.Submit({.model = 1});
  }
  sim.Drain();
  EXPECT_EQ(sim.now(), Ms(40));
  for (const auto& x : sim.device().executions()) {
    for (const auto& y : sim.device().executions()) {
      if (&x == &y || x.model != 0 || y.model != 0) continue;
      EXPECT_TRUE(x.end <= y.begin || y.end <= x.begin);
    }
  }
}

}  // namespace
}  // namespace refract::gpu_node
