#include "tools/simulate/simulate.h"

#include <time.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_format.h"
#include "base/quantile.h"
#include "nlohmann/json.hpp"

namespace refract::tools {

std::function<double()> ClockUs() {
  return [] {
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
}

std::function<double()> CpuClockUs() {
  return [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 +
           static_cast<double>(time.tv_nsec) / 1e3;
  };
}

DecisionTimes TimesOf(std::vector<double> us) {
  if (us.empty()) return {};
  std::sort(us.begin(), us.end());
  return {.count = us.size(),
          .p50 = base::Quantile(us, 0.5),
          .p99 = base::Quantile(us, 0.99),
          .most = us.back()};
}

nlohmann::ordered_json TimesJson(const DecisionTimes& times) {
  return {{"count", times.count},
          {"p50", times.p50},
          {"p99", times.p99},
          {"most", times.most}};
}

nlohmann::ordered_json FragmentJson(const placement::GpuFragment& fragment) {
  nlohmann::ordered_json json;
  for (int i = 0; i < placement::kCauses; ++i) {
    json[std::string(Name(static_cast<placement::Cause>(i)))] = fragment[i];
  }
  return json;
}

nlohmann::ordered_json ObstaclesJson(const placement::Obstacles& obstacles) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (int i = 1; i < placement::kObstacles; ++i) {
    if (obstacles[i] == 0) continue;
    json[std::string(Name(static_cast<placement::Obstacle>(i)))] = obstacles[i];
  }
  return json;
}

nlohmann::ordered_json PathsJson(const placement::PathCounts& paths) {
  return {{"same_switch", paths.same_switch},
          {"same_socket", paths.same_socket},
          {"other_socket", paths.other_socket}};
}

std::string ClusterText(const placement::Cluster& cluster) {
  return absl::StrFormat(
      "%d nodes, %d GPUs, %.0f cores, %d leaf switches, %d pods",
      cluster.nodes.size(), cluster.TotalGpus(),
      static_cast<double>(cluster.TotalCpuMilli()) / 1000,
      cluster.leaves.size(), cluster.pods.size());
}

double Percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

}  // namespace refract::tools
