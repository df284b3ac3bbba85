// The scheduler on a fake device in virtual time: what it does when.
#include "gpu_node/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu_node/simulation.h"

namespace refract::gpu_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Duration Ms(double ms) { return absl::Milliseconds(ms); }

// Every execution takes `time`, whatever is in it.
FakeDevice::Options Fixed(absl::Duration time, int instances = 1,
                          int slots = 1) {
  FakeDevice::Options options;
  options.traits.instances = instances;
  options.traits.slots = slots;
  options.execute = [time](const Batch&) { return time; };
  return options;
}

ScheduledModel Model(const std::string& name, absl::Duration time,
                     double share = 1) {
  ScheduledModel model;
  model.label = "model '" + name + "'";
  model.share = share;
  model.times.Prime(1, time);
  return model;
}

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
  // One upload and one download stand alone.
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
      sim.scheduler().Admit(0, 1, absl::FromUnixSeconds(1000) + Ms(19))));
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
  // One is let through to see, and then the others.
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

TEST(SchedulerTest, AFullQueueKeepsPlacesForTheOthers) {
  Simulation sim(Fixed(Ms(10)), {Model("loud", Ms(10)), Model("b", Ms(10), 3)},
                 {.max_queue = 8});
  for (int i = 0; i < 20; ++i) sim.Submit({.model = 0});
  EXPECT_EQ(sim.scheduler().stats(0).queue_full, 11);  // 1 executes, 8 wait
  for (int i = 0; i < 7; ++i) sim.Submit({.model = 1});
  // Three quarters of 8.
  EXPECT_EQ(sim.scheduler().stats(1).queue_full, 1);
}

TEST(SchedulerTest, RowsBeyondTheLargestBatch) {
  ScheduledModel whole = Model("whole", Ms(10));
  whole.batching.max_rows = 64;
  ScheduledModel divisible = whole;
  divisible.splittable = true;
  divisible.times.Prime(64, Ms(10));
  Simulation sim(Fixed(Ms(10)), {whole, divisible});
  const size_t refused = sim.Submit({.model = 0, .rows = 65});
  EXPECT_TRUE(absl::IsInvalidArgument(sim.outcomes()[refused].status));
  EXPECT_THAT(std::string(sim.outcomes()[refused].status.message()),
              ::testing::AllOf(HasSubstr("65 rows"), HasSubstr("64")));
  // Three steps of 10 ms.
  const size_t late =
      sim.Submit({.model = 1, .rows = 180, .time_left = Ms(29)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(sim.outcomes()[late].status));
  const size_t steps =
      sim.Submit({.model = 1, .rows = 180, .time_left = Ms(31)});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[steps].status, absl::OkStatus());
  EXPECT_EQ(sim.scheduler().stats(0).too_large, 1);
}

TEST(SchedulerTest, ARequestInStepsIsAnsweredOnceAndStopsWhenItsTimeIsUp) {
  ScheduledModel divisible = Model("divisible", Ms(10));
  divisible.batching.max_rows = 64;
  divisible.splittable = true;
  divisible.stepwise = true;
  divisible.times.Prime(64, Ms(10));
  FakeDevice::Options device = Fixed(Ms(10));
  device.traits.steps = true;
  Simulation sim(device, {divisible});
  sim.Submit({.rows = 180});
  sim.Drain();
  ASSERT_EQ(sim.outcomes()[0].answers, 1);
  EXPECT_EQ(sim.outcomes()[0].status, absl::OkStatus());
  EXPECT_EQ(sim.outcomes()[0].latency, Ms(30));
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (const auto& e : sim.device().executions()) {
    steps.emplace_back(e.first_row, e.rows);
  }
  EXPECT_THAT(steps, ElementsAre(std::pair(0, 60), std::pair(60, 60),
                                 std::pair(120, 60)));
  EXPECT_EQ(sim.scheduler().stats(0).steps, 3);
  EXPECT_EQ(sim.scheduler().stats(0).succeeded, 1);

  // An instance that is lost between steps takes the request with it.
  const size_t lost = sim.Submit({.rows = 180});
  sim.RunUntil(sim.now() + Ms(12));
  sim.device().FailExecutions(1);
  sim.RunUntil(sim.now() + Ms(20));
  EXPECT_EQ(sim.outcomes()[lost].answers, 1);
  EXPECT_TRUE(absl::IsUnavailable(sim.outcomes()[lost].status));
  EXPECT_EQ(sim.scheduler().pending(), 0);
  EXPECT_THAT(sim.device().violations(), IsEmpty());
}

TEST(SchedulerTest, StepsEndAtTheDeadline) {
  // Ten times as slow as was thought when it was admitted.
  ScheduledModel divisible = Model("divisible", Ms(1));
  divisible.times.Prime(64, Ms(1));
  divisible.batching.max_rows = 64;
  divisible.splittable = true;
  divisible.stepwise = true;
  FakeDevice::Options device = Fixed(Ms(10));
  device.traits.steps = true;
  Simulation sim(device, {divisible});
  const size_t late = sim.Submit({.rows = 180, .time_left = Ms(15)});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[late].answers, 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(sim.outcomes()[late].status));
  EXPECT_EQ(sim.device().executions().size(), 2);
  EXPECT_EQ(sim.scheduler().stats(0).expired, 1);
  EXPECT_EQ(sim.scheduler().pending(), 0);
}

ScheduledModel Merging(absl::Duration window) {
  ScheduledModel model;
  model.label = "model 'm'";
  model.batching = {.enabled = true, .window = window, .max_rows = 64};
  for (int bucket = 0; bucket <= 6; ++bucket) {
    const int64_t rows = RowsOfBucket(bucket);
    model.times.Prime(rows, Ms(10 + 0.1 * static_cast<double>(rows)));
  }
  return model;
}
FakeDevice::Options LaunchBound(int instances = 1) {
  FakeDevice::Options options;
  options.traits.instances = instances;
  options.execute = [](const Batch& batch) {
    return Ms(10 +
              0.1 * static_cast<double>(RowsOfBucket(BucketOf(batch.rows))));
  };
  return options;
}

TEST(SchedulerTest, WhatWaitsIsExecutedTogether) {
  Simulation sim(LaunchBound(), {Merging(Ms(0))});
  sim.Submit({.rows = 4});
  for (int i = 0; i < 5; ++i) sim.Submit({.rows = 4});
  sim.Submit({.rows = 4, .merge_key = "other shape"});
  sim.Submit({.rows = 4, .merge_key = ""});
  sim.Drain();
  std::vector<size_t> members;
  for (const auto& e : sim.device().executions()) members.push_back(e.members);
  EXPECT_THAT(members, ElementsAre(1, 5, 1, 1));
  EXPECT_EQ(sim.device().executions()[1].rows, 20);
  const ModelStats stats = sim.scheduler().stats(0);
  EXPECT_EQ(stats.merged, 5);
  EXPECT_EQ(stats.largest_batch, 5);
  EXPECT_EQ(stats.succeeded, 8);
}

TEST(SchedulerTest, WaitsForOthersOnlyWhileTheyComeFast) {
  Simulation sim(LaunchBound(), {Merging(Ms(6))});
  // Every 2 ms one: two apart take 10 ms more than together.
  std::vector<SimulatedRequest> fast;
  for (int i = 0; i < 40; ++i) fast.push_back({.arrival = Ms(2 * i)});
  sim.Run(fast);
  const uint64_t merged = sim.scheduler().stats(0).merged;
  EXPECT_GE(merged, 35);
  // The first two executions: one alone, as nothing was known of others; then
  // those that came meanwhile.
  // Every 40 ms one: nobody waits.
  const absl::Duration begin = sim.now();
  std::vector<size_t> slow;
  for (int i = 1; i <= 10; ++i) {
    sim.RunUntil(begin + Ms(40 * i));
    slow.push_back(sim.Submit({}));
  }
  sim.Drain();
  // All but those that the memory of the fast ones held up.
  int at_once = 0;
  for (const size_t i : slow) {
    at_once += sim.outcomes()[i].latency == Ms(10.1);
    EXPECT_LE(sim.outcomes()[i].latency, Ms(16.1));
  }
  EXPECT_GE(at_once, 8);
}

TEST(SchedulerTest, TheWindowEndsByTimer) {
  Simulation sim(LaunchBound(), {Merging(Ms(6))});
  for (int i = 0; i < 3; ++i) {
    sim.Submit({});
    sim.RunUntil(sim.now() + Ms(1));
  }
  sim.Drain();
  sim.RunUntil(Ms(32));  // gaps of about 1 ms are remembered
  const size_t alone = sim.Submit({});
  EXPECT_EQ(sim.scheduler().next_timer() - absl::FromUnixSeconds(1000),
            sim.now() + Ms(6));
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[alone].latency, Ms(16.1));
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

// Weights of 100, 200 and 300 bytes, room for 400, a byte a millisecond.
FakeDevice::Options SmallMemory() {
  FakeDevice::Options options = Fixed(Ms(10));
  options.traits.weight_memory = 400;
  options.traits.load_bytes_per_s = 1000;
  options.weight_bytes = {100, 200, 300};
  return options;
}
std::vector<ScheduledModel> ThreeModels() {
  std::vector<ScheduledModel> models;
  for (const size_t bytes : SmallMemory().weight_bytes) {
    models.push_back(Model(std::to_string(bytes), Ms(10)));
    models.back().weight_bytes = bytes;
  }
  return models;
}

TEST(SchedulerTest, SwitchesModelsInTheTimeOfOneCopy) {
  Simulation sim(SmallMemory(), ThreeModels());
  const size_t first = sim.Submit({.model = 0});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[first].latency, Ms(110));
  EXPECT_EQ(sim.outcomes()[sim.Submit({.model = 0})].answers, 0);
  sim.Drain();
  const size_t second = sim.Submit({.model = 1});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[second].latency, Ms(210));
  sim.Submit({.model = 0});
  sim.Drain();
  // The 300 need the room of the 200, which were used before the 100.
  const size_t third = sim.Submit({.model = 2});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[third].latency, Ms(310));
  EXPECT_THAT(sim.device().resident(), ElementsAre(0, 2));
  EXPECT_THAT(sim.device().violations(), IsEmpty());
  EXPECT_EQ(sim.scheduler().stats(1).evictions, 1);
  EXPECT_EQ(sim.scheduler().stats(0).loads, 1);
  // The copy counts in the prediction.
  const size_t late = sim.Submit({.model = 1, .time_left = Ms(205)});
  EXPECT_TRUE(absl::IsResourceExhausted(sim.outcomes()[late].status));
  const size_t in_time = sim.Submit({.model = 1, .time_left = Ms(215)});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[in_time].status, absl::OkStatus());
}

TEST(SchedulerTest, OthersExecuteWhileWeightsAreCopied) {
  Simulation sim(SmallMemory(), ThreeModels());
  sim.Submit({.model = 0});
  sim.Drain();
  const size_t out = sim.Submit({.model = 1});
  std::vector<size_t> in;
  for (int i = 0; i < 10; ++i) in.push_back(sim.Submit({.model = 0}));
  sim.Drain();
  EXPECT_LE(sim.outcomes()[in.back()].latency, Ms(110));
  EXPECT_LE(sim.outcomes()[out].latency, Ms(220));
}

TEST(SchedulerTest, TwoModelsThatDoNotFitTogetherBothGetOn) {
  Simulation sim(SmallMemory(), ThreeModels());
  for (int i = 0; i < 100; ++i) {
    sim.Submit({.model = 1});
    sim.Submit({.model = 2});
  }
  sim.Drain();
  EXPECT_THAT(sim.device().violations(), IsEmpty());
  EXPECT_EQ(sim.scheduler().stats(1).succeeded, 100);
  EXPECT_EQ(sim.scheduler().stats(2).succeeded, 100);
  // What a copy costs is paid for by its model, so that there are few.
  EXPECT_LE(sim.device().loads().size(), 40);
  EXPECT_GE(sim.device().loads().size(), 2);
}

TEST(SchedulerTest, AFailedLoadIsToldAndTriedAgain) {
  Simulation sim(SmallMemory(), ThreeModels());
  int changes = 0;
  sim.scheduler().WatchReadiness([&changes] { ++changes; });
  sim.device().FailLoads(1);
  const size_t failed = sim.Submit({.model = 0});
  sim.Drain();
  EXPECT_TRUE(absl::IsUnavailable(sim.outcomes()[failed].status));
  EXPECT_THAT(std::string(sim.outcomes()[failed].status.message()),
              ::testing::AllOf(HasSubstr("cannot be loaded"),
                               HasSubstr("needs 100 bytes of 400")));
  EXPECT_TRUE(absl::IsUnavailable(sim.scheduler().ModelReady(0)));
  EXPECT_EQ(sim.scheduler().ModelReady(1), absl::OkStatus());
  // By itself, for nobody asks a node that is not ready.
  sim.RunUntil(sim.now() + Ms(99));
  EXPECT_TRUE(absl::IsUnavailable(sim.scheduler().ModelReady(0)));
  sim.RunUntil(sim.now() + Ms(200));
  EXPECT_EQ(sim.scheduler().ModelReady(0), absl::OkStatus());
  EXPECT_EQ(changes, 2);
  const size_t again = sim.Submit({.model = 0});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[again].status, absl::OkStatus());
}

TEST(SchedulerTest, ALostInstanceFailsWhatItHoldsAndIsStartedAgain) {
  Simulation sim(Fixed(Ms(10), 1, 2), {Model("a", Ms(10))});
  sim.device().FailExecutions(1);
  const size_t executing = sim.Submit({});
  const size_t staged = sim.Submit({});
  const size_t queued = sim.Submit({});
  sim.RunUntil(Ms(10));
  for (const size_t i : {executing, staged, queued}) {
    EXPECT_TRUE(absl::IsUnavailable(sim.outcomes()[i].status))
        << i << " " << sim.outcomes()[i].status;
    EXPECT_EQ(sim.outcomes()[i].answers, 1);
  }
  EXPECT_THAT(std::string(sim.outcomes()[executing].status.message()),
              HasSubstr("fell off the bus"));
  // Not ready: told at once, so that the CN goes elsewhere.
  EXPECT_TRUE(absl::IsUnavailable(sim.scheduler().ModelReady(0)));
  EXPECT_TRUE(absl::IsUnavailable(sim.scheduler().Admit(0, 1, absl::Now())));
  const size_t meanwhile = sim.Submit({});
  EXPECT_TRUE(absl::IsUnavailable(sim.outcomes()[meanwhile].status));
  sim.RunUntil(Ms(109));
  EXPECT_FALSE(sim.scheduler().ModelReady(0).ok());
  sim.RunUntil(Ms(110));  // 100 ms later
  EXPECT_EQ(sim.scheduler().ModelReady(0), absl::OkStatus());
  const size_t after = sim.Submit({});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[after].status, absl::OkStatus());
  EXPECT_THAT(sim.device().violations(), IsEmpty());
  EXPECT_EQ(sim.scheduler().stats(0).unavailable, 5);
}

TEST(SchedulerTest, BackOffDoublesUntilSomethingIsExecuted) {
  Simulation sim(Fixed(Ms(10)), {Model("a", Ms(10))},
                 {.first_backoff = Ms(100), .last_backoff = Ms(300)});
  sim.device().FailExecutions(1);
  sim.device().FailStarts(3);
  sim.Submit({});
  sim.RunUntil(Ms(10));
  std::vector<double> ups;
  const auto up_at = [&] {
    while (!sim.scheduler().ModelReady(0).ok()) {
      sim.RunUntil(sim.now() + Ms(1));
    }
    return sim.now();
  };
  // 100 + 200 + 300 + 300 after the failure at 10.
  EXPECT_EQ(up_at(), Ms(910));
  sim.Submit({});
  sim.Drain();
  sim.device().FailExecutions(1);
  sim.Submit({});
  const absl::Duration begin = sim.now();
  sim.RunUntil(begin + Ms(10));
  EXPECT_EQ(up_at(), begin + Ms(110));
}

TEST(SchedulerTest, TheOtherInstancesGoOn) {
  Simulation sim(Fixed(Ms(10), 2), {Model("a", Ms(10))});
  sim.device().FailExecutions(1);
  for (int i = 0; i < 6; ++i) sim.Submit({});
  sim.Drain();
  int lost = 0;
  for (const Outcome& outcome : sim.outcomes()) {
    lost += absl::IsUnavailable(outcome.status);
    EXPECT_EQ(outcome.answers, 1);
  }
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(sim.scheduler().ModelReady(0), absl::OkStatus());
}

TEST(SchedulerTest, ClosedRefusesAndFinishesWhatItHas) {
  Simulation sim(Fixed(Ms(10)), {Model("a", Ms(10))});
  sim.Submit({});
  sim.Submit({});
  sim.scheduler().Close();
  const size_t late = sim.Submit({});
  EXPECT_TRUE(absl::IsUnavailable(sim.outcomes()[late].status));
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[1].status, absl::OkStatus());
}

// Random models, devices, arrivals and faults.
TEST(SchedulerPropertyTest, NothingIsLostNorAnsweredTwiceNorOutOfOrder) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  FLAGS_minloglevel = google::FATAL;  // thousands of failures are meant
  std::mt19937 random(seed);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % bound);
  };
  for (int round = 0; round < 60; ++round) {
    FakeDevice::Options options;
    options.traits.instances = 1 + below(4);
    options.traits.slots = 1 + below(3);
    std::vector<ScheduledModel> models;
    const int count = 1 + below(4);
    size_t most = 0;
    for (int i = 0; i < count; ++i) {
      ScheduledModel model = below(2) == 0 ? Merging(Ms(below(20)))
                                           : Model("plain", Ms(1 + below(20)));
      model.share = 1 + below(3);
      model.weight_bytes = 1 + below(100);
      model.max_instances = below(3);
      model.batching.max_rows = 1 + below(64);
      most = std::max(most, model.weight_bytes);
      options.weight_bytes.push_back(model.weight_bytes);
      models.push_back(model);
    }
    if (below(2) == 0) {
      options.traits.weight_memory = most + below(100);
      options.traits.load_bytes_per_s = 1000;
    }
    std::mt19937 costs(random());
    const auto some = [&costs](double ms) {
      return [&costs, ms](const Batch&) {
        return Ms(ms * (1 + static_cast<double>(costs() % 100)) / 50);
      };
    };
    options.upload = some(1);
    options.execute = some(8);
    options.download = some(1);
    SchedulerOptions limits;
    limits.max_queue = 1 + below(50);
    Simulation sim(options, models, limits);
    for (int i = 0; i < 200; ++i) {
      if (below(40) == 0) sim.device().FailExecutions(1 + below(2));
      if (below(80) == 0) sim.device().FailStarts(1);
      if (below(60) == 0) sim.device().FailLoads(1);
      if (below(3) > 0) sim.RunUntil(sim.now() + Ms(below(12)));
      SimulatedRequest request;
      request.model = below(count);
      request.rows = 1 + below(32);
      if (below(2) == 0) request.time_left = Ms(below(100));
      request.merge_key = std::string(below(3), 'k');
      request.abandoned = below(20) == 0;
      sim.Submit(request);
    }
    sim.Drain();
    ASSERT_THAT(sim.device().violations(), IsEmpty()) << round;
    ASSERT_EQ(sim.scheduler().pending(), 0) << round;
    ModelStats sum;
    uint64_t ok = 0;
    for (const Outcome& outcome : sim.outcomes()) {
      ASSERT_EQ(outcome.answers, 1) << round;
      ok += outcome.status.ok();
    }
    uint64_t accounted = 0;
    for (int i = 0; i < count; ++i) {
      const ModelStats stats = sim.scheduler().stats(i);
      sum.succeeded += stats.succeeded;
      accounted += stats.succeeded + stats.failed + stats.expired +
                   stats.abandoned + stats.refused + stats.queue_full +
                   stats.too_large + stats.unavailable;
    }
    ASSERT_EQ(sum.succeeded, ok);
    ASSERT_EQ(accounted, sim.outcomes().size()) << round;
  }
}

// With no merging and one slot, requests of a model that wait at the same time
// begin in the order of their deadlines.
TEST(SchedulerPropertyTest, EarliestDeadlineFirstWithinAModel) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20; ++round) {
    Simulation sim(Fixed(Ms(10)), {Model("a", Ms(10)), Model("b", Ms(10))});
    struct Sent {
      size_t index, model;
      absl::Duration arrival, deadline;
    };
    std::vector<Sent> sent;
    for (int i = 0; i < 100; ++i) {
      sim.RunUntil(sim.now() + Ms(random() % 8));
      const size_t model = random() % 2;
      const absl::Duration left = Ms(200 + random() % 3000);
      sent.push_back({sim.Submit({.model = model, .time_left = left}), model,
                      sim.now(), sim.now() + left});
    }
    sim.Drain();
    for (const Sent& a : sent) {
      for (const Sent& b : sent) {
        const Outcome& of_a = sim.outcomes()[a.index];
        const Outcome& of_b = sim.outcomes()[b.index];
        if (a.model != b.model || !of_a.status.ok() || !of_b.status.ok()) {
          continue;
        }
        const absl::Duration a_began = a.arrival + of_a.latency - Ms(10);
        const absl::Duration b_began = b.arrival + of_b.latency - Ms(10);
        // b was there when a began, was more urgent, and went later.
        ASSERT_FALSE(b.arrival < a_began && b.deadline < a.deadline &&
                     a_began < b_began)
            << round << ": " << a.index << " before " << b.index;
      }
    }
  }
}

}  // namespace
}  // namespace refract::gpu_node
