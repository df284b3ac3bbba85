#include "placement/simulator/disaggregation.h"

#include <algorithm>
#include <utility>

#include "placement/cluster/random.h"

namespace refract::placement {
namespace {

// Amount and percent.
using Marginal = std::vector<std::pair<int64_t, double>>;

// All pairs of a number of cores and GiB of memory.
TargetWorkload Independent(const Marginal& cores, const Marginal& gib, int gpus,
                           bool with_memory) {
  const auto sum = [](const Marginal& marginal) {
    double total = 0;
    for (const auto& [amount, percent] : marginal) total += percent;
    return total;
  };
  // Read from a plot, the percents do not add up to exactly 100.
  const double total = sum(cores) * sum(gib);
  TargetWorkload workload;
  for (const auto& [core_count, core_percent] : cores) {
    Demand demand;
    demand.cpu_milli = core_count * 1000;
    demand.gpus = gpus;
    demand.gpu_milli = gpus > 0 ? kWholeGpu : 0;
    if (!with_memory) {
      workload.shapes.push_back({demand, core_percent / sum(cores)});
      continue;
    }
    for (const auto& [memory, memory_percent] : gib) {
      demand.memory_mib = memory * 1024;
      workload.shapes.push_back(
          {demand, core_percent * memory_percent / total});
    }
  }
  return workload;
}

// Training keeps this much memory per core, the ratio of rented hosts.
constexpr int64_t kTrainingMibPerCore = 4 * 1024;

Demand TrainingJob(double unit) {
  Demand demand;
  // 2, 59 and 39 % (BackgroundOptions::training).
  const int64_t cores_per_gpu = unit < 0.02 ? 8 : unit < 0.61 ? 12 : 16;
  demand.gpus = 8;
  demand.gpu_milli = kWholeGpu;
  demand.cpu_milli = cores_per_gpu * 8 * 1000;
  demand.memory_mib = cores_per_gpu * 8 * kTrainingMibPerCore;
  return demand;
}

// The cluster counts as full after this many instances in a row found no
// node.
constexpr int kMostMisses = 500;

// Fills the cluster until both parts are allocated or nothing more fits.
State Background(const Cluster& cluster, const Populations& populations,
                 const BackgroundOptions& options) {
  State state(cluster, 0);
  const FragmentMeter meter(populations.whole);
  PlacerOptions placer_options = options.placer;
  placer_options.seed = options.seed;
  Placer placer(state, &meter, {}, placer_options);
  Random random(options.seed);
  const double cpu_goal =
      options.cpu * static_cast<double>(cluster.TotalCpuMilli());
  const double gpu_goal =
      options.gpu * static_cast<double>(cluster.TotalGpus() * kWholeGpu);
  double cpu = 0;
  double gpu = 0;
  double training_gpu = 0;
  int misses = 0;
  while (misses < kMostMisses && (cpu < cpu_goal || gpu < gpu_goal)) {
    Instance instance;
    // GPUs first, since an instance without GPU must not take the cores beside
    // a GPU that is still wanted; both kinds come in one stream in proportion.
    const bool with_gpu =
        gpu < gpu_goal && (cpu >= cpu_goal || gpu / gpu_goal <= cpu / cpu_goal);
    // Training jobs come while their share of the GPUs so far and of the goal
    // is not reached.
    const bool training = with_gpu &&
                          training_gpu < options.training * gpu_goal &&
                          training_gpu <= options.training * gpu;
    if (training) {
      instance.demand = TrainingJob(random.Unit());
    } else {
      instance.demand = DrawFrom(populations.whole, random.Unit());
      if (!with_gpu) {
        instance.demand.gpus = 0;
        instance.demand.gpu_milli = 0;
      }
    }
    const Decision decision = placer.Decide(instance);
    if (decision.node < 0) {
      ++misses;
      // No room for another training job: whole models use its share.
      if (training) training_gpu = options.training * gpu_goal;
      continue;
    }
    misses = 0;
    state.Add(instance, decision.node, decision.choice.devices);
    cpu += static_cast<double>(instance.demand.cpu_milli);
    const auto milli = static_cast<double>(instance.demand.TotalGpuMilli());
    gpu += milli;
    if (training) training_gpu += milli;
  }
  return state;
}

void Sum(double free, double fragment, FragmentSum& sum) {
  sum.free += free / 1000;
  sum.fragment += fragment / 1000;
  if (free > 0) sum.by_node.push_back(fragment / free);
}

}  // namespace

Populations PublishedPopulations(bool with_memory) {
  const Marginal whole_cores = {{12, 2.0}, {16, 6.8},  {20, 5.0},  {24, 5.4},
                                {30, 3.0}, {32, 21.4}, {40, 16.2}, {48, 24.6},
                                {50, 0.7}, {60, 4.9},  {64, 4.0},  {72, 0.6},
                                {80, 2.2}, {96, 2.7},  {128, 0.4}};
  // Steps of the plotted curve, merged to a dozen.
  const Marginal whole_gib = {{16, 4.4},   {55, 5},     {98, 16.4}, {125, 5},
                              {158, 8},    {195, 14.5}, {240, 7},   {252, 8.8},
                              {275, 10.4}, {305, 12.2}, {342, 1.8}, {400, 9}};
  const Marginal cn_cores = {{48, 68.3}, {64, 21.3}, {80, 1.5}, {96, 8.9}};
  const Marginal cn_gib = {{240, 12.1}, {250, 8.2}, {260, 15.9}, {270, 11.5},
                           {280, 30.0}, {290, 1.3}, {300, 9.4},  {320, 5.6},
                           {360, 4.2},  {400, 1.9}};
  const Marginal hn_cores = {{4, 44.8}, {8, 20.9}, {12, 34.3}};
  const Marginal hn_gib = {{12, 33.3}, {16, 65.8}, {24, 0.9}};
  return {.whole = Independent(whole_cores, whole_gib, 1, with_memory),
          .cn = Independent(cn_cores, cn_gib, 0, with_memory),
          .hn = Independent(hn_cores, hn_gib, 1, with_memory)};
}

const Demand& DrawFrom(const TargetWorkload& workload, double unit) {
  for (const Shape& shape : workload.shapes) {
    if (unit < shape.popularity) return shape.demand;
    unit -= shape.popularity;
  }
  return workload.shapes.back().demand;  // the last digits of a sum
}

DisaggregationResult MeasureDisaggregation(const Cluster& cluster,
                                           const Populations& populations,
                                           const BackgroundOptions& options) {
  const State state = Background(cluster, populations, options);
  // The same free resources against three populations: whole models, CN
  // instances (CPU), HN instances (GPU).
  const FragmentMeter whole(populations.whole);
  const FragmentMeter cn(populations.cn);
  const FragmentMeter hn(populations.hn);
  DisaggregationResult result;
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    const Node& node = cluster.nodes[i];
    const NodeFree& free = state.free(static_cast<int>(i));
    const auto cpu = static_cast<double>(free.cpu_milli);
    const auto gpu = static_cast<double>(FreeGpuMilli(node, free));
    const Fragments before = whole.Measure(node, free);
    Sum(cpu, before.cpu_milli, result.whole_cpu);
    Sum(gpu, before.gpu_milli, result.whole_gpu);
    Sum(cpu, cn.Measure(node, free).cpu_milli, result.split_cpu);
    Sum(gpu, hn.Measure(node, free).gpu_milli, result.split_gpu);
  }
  for (FragmentSum* sum : {&result.whole_cpu, &result.whole_gpu,
                           &result.split_cpu, &result.split_gpu}) {
    std::sort(sum->by_node.begin(), sum->by_node.end());
  }
  const double cores = static_cast<double>(cluster.TotalCpuMilli()) / 1000;
  const auto gpus = static_cast<double>(cluster.TotalGpus());
  result.cpu_allocated = 1 - result.whole_cpu.free / cores;
  result.gpu_allocated = gpus > 0 ? 1 - result.whole_gpu.free / gpus : 0;
  return result;
}

}  // namespace refract::placement
