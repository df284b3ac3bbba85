// What the scheduler's rules are worth, in virtual time: the same arrivals with
// and without them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu_node/simulation.h"

namespace refract::gpu_node {
namespace {

using ::testing::IsEmpty;

// Fixed: these are numbers, not a search for faults.
constexpr uint32_t kSeed = 20250;

// A device that needs `launch_us` per execution and `row_us` per padded row.
struct Cost {
  double launch_us = 0;
  double row_us = 0;
  absl::Duration Of(int64_t rows) const {
    return absl::Microseconds(
        launch_us + row_us * static_cast<double>(RowsOfBucket(BucketOf(rows))));
  }
};

ScheduledModel Model(const Cost& cost, int64_t max_rows = 1024) {
  ScheduledModel model;
  model.label = "model";
  model.batching.max_rows = max_rows;
  for (int bucket = 0; RowsOfBucket(bucket) <= max_rows; ++bucket) {
    model.times.Prime(RowsOfBucket(bucket), cost.Of(RowsOfBucket(bucket)));
  }
  return model;
}

// ------------------------------------------------------------------ batching

struct Load {
  const char* what;
  Cost cost;
  std::vector<int64_t> rows;  // each as often
  absl::Duration slo;
};

// p99 of the same schedule at `per_second`; what is not answered counts as
// never.
absl::Duration P99(const Load& load, const BatchingOptions& batching,
                   double per_second) {
  constexpr int kRequests = 2500;
  std::mt19937 random(kSeed);
  std::exponential_distribution<double> gap(1.0);
  FakeDevice::Options device;
  device.execute = [&](const Batch& batch) { return load.cost.Of(batch.rows); };
  ScheduledModel model = Model(load.cost);
  model.batching = batching;
  model.batching.max_rows = 1024;
  Simulation sim(device, {model});
  std::vector<SimulatedRequest> requests;
  double at = 0;
  for (int i = 0; i < kRequests; ++i) {
    at += gap(random) / per_second;
    requests.push_back({.arrival = absl::Seconds(at),
                        .rows = load.rows[random() % load.rows.size()],
                        .time_left = load.slo});
  }
  sim.Run(requests);
  EXPECT_THAT(sim.device().violations(), IsEmpty());
  std::vector<absl::Duration> latencies;
  for (const Outcome& outcome : sim.outcomes()) {
    EXPECT_EQ(outcome.answers, 1);
    latencies.push_back(outcome.status.ok() ? outcome.latency
                                            : absl::InfiniteDuration());
  }
  return PercentileOf(latencies, 0.99);
}

// Highest rate that holds the SLO, to 3 %.
double HighestRate(const Load& load, const BatchingOptions& batching) {
  double low = 100;
  double high = 200;
  while (P99(load, batching, high) <= load.slo) {
    low = high;
    high *= 2;
  }
  while (high / low > 1.03) {
    const double middle = std::sqrt(low * high);
    (P99(load, batching, middle) <= load.slo ? low : high) = middle;
  }
  return low;
}

double Gain(const Load& load) {
  const double off = HighestRate(load, {.enabled = false});
  const double now = HighestRate(load, {.enabled = true});
  const double window =
      HighestRate(load, {.enabled = true, .window = absl::Microseconds(500)});
  std::printf("%s: %.0f/s alone, %.2f times that merged, %.2f with a window\n",
              load.what, off, now / off, window / off);
  return std::min(now, window) / off;
}

TEST(SchedulerLoadTest, BatchingServesMoreSmallRequests) {
  // About what a dense part costs: performance is set by the launches.
  EXPECT_GE(Gain({"small requests, launch bound",
                  {100, 1},
                  {1, 2, 4, 8},
                  absl::Milliseconds(2)}),
            1.5);
  EXPECT_GE(Gain({"small requests, rows as dear as a tenth of a launch",
                  {50, 5},
                  {1, 2, 4},
                  absl::Milliseconds(2)}),
            1.5);
}

TEST(SchedulerLoadTest, BatchingDoesNoHarmWhereThereIsNothingToGain) {
  EXPECT_GE(Gain({"time in proportion to rows",
                  {0, 20},
                  {4, 8, 16},
                  absl::Milliseconds(5)}),
            0.95);
  EXPECT_GE(Gain({"large requests",
                  {100, 1},
                  {512, 700, 1000},
                  absl::Milliseconds(20)}),
            0.95);
}

// -------------------------------------------------------------- fair shares

struct Neighbours {
  int instances = 1;
  double quiet_ms = 1;  // an execution of the model that is to be left alone
  double quiet_load = 0.3;  // of all instances
  double loud_ms = 0.25;    // of the other
  double loud_load = 0;     // 0: it is not there
  bool deadlines = false;
};

absl::Duration QuietP99(const Neighbours& n) {
  const absl::Duration duration = absl::Seconds(4);
  const auto arrivals = [&](size_t model, double ms, double load) {
    std::mt19937 own(kSeed + model);
    std::vector<SimulatedRequest> requests;
    for (const absl::Duration at :
         PoissonArrivals(own, load * n.instances * 1000 / ms, duration)) {
      requests.push_back({.arrival = at, .model = model});
      if (n.deadlines) requests.back().time_left = absl::Milliseconds(50 * ms);
    }
    return requests;
  };
  FakeDevice::Options device;
  device.traits.instances = n.instances;
  device.execute = [&](const Batch& batch) {
    return absl::Milliseconds(batch.model == 0 ? n.quiet_ms : n.loud_ms);
  };
  Simulation sim(device,
                 {Model({n.quiet_ms * 1000, 0}), Model({n.loud_ms * 1000, 0})},
                 {.max_queue = 1 << 10});
  std::vector<SimulatedRequest> all = arrivals(0, n.quiet_ms, n.quiet_load);
  if (n.loud_load > 0) {
    for (const SimulatedRequest& request :
         arrivals(1, n.loud_ms, n.loud_load)) {
      all.push_back(request);
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return a.arrival < b.arrival;
    });
  }
  sim.Run(all);
  std::vector<absl::Duration> latencies;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].model != 0) continue;
    latencies.push_back(sim.outcomes()[i].status.ok()
                            ? sim.outcomes()[i].latency
                            : absl::InfiniteDuration());
  }
  return PercentileOf(latencies, 0.99);
}

double Disturbance(Neighbours n) {
  n.loud_load = 0;
  const absl::Duration alone = QuietP99(n);
  n.loud_load = 3;
  const absl::Duration beside = QuietP99(n);
  const double ratio = absl::FDivDuration(beside, alone);
  std::printf(
      "%d instances, quiet %.2f ms at %.2f, loud %.2f ms: p99 %s alone, "
      "%.2f times that beside\n",
      n.instances, n.quiet_ms, n.quiet_load, n.loud_ms,
      absl::FormatDuration(alone).c_str(), ratio);
  return ratio;
}

TEST(SchedulerLoadTest, AnOverloadedModelLeavesTheOthersAlone) {
  // Half the device is the quiet one's. An execution cannot be interrupted, so
  // how much is felt of the loud one depends on how long its executions are:
  // here a quarter of the quiet one's.
  for (const int instances : {1, 2, 4}) {
    for (const double load : {0.1, 0.3}) {
      EXPECT_LE(Disturbance({.instances = instances, .quiet_load = load}), 1.2)
          << instances << " instances, load " << load;
    }
  }
}

}  // namespace
}  // namespace refract::gpu_node
