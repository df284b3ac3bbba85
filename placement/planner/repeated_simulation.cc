// Simulations of several seeds, and what they say together.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/process/affinity.h"
#include "base/process/thread.h"
#include "placement/planner/simulation.h"

namespace refract::placement {
namespace {

// 97.5 % quantiles of Student's t by degrees of freedom, 1 to 10.
constexpr std::array<double, 10> kStudentT = {
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};

Estimate EstimateOf(const std::vector<double>& values) {
  Estimate estimate;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) estimate.mean += value / count;
  if (values.size() < 2) return estimate;
  double squares = 0;
  for (const double value : values) {
    squares += (value - estimate.mean) * (value - estimate.mean);
  }
  const size_t freedom = values.size() - 1;
  // Beyond ten degrees the normal quantile with its first correction term.
  const double t = freedom <= kStudentT.size()
                       ? kStudentT[freedom - 1]
                       : 1.96 + 2.4 / static_cast<double>(freedom);
  estimate.half_width =
      t * std::sqrt(squares / static_cast<double>(freedom) / count);
  return estimate;
}

constexpr double SimulationResult::*kFields[] = {
    &SimulationResult::mean_s,        &SimulationResult::p50_s,
    &SimulationResult::p90_s,         &SimulationResult::p99_s,
    &SimulationResult::cn_wait_s,     &SimulationResult::cn_s,
    &SimulationResult::network_s,     &SimulationResult::hn_wait_s,
    &SimulationResult::hn_s,          &SimulationResult::cn_busy,
    &SimulationResult::cn_nic_busy,   &SimulationResult::hn_nic_busy,
    &SimulationResult::hn_busy,       &SimulationResult::batch_requests,
    &SimulationResult::answered_per_s};

}  // namespace

RepeatedResult SimulateRepeatedly(const ModelCosts& costs,
                                  const SimulatedSystem& system,
                                  const SimulatedLoad& load, int seeds) {
  // Each run has its own numbers, so runs at the same time change nothing.
  std::vector<SimulationResult> results(static_cast<size_t>(seeds));
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    for (size_t seed = next++; seed < results.size(); seed = next++) {
      SimulatedLoad one = load;
      one.seed += seed;
      results[seed] = Simulate(costs, system, one);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < std::min(seeds, base::NumUsableCpus()); ++i) {
    absl::StatusOr<std::thread> thread = base::StartThread(run);
    if (!thread.ok()) break;  // the threads that there are run all seeds
    threads.push_back(*std::move(thread));
  }
  run();
  for (std::thread& thread : threads) thread.join();
  RepeatedResult repeated;
  std::vector<double> p50;
  std::vector<double> p99;
  for (const SimulationResult& result : results) {
    for (double SimulationResult::*field : kFields) {
      repeated.mean.*field += result.*field / seeds;
    }
    p50.push_back(result.p50_s);
    p99.push_back(result.p99_s);
  }
  repeated.p50_s = EstimateOf(p50);
  repeated.p99_s = EstimateOf(p99);
  return repeated;
}

}  // namespace refract::placement
