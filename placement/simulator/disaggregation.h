#ifndef REFRACT_PLACEMENT_SIMULATOR_DISAGGREGATION_H_
#define REFRACT_PLACEMENT_SIMULATOR_DISAGGREGATION_H_

// The effect of disaggregation on the fragments of a busy cluster: Prism's
// experiment (NSDI '25, section 5.4, figure 19). The cluster is filled with
// jobs; the remaining free CPU and GPU is measured against the population of
// whole models, and against the populations of their CN and HN instances.

#include <cstdint>
#include <vector>

#include "placement/cluster/cluster.h"
#include "placement/fragmentation/fragmentation.h"
#include "placement/policy/placer.h"

namespace refract::placement {

struct Populations {
  TargetWorkload whole;
  TargetWorkload cn;
  TargetWorkload hn;
};
// Requests of the same services before and after disaggregation, read from
// Prism's figure 18. It gives CPU and memory apart; they are taken as
// independent. `with_memory` false leaves memory out.
Populations PublishedPopulations(bool with_memory);

// Draws a demand of `workload` for a number in [0, 1).
const Demand& DrawFrom(const TargetWorkload& workload, double unit);

struct BackgroundOptions {
  PlacerOptions placer;
  double cpu = 0.9;  // parts to allocate
  double gpu = 0.9;
  // Part of the GPUs asked for by training jobs: 8 GPUs with 8, 12 or 16 cores
  // each (2, 59 and 39 %, Prism's figure 4); the others are whole models, and
  // instances with their CPU and memory but no GPU.
  double training = 0.6;
  uint64_t seed = 42;
};

// Free CPU and GPU of the nodes and how much of it is a fragment.
struct FragmentSum {
  double free = 0;  // cores or GPUs
  double fragment = 0;
  // Fragment ÷ free of the nodes that have some free, ascending: the curves of
  // Prism's figure 19.
  std::vector<double> by_node;
};

struct DisaggregationResult {
  double cpu_allocated = 0;  // reached
  double gpu_allocated = 0;
  FragmentSum whole_cpu;
  FragmentSum whole_gpu;
  FragmentSum split_cpu;  // against the CN population
  FragmentSum split_gpu;  // against the HN population
};

DisaggregationResult MeasureDisaggregation(const Cluster& cluster,
                                           const Populations& populations,
                                           const BackgroundOptions& options);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_SIMULATOR_DISAGGREGATION_H_
