// The effect of the scheduler's rules, in virtual time: the same arrivals with
// and without them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "base/process/mutex_checks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gpu_node/scheduler/load_fixture.h"
#include "tests/gpu_node/scheduler/simulation.h"

namespace refract::gpu_node {
namespace {

using ::testing::IsEmpty;

// Fixed: these are numbers, not a search for faults.
constexpr uint32_t kSeed = 20250;

class SchedulerLoadTest : public ::testing::Test {
 protected:
  // The detection of lock-order cycles takes a quarter of the time here. The
  // scheduler's other tests take the same locks with it.
  static void SetUpTestSuite() { base::StopMutexDeadlockChecks(); }
};

// ------------------------------------------------------------------ batching

struct Load {
  const char* what;
  Cost cost;
  std::vector<int64_t> rows;  // each as often
  absl::Duration slo;
};

// p99 of the same schedule at `per_second`; unanswered requests count as
// infinite.
absl::Duration P99(const Load& load,
                   const scheduling::BatchingOptions& batching,
                   double per_second) {
  constexpr int kRequests = 2500;
  std::mt19937 random(kSeed);
  std::exponential_distribution<double> gap(1.0);
  FakeDevice::Options device;
  device.execute = [&](const Batch& batch) { return load.cost.Of(batch.rows); };
  ScheduledModel model = ModelOf(load.cost);
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
double HighestRate(const Load& load,
                   const scheduling::BatchingOptions& batching) {
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

TEST_F(SchedulerLoadTest, BatchingServesMoreSmallRequests) {
  // About the cost of a dense part, which consists mostly of launches.
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

TEST_F(SchedulerLoadTest, BatchingDoesNoHarmWhereThereIsNothingToGain) {
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
  int slots = 1;            // 2: the next batch is uploaded, in 50 µs
  double quiet_load = 0.3;  // of all instances
  // Cost of the loud model's executions. The quiet model's take 1 ms.
  Cost loud = {250, 0};
  int64_t loud_rows = 1;  // of one request
  bool merged = false;    // the loud one's requests
  bool stepwise = false;
  bool loud_is_there = true;
  bool isolation = true;
};
constexpr double kQuietUs = 1000;
// The share of kQuietUs that a turn of other models may take.
constexpr double kFelt = 0.2;
constexpr double kQuietCount = 3000;

struct Neighbourhood {
  absl::Duration quiet_p99;
  double loud_rows_per_s = 0;
  uint64_t steps = 0;
  absl::Duration longest;  // execution of the loud one, once it is known
};

Neighbourhood ObserveNeighbours(const Neighbours& n) {
  // The quiet one's requests; enough for a 99th percentile.
  const absl::Duration duration =
      absl::Microseconds(kQuietCount * kQuietUs / (n.quiet_load * n.instances));
  const auto arrivals = [&](size_t model, int64_t rows, double us,
                            double load) {
    std::mt19937 own(kSeed + model);
    std::vector<SimulatedRequest> requests;
    for (const absl::Duration at :
         PoissonArrivals(own, load * n.instances * 1e6 / us, duration)) {
      requests.push_back({.arrival = at, .model = model, .rows = rows});
      if (!n.merged) requests.back().merge_key.clear();
    }
    return requests;
  };
  const Cost quiet = {kQuietUs, 0};
  FakeDevice::Options device;
  device.traits.instances = n.instances;
  device.traits.slots = n.slots;
  if (n.slots > 1) {
    device.upload = [](const Batch&) { return absl::Microseconds(50); };
  }
  device.traits.steps = true;
  device.execute = [&](const Batch& batch) {
    return (batch.model == 0 ? quiet : n.loud).Of(batch.rows);
  };
  ScheduledModel loud = ModelOf(n.loud);
  loud.batching.enabled = n.merged;
  loud.stepwise = n.stepwise;
  Simulation sim(device, {ModelOf(quiet), loud},
                 {.max_queue = 1 << 8, .isolation = n.isolation});
  std::vector<SimulatedRequest> all = arrivals(0, 1, kQuietUs, n.quiet_load);
  if (n.loud_is_there) {
    // Far more than what it could do if it had the device to itself.
    const int64_t together = n.merged ? 1024 : n.loud_rows;
    const double us = absl::ToDoubleMicroseconds(n.loud.Of(together)) *
                      static_cast<double>(n.loud_rows) /
                      static_cast<double>(together);
    for (const auto& request : arrivals(1, n.loud_rows, us, 1.6)) {
      all.push_back(request);
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return a.arrival < b.arrival;
    });
  }
  sim.Run(all);
  EXPECT_THAT(sim.device().violations(), IsEmpty());
  Neighbourhood seen;
  std::vector<absl::Duration> latencies;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].model != 0) continue;
    // The first tenth: until it shows who wants how much.
    if (all[i].arrival < duration / 10) continue;
    latencies.push_back(sim.outcomes()[i].status.ok()
                            ? sim.outcomes()[i].latency
                            : absl::InfiniteDuration());
  }
  seen.quiet_p99 = PercentileOf(latencies, 0.99);
  int64_t rows = 0;
  const absl::Time begin = absl::FromUnixSeconds(1000);
  for (const FakeDevice::Execution& e : sim.device().executions()) {
    if (e.model != 1 || e.end > begin + duration) continue;
    rows += e.rows;
    if (e.begin > begin + duration / 10) {
      seen.longest = std::max(seen.longest, e.end - e.begin);
    }
  }
  seen.loud_rows_per_s =
      static_cast<double>(rows) / absl::ToDoubleSeconds(duration);
  seen.steps = sim.scheduler().stats(1).steps;
  return seen;
}

// p99 of the quiet model beside the loud one ÷ alone. `beside` may be null.
double Disturbance(Neighbours n, Neighbourhood* beside = nullptr) {
  n.loud_is_there = false;
  const Neighbourhood alone = ObserveNeighbours(n);
  n.loud_is_there = true;
  const Neighbourhood with = ObserveNeighbours(n);
  const double ratio = absl::FDivDuration(with.quiet_p99, alone.quiet_p99);
  std::printf(
      "%d instances, quiet 1 ms at %.1f, loud %.0f + %.0f us a row, %lld rows: "
      "p99 %s alone, %.2f times that beside %.0f rows/s\n",
      n.instances, n.quiet_load, n.loud.launch_us, n.loud.row_us,
      static_cast<long long>(n.loud_rows),
      absl::FormatDuration(alone.quiet_p99).c_str(), ratio,
      with.loud_rows_per_s);
  if (beside != nullptr) *beside = with;
  return ratio;
}

TEST_F(SchedulerLoadTest, AnOverloadedModelLeavesTheOthersAlone) {
  // Half the device is the quiet model's. Turns of up to a fifth of its time.
  for (const int instances : {1, 2, 4}) {
    for (const double load : {0.1, 0.3}) {
      EXPECT_LE(
          Disturbance(
              {.instances = instances, .quiet_load = load, .loud = {200, 0}}),
          1.2)
          << instances << " instances, load " << load;
    }
  }
}

TEST_F(SchedulerLoadTest, WhatCannotBeMadeShorterDelaysByNoMoreThanItself) {
  for (const int instances : {1, 2, 4}) {
    for (const double loud_us : {400.0, kQuietUs}) {
      for (const double load : {0.1, 0.3}) {
        Neighbours n = {
            .instances = instances, .quiet_load = load, .loud = {loud_us, 0}};
        n.loud_is_there = false;
        const absl::Duration alone = ObserveNeighbours(n).quiet_p99;
        Neighbourhood beside;
        n.loud_is_there = true;
        Disturbance(n, &beside);
        EXPECT_LE(beside.quiet_p99, alone + absl::Microseconds(loud_us));
        // The loud one has all that the quiet one leaves.
        EXPECT_GE(beside.loud_rows_per_s,
                  0.97 * (1 - load) * instances * 1e6 / loud_us);
      }
    }
  }
}

TEST_F(SchedulerLoadTest, LongExecutionsAreMadeShortForTheQuietOnesSake) {
  // Requests of 180 rows that would take 2 ms, twice a quiet one, and small
  // ones of which 1024 rows are merged into 10 ms.
  for (const int instances : {1, 4}) {
    for (const double load : {0.1, 0.3}) {
      Neighbourhood beside;
      EXPECT_LE(Disturbance({.instances = instances,
                             .quiet_load = load,
                             .loud = {40, 10},
                             .loud_rows = 180,
                             .stepwise = true},
                            &beside),
                1.2);
      EXPECT_GT(beside.steps, 1000);
      EXPECT_LE(beside.longest, absl::Microseconds(kQuietUs * kFelt));
      EXPECT_LE(Disturbance({.instances = instances,
                             .quiet_load = load,
                             .loud = {40, 10},
                             .loud_rows = 16,
                             .merged = true},
                            &beside),
                1.2);
      EXPECT_LE(beside.longest, absl::Microseconds(kQuietUs * kFelt));
    }
  }
}

TEST_F(SchedulerLoadTest, AStagedBatchIsNoSecondTurnInTheWay) {
  for (const int instances : {1, 4}) {
    for (const double load : {0.1, 0.3}) {
      Neighbourhood beside;
      EXPECT_LE(Disturbance({.instances = instances,
                             .slots = 2,
                             .quiet_load = load,
                             .loud = {40, 10},
                             .loud_rows = 16,
                             .merged = true},
                            &beside),
                1.2);
    }
  }
}

TEST_F(SchedulerLoadTest, WithoutIsolationNothingIsMadeShorter) {
  const Neighbourhood beside = ObserveNeighbours({.quiet_load = 0.1,
                                                  .loud = {40, 10},
                                                  .loud_rows = 180,
                                                  .stepwise = true,
                                                  .isolation = false});
  EXPECT_EQ(beside.steps, 0u);
  EXPECT_EQ(beside.longest, Cost({40, 10}).Of(180));
}

TEST_F(SchedulerLoadTest, ShortExecutionsCostTheLoudModelLessThanHalfItsRows) {
  // A quiet model so quick that two rows of the loud one are longer than a
  // fifth of its time: they are still executed together.
  const Neighbours n = {
      .quiet_load = 0.1, .loud = {200, 10}, .loud_rows = 4, .merged = true};
  const Neighbourhood beside = ObserveNeighbours(n);
  // 16 rows in 360 us, where one takes 210: nine tenths of the time are its.
  EXPECT_EQ(beside.longest, absl::Microseconds(360));
  EXPECT_GE(beside.loud_rows_per_s, 0.8 * 16 / 360e-6);
}

}  // namespace
}  // namespace refract::gpu_node
