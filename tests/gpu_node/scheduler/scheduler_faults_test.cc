// Loads and evictions of weights, lost and stuck instances, and Close().
#include <algorithm>
#include <string>
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

// Weights of 100, 200 and 300 bytes in 400 bytes of memory; a copy takes a
// millisecond per byte.
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

// A device with memory for one of TwoLargeModels(); a copy of its weights takes
// `copy_ms`.
FakeDevice::Options RoomForOne(double copy_ms) {
  FakeDevice::Options options = Fixed(Ms(10));
  options.traits.weight_memory = 150;
  options.weight_bytes = {100, 100};
  options.traits.load_bytes_per_s = 100 / (copy_ms / 1000);
  return options;
}

std::vector<ScheduledModel> TwoLargeModels(const char* first,
                                           const char* second) {
  std::vector<ScheduledModel> models = {Model(first, Ms(10)),
                                        Model(second, Ms(10))};
  for (ScheduledModel& model : models) model.weight_bytes = 100;
  return models;
}

TEST(SchedulerFaultsTest, SwitchesModelsInTheTimeOfOneCopy) {
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
  // Model 2 needs the memory of model 1, which was used before model 0.
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

TEST(SchedulerFaultsTest, OthersExecuteWhileWeightsAreCopied) {
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

TEST(SchedulerFaultsTest, TwoModelsThatDoNotFitTogetherBothGetOn) {
  Simulation sim(SmallMemory(), ThreeModels());
  for (int i = 0; i < 100; ++i) {
    sim.Submit({.model = 1});
    sim.Submit({.model = 2});
  }
  sim.Drain();
  EXPECT_THAT(sim.device().violations(), IsEmpty());
  EXPECT_EQ(sim.scheduler().stats(1).succeeded, 100);
  EXPECT_EQ(sim.scheduler().stats(2).succeeded, 100);
  // A model pays for the copies of its weights, so there are few of them.
  EXPECT_LE(sim.device().loads().size(), 40);
  EXPECT_GE(sim.device().loads().size(), 2);
}

// The longest wait of a request of model 2, whose weights are not in memory,
// beside model 1, which gets `requests` requests every 10 ms. Memory holds one
// of the two models.
absl::Duration LongestWaitBeside(int requests, FakeDevice::Options options) {
  const FakeDevice::Options small = SmallMemory();
  options.traits.weight_memory = small.traits.weight_memory;
  options.traits.load_bytes_per_s = small.traits.load_bytes_per_s;
  options.weight_bytes = small.weight_bytes;
  options.execute = [n = 0](const Batch&) mutable { return Ms(13 + n++ % 5); };
  Simulation sim(options, ThreeModels());
  std::vector<size_t> asked;
  for (int i = 0; i < 1200; ++i) {
    for (int k = 0; k < requests; ++k) sim.Submit({.model = 1});
    if (i % 300 == 150) asked.push_back(sim.Submit({.model = 2}));
    sim.RunUntil(Ms(10) * (i + 1));
  }
  absl::Duration longest;
  for (const size_t i : asked) {
    const Outcome& outcome = sim.outcomes()[i];
    longest = std::max(longest, outcome.answers == 0 ? absl::InfiniteDuration()
                                                     : outcome.latency);
  }
  EXPECT_THAT(sim.device().violations(), IsEmpty());
  return longest;
}

TEST(SchedulerFaultsTest, ABusyModelMakesRoomForAModelOutOfMemory) {
  // The execution under way, the copies of both models, and the execution of
  // the request.
  const absl::Duration bound = Ms(17) + Ms(200 + 300) + Ms(17);
  EXPECT_LE(LongestWaitBeside(4, Fixed(Ms(10), 2)), bound);
  FakeDevice::Options staging = Fixed(Ms(10), 1, 2);
  staging.upload = [](const Batch&) { return Ms(1); };
  EXPECT_LE(LongestWaitBeside(4, staging), bound);
}

TEST(SchedulerFaultsTest, AModelOnSomeOfTheInstancesMakesRoomToo) {
  // Model 1 keeps one and a half of four instances busy.
  EXPECT_LE(LongestWaitBeside(1, Fixed(Ms(10), 4)),
            scheduling::DeficitRoundRobin::kMemory + Ms(17 + 500 + 17));
}

TEST(SchedulerFaultsTest, ALargeModelIsLoadedBesideSmallModelsThatTakeTurns) {
  // Memory holds four of the six small models, or the large one.
  FakeDevice::Options options = Fixed(Ms(10), 2);
  options.traits.weight_memory = 400;
  options.traits.load_bytes_per_s = 1000;
  options.weight_bytes = {100, 100, 100, 100, 100, 100, 400};
  std::vector<ScheduledModel> models;
  for (const size_t bytes : options.weight_bytes) {
    models.push_back(Model(std::to_string(bytes), Ms(10)));
    models.back().weight_bytes = bytes;
  }
  Simulation sim(options, models);
  size_t large = 0;
  for (int i = 0; i < 1000; ++i) {
    for (size_t model = 0; model < 6; ++model) sim.Submit({.model = model});
    if (i == 300) large = sim.Submit({.model = 6});
    sim.RunUntil(Ms(10) * (i + 1));
  }
  ASSERT_EQ(sim.outcomes()[large].answers, 1);
  // A small model whose copy has begun and that stays as long as it took, the
  // executions under way on two instances, then the large model's copy and
  // execution.
  EXPECT_LE(sim.outcomes()[large].latency, Ms(2 * 100 + 10 + 10 + 400 + 10));
  EXPECT_THAT(sim.device().violations(), IsEmpty());
}

TEST(SchedulerFaultsTest, AFailedLoadIsTriedAgainBesideABusyModel) {
  FakeDevice::Options options = SmallMemory();
  options.traits.instances = 2;
  options.execute = [n = 0](const Batch&) mutable { return Ms(13 + n++ % 5); };
  Simulation sim(options, ThreeModels());
  sim.device().FailLoads(1);
  sim.Submit({.model = 2});
  sim.RunUntil(Ms(1));
  // Model 1 takes the memory meanwhile, and always has requests under way.
  for (int i = 0; i < 200; ++i) {
    for (int k = 0; k < 4; ++k) sim.Submit({.model = 1});
    sim.RunUntil(Ms(10) * (i + 1));
  }
  EXPECT_EQ(sim.scheduler().ModelReady(2), absl::OkStatus());
  EXPECT_THAT(sim.device().violations(), IsEmpty());
}

TEST(SchedulerFaultsTest, ALoadThatAlwaysFailsCostsABusyModelLittle) {
  Simulation sim(RoomForOne(1500), TwoLargeModels("busy", "broken"));
  sim.device().FailLoadsOf(1);
  constexpr int kSeconds = 300;
  for (int i = 0; i < kSeconds * 100; ++i) {
    sim.Submit({.model = 0});
    if (i % 100 == 0) sim.Submit({.model = 1});
    sim.RunUntil(Ms(10) * (i + 1));
  }
  // Model 0 is evicted for the failing load and loaded again: 3 s, a twentieth
  // of the time.
  EXPECT_GE(sim.scheduler().stats(0).evictions, 2);
  EXPECT_LE(sim.scheduler().stats(0).evictions, kSeconds / 60 + 1);
  EXPECT_GE(sim.scheduler().stats(0).succeeded, kSeconds * 90);
  EXPECT_FALSE(sim.scheduler().ModelReady(1).ok());
  // Once loads of model 1 succeed, it is loaded beside the busy model.
  sim.device().FailLoadsOf(std::nullopt);
  for (int i = kSeconds * 100; i < (kSeconds + 70) * 100; ++i) {
    sim.Submit({.model = 0});
    sim.RunUntil(Ms(10) * (i + 1));
  }
  EXPECT_EQ(sim.scheduler().ModelReady(1), absl::OkStatus());
  EXPECT_THAT(sim.device().violations(), IsEmpty());
}

TEST(SchedulerFaultsTest, AFailedLoadIsTriedAgainSoonWhereItsRoomIsFree) {
  Simulation sim(RoomForOne(1500), TwoLargeModels("gone", "asked"));
  sim.Submit({.model = 0});
  sim.RunUntil(Ms(5000));
  EXPECT_EQ(sim.scheduler().stats(0).succeeded, 1);
  // Model 0 is evicted, and gets no more requests.
  sim.device().FailLoads(1);
  sim.Submit({.model = 1});
  sim.RunUntil(Ms(7000));
  EXPECT_EQ(sim.scheduler().stats(0).evictions, 1);
  // The failed load, the back-off, and the second load.
  sim.RunUntil(Ms(5000 + 1500 + 200 + 1500));
  EXPECT_EQ(sim.scheduler().ModelReady(1), absl::OkStatus());
  EXPECT_THAT(sim.device().violations(), IsEmpty());
}

TEST(SchedulerFaultsTest,
     BusyModelsThatTakeTurnsSpendHalfOfTheTimeOnCopiesAtMost) {
  for (const double copy_ms : {200.0, 1500.0}) {
    Simulation sim(RoomForOne(copy_ms), TwoLargeModels("a", "b"));
    for (int i = 0; i < 2000; ++i) {
      for (size_t model : {0, 1}) sim.Submit({.model = model});
      sim.RunUntil(Ms(10) * (i + 1));
    }
    uint64_t executed = 0;
    for (size_t model : {0, 1}) {
      const uint64_t own = sim.scheduler().stats(model).succeeded;
      EXPECT_GE(own, 350) << copy_ms;
      executed += own;
    }
    // There is time for 2000 executions.
    EXPECT_GE(executed, 900) << copy_ms;
    EXPECT_THAT(sim.device().violations(), IsEmpty());
  }
}

TEST(SchedulerFaultsTest, AFailedLoadIsToldAndTriedAgain) {
  Simulation sim(SmallMemory(), ThreeModels());
  int changes = 0;
  sim.scheduler().WatchReadiness([&changes] { ++changes; });
  sim.device().FailLoads(1);
  const size_t failed = sim.Submit({.model = 0});
  sim.Drain();
  EXPECT_TRUE(absl::IsUnavailable(sim.outcomes()[failed].status));
  EXPECT_THAT(std::string(sim.outcomes()[failed].status.message()),
              ::testing::AllOf(HasSubstr("cannot be loaded"),
                               HasSubstr("needs 100 bytes, and 400 bytes "
                                         "should be free")));
  EXPECT_TRUE(absl::IsUnavailable(sim.scheduler().ModelReady(0)));
  EXPECT_EQ(sim.scheduler().ModelReady(1), absl::OkStatus());
  // The scheduler loads again by itself: a node that is not ready gets no
  // requests.
  sim.RunUntil(sim.now() + Ms(99));
  EXPECT_TRUE(absl::IsUnavailable(sim.scheduler().ModelReady(0)));
  sim.RunUntil(sim.now() + Ms(200));
  EXPECT_EQ(sim.scheduler().ModelReady(0), absl::OkStatus());
  EXPECT_EQ(changes, 2);
  const size_t again = sim.Submit({.model = 0});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[again].status, absl::OkStatus());
}

TEST(SchedulerFaultsTest, ALostInstanceFailsWhatItHoldsAndIsStartedAgain) {
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
  // The node reports at once that it is not ready: the CN goes elsewhere.
  EXPECT_TRUE(absl::IsUnavailable(sim.scheduler().ModelReady(0)));
  EXPECT_TRUE(absl::IsUnavailable(sim.scheduler().Admit(0, 0, 1, absl::Now())));
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

// An execution that is refused half-way, for an id outside its table, is
// quicker than a whole one.
TEST(SchedulerFaultsTest, TimesOfRefusedRequestsAreNotLearnt) {
  bool bad = false;
  FakeDevice::Options options;
  options.execute = [&](const Batch&) { return bad ? Ms(0.1) : Ms(10); };
  options.on_execute = [&](Batch& batch) {
    for (BatchMember& member : batch.members) {
      member.status =
          bad ? absl::InvalidArgumentError("id 7 of 5 rows") : absl::OkStatus();
    }
  };
  Simulation sim(std::move(options), {Model("a", Ms(10))});
  sim.Submit({});
  sim.Drain();
  bad = true;
  for (int i = 0; i < 50; ++i) {
    const size_t refused = sim.Submit({});
    sim.Drain();
    ASSERT_TRUE(absl::IsInvalidArgument(sim.outcomes()[refused].status));
  }
  bad = false;
  const size_t late = sim.Submit({.time_left = Ms(5)});
  sim.Drain();
  EXPECT_TRUE(absl::IsDeadlineExceeded(sim.outcomes()[late].status))
      << sim.outcomes()[late].status;
}

TEST(SchedulerFaultsTest, AnExecutionThatDoesNotEndIsNoReasonToWait) {
  for (const int instances : {1, 2}) {
    FakeDevice::Options options = Fixed(Ms(10), instances);
    options.execute = [n = 0](const Batch&) mutable {
      return n++ == 0 ? absl::Seconds(100) : Ms(10);
    };
    Simulation sim(options, {Model("a", Ms(10))});
    int changes = 0;
    sim.scheduler().WatchReadiness([&changes] { ++changes; });
    const size_t stuck = sim.Submit({});
    std::vector<size_t> waiting;
    for (int i = 0; i < 4; ++i) waiting.push_back(sim.Submit({}));
    // An execution counts as stuck after ten seconds.
    sim.RunUntil(Ms(9999));
    EXPECT_EQ(sim.scheduler().ModelReady(0), absl::OkStatus());
    sim.RunUntil(Ms(12500));
    EXPECT_EQ(sim.outcomes()[stuck].answers, 0);
    if (instances == 1) {
      for (const size_t i : waiting) {
        EXPECT_TRUE(absl::IsUnavailable(sim.outcomes()[i].status));
        EXPECT_EQ(sim.outcomes()[i].answers, 1);
      }
      EXPECT_THAT(std::string(sim.scheduler().ModelReady(0).message()),
                  HasSubstr("has not finished an execution of model 'a'"));
      const size_t refused = sim.Submit({.time_left = Ms(1000)});
      EXPECT_TRUE(absl::IsUnavailable(sim.outcomes()[refused].status));
    } else {
      for (const size_t i : waiting) {
        EXPECT_EQ(sim.outcomes()[i].status, absl::OkStatus());
      }
      EXPECT_EQ(sim.scheduler().ModelReady(0), absl::OkStatus());
      // Predictions do not count on the stuck instance.
      sim.Submit({});
      sim.RunUntil(sim.now() + Ms(1));
      const size_t late = sim.Submit({.time_left = Ms(15)});
      EXPECT_TRUE(absl::IsResourceExhausted(sim.outcomes()[late].status));
    }
    sim.RunUntil(Ms(100010));
    EXPECT_EQ(sim.outcomes()[stuck].status, absl::OkStatus());
    EXPECT_EQ(sim.scheduler().ModelReady(0), absl::OkStatus());
    EXPECT_EQ(changes, instances == 1 ? 2 : 0);
    const size_t after = sim.Submit({});
    sim.Drain();
    EXPECT_EQ(sim.outcomes()[after].status, absl::OkStatus());
    EXPECT_THAT(sim.device().violations(), IsEmpty());
  }
  // An execution that was expected to take long is not stuck.
  Simulation slow(Fixed(absl::Seconds(19)), {Model("a", absl::Seconds(2))});
  const size_t first = slow.Submit({});
  const size_t second = slow.Submit({});
  slow.Drain();
  EXPECT_EQ(slow.outcomes()[first].status, absl::OkStatus());
  EXPECT_EQ(slow.outcomes()[second].status, absl::OkStatus());
}

TEST(SchedulerFaultsTest, AStuckModelWithoutAnotherInstanceIsNotReady) {
  FakeDevice::Options options = Fixed(Ms(10), 2);
  options.execute = [n = 0](const Batch&) mutable {
    return n++ == 0 ? absl::Seconds(100) : Ms(10);
  };
  ScheduledModel held = Model("held", Ms(10));
  held.max_instances = 1;
  Simulation sim(options, {held, Model("b", Ms(10))});
  const size_t stuck = sim.Submit({.model = 0});
  const size_t waiting = sim.Submit({.model = 0});
  sim.RunUntil(Ms(12500));
  // The second instance is free, but this model may use one instance only.
  EXPECT_TRUE(absl::IsUnavailable(sim.outcomes()[waiting].status));
  EXPECT_THAT(std::string(sim.scheduler().ModelReady(0).message()),
              HasSubstr("has not finished an execution of model 'held'"));
  EXPECT_EQ(sim.scheduler().ModelReady(1), absl::OkStatus());
  const size_t refused = sim.Submit({.model = 0});
  EXPECT_TRUE(absl::IsUnavailable(sim.outcomes()[refused].status));
  EXPECT_TRUE(absl::IsUnavailable(
      sim.scheduler().Admit(0, 0, 1, absl::InfiniteFuture())));
  const size_t other = sim.Submit({.model = 1});
  sim.RunUntil(Ms(12520));
  EXPECT_EQ(sim.outcomes()[other].status, absl::OkStatus());
  sim.RunUntil(Ms(100010));
  EXPECT_EQ(sim.outcomes()[stuck].status, absl::OkStatus());
  EXPECT_EQ(sim.scheduler().ModelReady(0), absl::OkStatus());
  const size_t after = sim.Submit({.model = 0});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[after].status, absl::OkStatus());
  EXPECT_THAT(sim.device().violations(), IsEmpty());
}

TEST(SchedulerFaultsTest, AnAnswerThatTakesLongToSendIsNoStuckExecution) {
  for (const int instances : {1, 2}) {
    Simulation sim(Fixed(Ms(10), instances), {Model("a", Ms(10))});
    // The clock jumps as it does when the process is stopped for a minute.
    size_t during = 0;
    sim.OnNextReply([&] {
      sim.Pass(absl::Seconds(60));
      during = sim.Submit({});
      EXPECT_EQ(sim.scheduler().ModelReady(0), absl::OkStatus());
    });
    const size_t first = sim.Submit({});
    sim.Drain();
    EXPECT_EQ(sim.outcomes()[first].status, absl::OkStatus());
    EXPECT_EQ(sim.outcomes()[during].status, absl::OkStatus());
    EXPECT_EQ(sim.scheduler().pending(), 0);
    EXPECT_THAT(sim.device().violations(), IsEmpty());
  }
}

TEST(SchedulerFaultsTest, BackOffDoublesUntilSomethingIsExecuted) {
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

TEST(SchedulerFaultsTest, TheOtherInstancesGoOn) {
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

TEST(SchedulerFaultsTest, ClosedRefusesAndFinishesWhatItHas) {
  Simulation sim(Fixed(Ms(10)), {Model("a", Ms(10))});
  sim.Submit({});
  sim.Submit({});
  sim.scheduler().Close();
  const size_t late = sim.Submit({});
  EXPECT_TRUE(absl::IsUnavailable(sim.outcomes()[late].status));
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[1].status, absl::OkStatus());
}

}  // namespace
}  // namespace refract::gpu_node
