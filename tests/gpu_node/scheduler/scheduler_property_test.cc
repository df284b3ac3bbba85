// Properties that hold for any arrivals and any failures.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gpu_node/scheduler/scheduler.h"
#include "gtest/gtest.h"
#include "tests/base/random_seed.h"
#include "tests/gpu_node/scheduler/scheduler_fixture.h"

namespace refract::gpu_node {
namespace {

using ::testing::IsEmpty;

// Random models, devices, arrivals and faults.
TEST(SchedulerPropertyTest, NothingIsLostNorAnsweredTwiceNorOutOfOrder) {
  const uint32_t seed = base::RandomSeed();
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
  const uint32_t seed = base::RandomSeed();
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
