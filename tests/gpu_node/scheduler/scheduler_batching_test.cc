// Requests that are executed together, and one that is executed in steps.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_node/scheduler/scheduler.h"
#include "gtest/gtest.h"
#include "tests/gpu_node/scheduler/scheduler_fixture.h"

namespace refract::gpu_node {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SchedulerBatchingTest, RowsBeyondTheLargestBatch) {
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

TEST(SchedulerBatchingTest,
     ARequestInStepsIsAnsweredOnceAndStopsWhenItsTimeIsUp) {
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

TEST(SchedulerBatchingTest, StepsEndAtTheDeadline) {
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
  // The first step shows that the others would be too late.
  EXPECT_EQ(sim.device().executions().size(), 1);
  EXPECT_EQ(sim.scheduler().stats(0).expired, 1);
  EXPECT_EQ(sim.scheduler().pending(), 0);
}

TEST(SchedulerBatchingTest, TheFirstRequestOfAnotherModelFindsNoLongExecution) {
  const auto run = [](bool alone) {
    const auto cost = [](int64_t rows) {
      return Ms(0.5 + 0.2 * static_cast<double>(rows));
    };
    ScheduledModel large;
    large.label = "model 'large'";
    large.batching.max_rows = 16384;
    large.splittable = true;
    large.stepwise = true;
    for (int bucket = 0; scheduling::RowsOfBucket(bucket) <= 16384; ++bucket) {
      large.times.Prime(scheduling::RowsOfBucket(bucket),
                        cost(scheduling::RowsOfBucket(bucket)));
    }
    FakeDevice::Options device;
    device.traits.steps = true;
    device.execute = [cost](const Batch& batch) {
      return batch.model == 0 ? cost(batch.rows) : Ms(1);
    };
    std::vector<ScheduledModel> models = {large};
    if (!alone) models.push_back(Model("small", Ms(1)));
    Simulation sim(device, models);
    sim.Submit({.model = 0, .rows = 16384});  // more than 3 s
    sim.RunUntil(Ms(500));
    const size_t first = alone ? 0 : sim.Submit({.model = 1});
    sim.Drain();
    EXPECT_EQ(sim.outcomes()[0].status, absl::OkStatus());
    // Short turns leave at least half of its rows per second.
    EXPECT_LE(sim.outcomes()[0].latency, Ms(2 * 3300));
    if (alone) {
      EXPECT_EQ(sim.device().executions().size(), 1);
    } else {
      EXPECT_LE(sim.outcomes()[first].latency, Ms(50 + 1));
    }
  };
  run(/*alone=*/false);
  // Alone on the node, a request is not cut for other models.
  run(/*alone=*/true);
}

TEST(SchedulerBatchingTest, WhatWaitsIsExecutedTogether) {
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

TEST(SchedulerBatchingTest, WaitsForOthersOnlyWhileTheyComeFast) {
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

TEST(SchedulerBatchingTest, TheWindowEndsByTimer) {
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

}  // namespace
}  // namespace refract::gpu_node
