// Models that are still being measured beside models that serve.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu_node/scheduler/scheduler_fixture.h"

namespace refract::gpu_node {
namespace {

using ::testing::HasSubstr;

ScheduledModel Unmeasured(const std::string& name) {
  ScheduledModel model;
  model.label = "model '" + name + "'";
  model.measuring = true;
  return model;
}

TEST(MeasuringTest, OneModelServesWhileAnotherIsMeasured) {
  Simulation sim(Fixed(Ms(10)), {Model("a", Ms(10)), Unmeasured("b")});
  int told = 0;
  sim.scheduler().WatchReadiness([&] { ++told; });
  EXPECT_TRUE(sim.scheduler().ModelReady(0).ok());
  const absl::Status why = sim.scheduler().ModelReady(1);
  EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(why.message()),
              HasSubstr("model 'b' is still being measured"));
  EXPECT_EQ(sim.scheduler().Admit(1, 0, 1, absl::InfiniteFuture()), why);
  const size_t a = sim.Submit({.model = 0});
  const size_t refused = sim.Submit({.model = 1});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[a].status, absl::OkStatus());
  EXPECT_EQ(sim.outcomes()[refused].status, why);

  told = 0;
  scheduling::ExecutionTimes times;
  times.Prime(1, Ms(20));
  sim.scheduler().SetTimes(1, times);
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(sim.scheduler().ModelReady(1).ok());
  const size_t served = sim.Submit({.model = 1});
  // Predicted from measurements.
  const size_t late = sim.Submit({.model = 1, .time_left = Ms(15)});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[served].status, absl::OkStatus());
  EXPECT_FALSE(sim.outcomes()[late].status.ok());
}

// A model that cannot run with made-up inputs has no times at all.
TEST(MeasuringTest, AModelWithoutTimesServes) {
  Simulation sim(Fixed(Ms(10)), {Unmeasured("a")});
  sim.scheduler().SetTimes(0, scheduling::ExecutionTimes());
  sim.Submit({.time_left = Ms(50)});
  sim.Drain();
  EXPECT_EQ(sim.outcomes()[0].status, absl::OkStatus());
}

}  // namespace
}  // namespace refract::gpu_node
