#ifndef REFRACT_PLACEMENT_PLANNER_SIMULATION_H_
#define REFRACT_PLACEMENT_PLANNER_SIMULATION_H_

// Discrete-event simulation of the queues that a request passes: workers of a
// CN, its NIC, the NIC of an HN, the HN's deadline queue with batching, and the
// way back. The HN's order and batches are decided by the daemons' own rules
// (scheduling/deadline_queue.h, scheduling/batch_policy.h).
//
//   client ─ CN (uniform) ─ worker: pre ─ NIC out ─ NIC in ─ HN: EDF, batch
//          ◀─ worker: post, before new requests ◀─ NIC in ◀─ NIC out ◀─┘
//
// Assumptions: Poisson arrivals; a NIC sends one message at a time at its full
// rate (first come, first served), and the receiving NIC receives while the
// other sends; requests are neither refused nor dropped, so a late request
// counts with its latency; no node fails. Pure: no threads, no clock; one seed
// gives one result.

#include <cstdint>
#include <vector>

#include "placement/planner/costs.h"
#include "scheduling/batch_policy.h"

namespace refract::placement {

// A deployment of equal CN instances and equal HN instances.
struct SimulatedSystem {
  int cns = 1;
  int cn_workers = 1;  // of each CN
  int hns = 1;
  int hn_parallel = 1;  // executions at once in each HN
  scheduling::BatchingOptions batching;
  double hn_slowdown = 1;  // time of an execution ÷ time on a whole GPU
  // Rates of an instance's share of its NIC, in either direction; bytes/s.
  double cn_nic_bytes_per_s = 25e9;
  double hn_nic_bytes_per_s = 25e9;
  // The monolithic deployment: HN i is the GPU of CN i, nothing crosses a
  // network; `hns` = `cns`.
  bool whole = false;
};

struct SimulatedLoad {
  double requests_per_s = 1;
  std::vector<double> rows = {1};  // of requests; equally likely
  // Until the answer, seconds: the order of HN queues depends on it.
  double deadline_s = 1;
  // Requests that are counted; a fifth of them come before, uncounted.
  int requests = 20'000;
  uint64_t seed = 1;
};

struct SimulationResult {
  // Latency from client to client, seconds.
  double mean_s = 0;
  double p50_s = 0;
  double p90_s = 0;
  double p99_s = 0;
  // Means of its parts.
  double cn_wait_s = 0;  // for a worker, before and after the HN
  double cn_s = 0;
  double network_s = 0;  // NICs, their queues and the round trip
  double hn_wait_s = 0;
  double hn_s = 0;
  // Parts of the time that the resources are busy, 0 to 1.
  double cn_busy = 0;
  double cn_nic_busy = 0;  // the busier direction
  double hn_nic_busy = 0;
  double hn_busy = 0;
  double batch_requests = 0;  // mean, of an execution
  // Answers per second from the first arrival to the last answer. Less than the
  // offered rate: the system is overloaded.
  double answered_per_s = 0;
};

// `costs` and all figures must be valid: counts ≥ 1, rates > 0.
SimulationResult Simulate(const ModelCosts& costs,
                          const SimulatedSystem& system,
                          const SimulatedLoad& load);

// Mean over seeds, with the half width of its 95 % confidence interval
// (Student's t; 0 for a single seed).
struct Estimate {
  double mean = 0;
  double half_width = 0;
};
struct RepeatedResult {
  SimulationResult mean;
  Estimate p50_s;
  Estimate p99_s;
};
// Seeds load.seed, load.seed + 1, …; `seeds` ≥ 1. They are simulated on as many
// threads as the process may use CPUs, with the same result on any number.
RepeatedResult SimulateRepeatedly(const ModelCosts& costs,
                                  const SimulatedSystem& system,
                                  const SimulatedLoad& load, int seeds);

// p99 of a system in which no request ever waits: the least that any number of
// nodes reaches.
double IdleP99(const ModelCosts& costs, const SimulatedSystem& system,
               const SimulatedLoad& load);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_PLANNER_SIMULATION_H_
