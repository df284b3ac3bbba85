#ifndef REFRACT_PLACEMENT_PLANNER_SIZING_H_
#define REFRACT_PLACEMENT_PLANNER_SIZING_H_

// How many instances of one service meet its latency objective: from formulas
// first, then by simulation.

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "placement/planner/simulation.h"
#include "placement/planner/spec.h"

namespace refract::placement {

// How many equal instances a node holds.
struct Packing {
  int per_node = 0;
  std::string bound_by;  // the resource that allows no more
  int nic_percent = 0;   // of one NIC, of each instance
  double nic_bytes_per_s = 0;
};
Packing PackCn(const NodeType& node, const CnOptions& options, double cores);
Packing PackHn(const NodeType& node, const HnOptions& options, MigProfile part);
Packing PackWhole(const NodeType& node, const MonolithOptions& options);
// MIG slices of `part` that fit in one GPU; 1 for a whole GPU.
int PartsPerGpu(MigProfile part);

// A value for each quantity that the spec leaves open.
struct Configuration {
  double cn_cores = 1;
  GpuPart part;
  double batching_window_us = -1;  // negative: not merged
  bool whole = false;              // the monolithic deployment
};
std::vector<Configuration> ConfigurationsOf(const ServiceSpec& service);

struct SizingOptions {
  int seeds = 5;
  uint64_t first_seed = 1;
  int requests = 20'000;  // counted, of each simulation
};

// Inputs for the sizing of a service.
struct SizingInput {
  const ServiceSpec* service = nullptr;
  Configuration configuration;
  Packing cn;
  Packing hn;           // of the monolith: unused
  double cn_price = 0;  // of an instance per hour: its part of a node's price
  double hn_price = 0;
  // Instances that the available nodes hold.
  int most_cns = std::numeric_limits<int>::max();
  int most_hns = std::numeric_limits<int>::max();
};
SizingInput MakeInput(const PlanSpec& spec, const ServiceSpec& service,
                      const Configuration& configuration);

// The load to plan for: the peak times the burst.
double DesignRate(const ServiceSpec& service);

struct AnalyticSizing {
  // Per request, on average: the demand on each resource.
  RequestCost mean;
  double hn_s = 0;  // of an HN instance, as if batches were always full
  // Instances if all their resources were always busy: fewer cannot suffice.
  double least_cns = 0;
  double least_hns = 0;
  std::string cn_bound_by;  // "cores" or "NIC"
  std::string hn_bound_by;  // "GPU" or "NIC"
  // By formulas: the fewest instances with p99 ≤ the objective.
  int cns = 1;
  int hns = 1;
  double p99_s = 0;
  double price = 0;        // per hour, of these
  double least_price = 0;  // of the least
};
AnalyticSizing SizeByFormula(const SizingInput& input, double idle_p99_s);

SimulatedSystem SystemOf(const SizingInput& input, int cns, int hns);
SimulatedLoad LoadOf(const ServiceSpec& service, double requests_per_s,
                     const SizingOptions& options);

struct Sizing {
  bool met = false;
  std::string why_not;  // if not met
  int cns = 0;
  int hns = 0;
  double price = 0;  // of the instances, per hour
  double idle_p99_s = 0;
  AnalyticSizing analytic;
  RepeatedResult result;  // at the design rate
  // The check that no instance can be left out; nullopt if there is only one.
  std::optional<RepeatedResult> one_cn_less;
  std::optional<RepeatedResult> one_hn_less;
  int simulations = 0;
};
// The cheapest found numbers of instances whose p99 (mean over the seeds) is at
// most the objective at the design rate, such that one CN less or one HN less
// exceeds it. Numbers beyond `most_cns` or `most_hns` are returned only where
// no numbers within them were found. `start`: numbers to begin with in place of
// the formulas'.
Sizing Size(const SizingInput& input, const SizingOptions& options,
            std::optional<std::pair<int, int>> start = std::nullopt);

// The highest rate that the instances serve with p99 ≤ the objective, to 2 %;
// `meets`: a rate that they do serve.
double FindKnee(const SizingInput& input, int cns, int hns, double meets,
                const SizingOptions& options);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_PLANNER_SIZING_H_
