#ifndef REFRACT_TOOLS_SIMULATE_SIMULATE_H_
#define REFRACT_TOOLS_SIMULATE_SIMULATE_H_

// Shared by the subcommands of `refract simulate`.

#include <functional>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "placement/fragmentation/fragmentation.h"
#include "placement/policy/placer.h"
#include "placement/simulator/fill.h"

namespace refract::tools {

// Microseconds of CPU time of the calling thread, for measuring decisions
// without the time that other processes on the machine use.
std::function<double()> ClockUs();
std::function<double()> CpuClockUs();

// Quantiles of times, microseconds; sorts them.
struct DecisionTimes {
  size_t count = 0;
  double p50 = 0;
  double p99 = 0;
  double most = 0;
};
DecisionTimes TimesOf(std::vector<double> us);
nlohmann::ordered_json TimesJson(const DecisionTimes& times);

// Cause → part of the cluster's GPUs.
nlohmann::ordered_json FragmentJson(const placement::GpuFragment& fragment);
// Obstacle → instances.
nlohmann::ordered_json ObstaclesJson(const placement::Obstacles& obstacles);
nlohmann::ordered_json PathsJson(const placement::PathCounts& paths);

// "4278 nodes, 10412 GPUs, 632636 cores, 134 leaf switches, 4 pods"
std::string ClusterText(const placement::Cluster& cluster);

double Percent(double part, double whole);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_SIMULATE_SIMULATE_H_
