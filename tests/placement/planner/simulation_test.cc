#include "placement/planner/simulation.h"

#include <cmath>
#include <deque>
#include <memory>
#include <numeric>
#include <vector>

#include "base/quantile.h"
#include "gtest/gtest.h"
#include "placement/planner/queueing.h"

namespace refract::placement {
namespace {

// Factors of an exponential distribution of mean 1: its quantiles.
Variation Exponential() {
  Variation variation;
  constexpr int kCount = 20'000;
  for (int i = 0; i < kCount; ++i) {
    variation.factors.push_back(-std::log(1 - (i + 0.5) / kCount));
  }
  return variation;
}

SimulatedLoad LoadAt(double rate, int requests = 200'000) {
  SimulatedLoad load;
  load.requests_per_s = rate;
  load.requests = requests;
  return load;
}

// A CN with one worker and exponential times is M/M/1, whose time in the system
// is exponential of rate μ − λ.
TEST(Simulation, OneWorkerIsMm1) {
  ModelCosts costs;
  costs.points = {{.cn_pre_s = 0.01}};
  costs.cn = Exponential();
  SimulatedLoad load = LoadAt(60);
  const RepeatedResult result =
      SimulateRepeatedly(costs, SimulatedSystem(), load, 5);
  EXPECT_NEAR(result.mean.mean_s, 1 / 40.0, 0.05 / 40);
  EXPECT_NEAR(result.p99_s.mean, std::log(100) / 40, 0.06 * std::log(100) / 40);
  EXPECT_NEAR(result.mean.cn_busy, 0.6, 0.01);
  EXPECT_EQ(result.mean.hn_busy, 0);
}

// M/M/4: the mean wait is C ÷ (kμ − λ).
TEST(Simulation, FourWorkersAreMm4) {
  ModelCosts costs;
  costs.points = {{.cn_pre_s = 0.01}};
  costs.cn = Exponential();
  const RepeatedResult result =
      SimulateRepeatedly(costs, {.cn_workers = 4}, LoadAt(320), 5);
  EXPECT_NEAR(result.mean.cn_wait_s, ErlangC(4, 3.2) / 80,
              0.07 * ErlangC(4, 3.2) / 80);
}

// An HN with constant times is M/D/1: the mean wait is ρ ÷ (2μ(1 − ρ)).
TEST(Simulation, HnIsMd1BehindAnIdleCn) {
  ModelCosts costs;
  costs.points = {{.cn_pre_s = 1e-9, .hn_s = 0.002}};
  SimulatedSystem system{.cn_workers = 64};
  const RepeatedResult result =
      SimulateRepeatedly(costs, system, LoadAt(400), 5);
  EXPECT_NEAR(result.mean.hn_wait_s, 0.8 / (2 * 500 * 0.2),
              0.05 * 0.8 / (2 * 500 * 0.2));
  EXPECT_NEAR(result.mean.hn_busy, 0.8, 0.01);
}

// Lindley's recursion for one worker with requests of two sizes, drawn apart
// from the simulator: same distribution, other numbers.
TEST(Simulation, AgreesWithLindleysRecursion) {
  ModelCosts costs;
  costs.points = {{.rows = 1, .cn_pre_s = 0.001},
                  {.rows = 100, .cn_pre_s = 0.02}};
  SimulatedLoad load = LoadAt(60);
  load.rows = {1, 1, 1, 100};
  Random random(77);
  double wait = 0;
  std::vector<double> latencies;
  for (int i = 0; i < 1'000'000; ++i) {
    const double service = random.Below(4) == 0 ? 0.02 : 0.001;
    latencies.push_back(wait + service);
    wait = std::max(0.0, wait + service + std::log(1 - random.Unit()) / 60);
  }
  std::sort(latencies.begin(), latencies.end());
  const RepeatedResult result =
      SimulateRepeatedly(costs, SimulatedSystem(), load, 5);
  EXPECT_NEAR(result.p50_s.mean, base::Quantile(latencies, 0.5),
              0.04 * base::Quantile(latencies, 0.5));
  EXPECT_NEAR(result.p99_s.mean, base::Quantile(latencies, 0.99),
              0.06 * base::Quantile(latencies, 0.99));
}

// A recording whose machine has the usual speed except in `slow`, where it has
// `speed`.
std::shared_ptr<Recording> Recorded(double length, double slow_begin,
                                    double slow_end, double speed) {
  const double slow = slow_end - slow_begin;
  SpeedTimeline timeline;
  timeline.Append({{0, slow_begin, slow_begin},
                   {slow_begin, slow_end, slow * speed},
                   {slow_end, length, length - slow_end}},
                  length);
  auto recording = std::make_shared<Recording>();
  recording->cn = recording->hn = timeline;
  recording->ways = {{0, 0}};
  return recording;
}

// A machine that is slow for long: the mean wait is that of M/D/1 in each
// phase, averaged, where factors drawn one by one give that of M/G/1.
TEST(Simulation, KeepsSlowPhases) {
  ModelCosts costs;
  costs.points = {{.cn_pre_s = 0.01}};
  costs.cn.factors = {0.5, 1.5};
  const auto mean_wait_s = [&] {
    return SimulateRepeatedly(costs, SimulatedSystem(), LoadAt(60), 5)
        .mean.cn_wait_s;
  };
  const double one_by_one = 60 * (0.005 * 0.005 + 0.015 * 0.015) / 2 / 2 / 0.4;
  EXPECT_NEAR(mean_wait_s(), one_by_one, 0.06 * one_by_one);
  costs.points = {{.cn_pre_s = 0.005}};
  costs.recording = Recorded(400, 0, 200, 1 / 3.0);
  const double in_phases =
      (0.3 * 0.005 / (2 * 0.7) + 0.9 * 0.015 / (2 * 0.1)) / 2;
  EXPECT_NEAR(mean_wait_s(), in_phases, 0.12 * in_phases);
}

// A machine that stands still for 0.1 of every second: a request that comes
// within it waits for its end, so P(latency > x) = 0.1 − x at every rate that
// is low beside the speed.
TEST(Simulation, StallsLastAsLongAtAnyRate) {
  ModelCosts costs;
  costs.points = {{.cn_pre_s = 1e-5}};
  costs.recording = std::make_shared<Recording>();
  SpeedTimeline& timeline =
      std::const_pointer_cast<Recording>(costs.recording)->cn;
  for (int second = 0; second < 100; ++second) {
    timeline.Append({{0, 0.5, 0.5}, {0.5, 0.6, 1e-9}, {0.6, 1, 0.4}}, 1);
  }
  for (const double rate : {5.0, 50.0, 500.0}) {
    const RepeatedResult result =
        SimulateRepeatedly(costs, SimulatedSystem(), LoadAt(rate), 5);
    EXPECT_NEAR(result.p99_s.mean, 0.09, 0.004) << rate;
    EXPECT_NEAR(result.p50_s.mean, 1e-5, 1e-7) << rate;
  }
}

// A CN and an HN that stand still for a tenth of the time delay a request once
// if they do so together, and twice as often if they take turns.
TEST(Simulation, NodesAreSlowWhenTheyWereRecordedSo) {
  ModelCosts costs;
  costs.points = {{.cn_pre_s = 1e-6, .hn_s = 1e-6}};
  const auto mean_s = [&](double hn_stall) {
    auto recording = std::make_shared<Recording>();
    for (int i = 0; i < 100; ++i) {
      recording->cn.Append({{0, 5, 5}, {5, 6, 1e-9}, {6, 10, 4}}, 10);
      recording->hn.Append({{0, hn_stall, hn_stall},
                            {hn_stall, hn_stall + 1, 1e-9},
                            {hn_stall + 1, 10, 9 - hn_stall}},
                           10);
    }
    recording->ways = {{0, 0}};
    costs.recording = std::move(recording);
    return SimulateRepeatedly(costs, SimulatedSystem(), LoadAt(20), 5)
        .mean.mean_s;
  };
  // Half a second on average for a tenth of the requests.
  EXPECT_NEAR(mean_s(5), 0.05, 0.005);
  EXPECT_NEAR(mean_s(8), 0.1, 0.01);
}

// One request at a time passes every part once: the sum by hand.
TEST(Simulation, IdleLatencyIsTheSumOfItsParts) {
  ModelCosts costs;
  costs.points = {{.cn_pre_s = 0.003,
                   .cn_post_s = 0.001,
                   .hn_s = 0.002,
                   .up_bytes = 1e6,
                   .down_bytes = 1e5}};
  costs.round_trip_s = 1e-4;
  // The slower NIC sets the pace: 1 ms up, 0.1 ms down.
  const SimulatedSystem system{.cn_nic_bytes_per_s = 1e9,
                               .hn_nic_bytes_per_s = 4e9};
  const double sum = 0.003 + 0.001 + 0.002 + 1e-3 + 1e-4 + 1e-4;
  EXPECT_NEAR(IdleP99(costs, system, LoadAt(1, 1000)), sum, 1e-9);
  // The whole model in one container sends nothing.
  SimulatedSystem whole = system;
  whole.whole = true;
  EXPECT_NEAR(IdleP99(costs, whole, LoadAt(1, 1000)), 0.006, 1e-9);
  // A slice takes longer.
  SimulatedSystem slice = system;
  slice.hn_slowdown = 3;
  EXPECT_NEAR(IdleP99(costs, slice, LoadAt(1, 1000)), sum + 0.004, 1e-9);
}

// A NIC that is the bottleneck: M/D/1 on it.
TEST(Simulation, NicIsAQueue) {
  ModelCosts costs;
  costs.points = {{.cn_pre_s = 1e-9, .hn_s = 1e-9, .up_bytes = 1e6}};
  SimulatedSystem system{.cn_workers = 64, .hn_parallel = 8};
  system.cn_nic_bytes_per_s = 1e9;
  system.hn_nic_bytes_per_s = 100e9;
  const RepeatedResult result =
      SimulateRepeatedly(costs, system, LoadAt(700), 5);
  const double wait = 0.7 / (2 * 1000 * 0.3);
  EXPECT_NEAR(result.mean.network_s, 0.001 + wait, 0.05 * (0.001 + wait));
  EXPECT_NEAR(result.mean.cn_nic_busy, 0.7, 0.01);
}

// Messages that wait in their senders' NICs keep the receiver's NIC free for
// messages that have begun: eight queues of senders in front of an HN whose NIC
// receives a message before its sender is done.
TEST(Simulation, WaitingMessagesDoNotHoldTheReceiver) {
  ModelCosts costs;
  costs.points = {{.cn_pre_s = 1e-9, .hn_s = 1e-9, .up_bytes = 1e6}};
  SimulatedSystem system{.cns = 8, .cn_workers = 64, .hn_parallel = 8};
  system.cn_nic_bytes_per_s = 1e9;
  system.hn_nic_bytes_per_s = 12e9;
  const RepeatedResult result =
      SimulateRepeatedly(costs, system, LoadAt(8 * 700), 5);
  const double wait = 0.7 / (2 * 1000 * 0.3);
  EXPECT_NEAR(result.mean.network_s, 0.001 + wait, 0.05 * (0.001 + wait));
}

// Executions that cost nearly nothing per row: an overloaded HN keeps up once
// requests are merged, and the batches are as large as it takes.
TEST(Simulation, BatchingRaisesWhatAnHnCarries) {
  ModelCosts costs;
  costs.points = {{.rows = 1, .cn_pre_s = 1e-6, .hn_s = 0.00101},
                  {.rows = 64, .cn_pre_s = 1e-6, .hn_s = 0.00164}};
  SimulatedSystem system{.cn_workers = 8};
  const SimulatedLoad load = LoadAt(3000, 50'000);
  EXPECT_LT(Simulate(costs, system, load).answered_per_s, 1100);
  system.batching = {.enabled = true, .max_rows = 64};
  const SimulationResult merged = Simulate(costs, system, load);
  EXPECT_GT(merged.answered_per_s, 2900);
  EXPECT_GT(merged.batch_requests, 2.5);
  EXPECT_LT(merged.p99_s, 0.01);
}

TEST(Simulation, SeedsRepeatAndDiffer) {
  ModelCosts costs;
  costs.points = {{.cn_pre_s = 0.004, .cn_post_s = 0.001, .hn_s = 0.002}};
  SimulatedSystem system{.cns = 3, .cn_workers = 2, .hns = 2};
  SimulatedLoad load = LoadAt(600, 5000);
  const double first = Simulate(costs, system, load).p99_s;
  EXPECT_EQ(Simulate(costs, system, load).p99_s, first);
  load.seed = 2;
  EXPECT_NE(Simulate(costs, system, load).p99_s, first);
}

// The interval of a 95 % confidence holds the true value about that often.
TEST(Simulation, ConfidenceIntervalsHoldTheTruth) {
  ModelCosts costs;
  costs.points = {{.cn_pre_s = 0.01}};
  costs.cn = Exponential();
  const double truth = std::log(2) / 50;
  int held = 0;
  constexpr int kTries = 60;
  for (int i = 0; i < kTries; ++i) {
    SimulatedLoad load = LoadAt(50, 20'000);
    load.seed = 1000 + 10 * i;
    const Estimate p50 =
        SimulateRepeatedly(costs, SimulatedSystem(), load, 4).p50_s;
    held += std::abs(p50.mean - truth) <= p50.half_width;
  }
  EXPECT_GE(held, kTries * 8 / 10);
}

}  // namespace
}  // namespace refract::placement
