// Measures the time to find the optimal split, by the graph's shape and number
// of operators, for each objective and under limits. Prints a line for each on
// stderr with the median and the worst of several problems and the number of
// proven optima, and JSON on stdout.
//
//   bench_partitioner [SEED]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "bench/partitioner/model_like.h"
#include "nlohmann/json.hpp"
#include "partitioner/cut/effort.h"
#include "partitioner/cut/search.h"

namespace refract::bench {
namespace {

namespace cut = partitioner::cut;

constexpr int kSizes[] = {150, 500, 1000, 2000};
constexpr int kProblems = 31;

struct Goals {
  const char* name;
  cut::Goal (*make)(const ModelLike& model);
};

cut::Goal Latency(const ModelLike& model) {
  cut::Goal goal;
  goal.objectives = {model.latency};
  return goal;
}

// CN, link up, HN, link down as stations of a pipeline; 16 cores per HN.
cut::Goal Throughput(const ModelLike& model) {
  cut::Goal goal;
  goal.objectives.assign(4, cut::Measure(model.problem));
  for (size_t n = 0; n < model.latency.stage.size(); ++n) {
    const auto& stage = model.latency.stage[n];
    goal.objectives[0].stage[n] = {stage[0] / 16, 0, stage[2] / 16};
    goal.objectives[2].stage[n] = {0, stage[1], 0};
  }
  goal.objectives[1].up = model.latency.up;
  goal.objectives[3].down = model.latency.down;
  return goal;
}

cut::Goal Price(const ModelLike& model) {
  cut::Goal goal;
  goal.objectives = {model.price};
  return goal;
}

// The latency, with a limit on `measure`: a part of its amount in the fastest
// plan without a limit.
cut::Goal Limited(const ModelLike& model, const char* name,
                  const cut::Measure& measure, double share) {
  cut::Goal goal = Latency(model);
  const absl::StatusOr<cut::Found> free = cut::FindBest(model.problem, goal);
  if (!free.ok() || !free->best) return goal;
  const cut::Cost used = cut::Price(model.problem, measure, free->best->stages);
  goal.limits.push_back(
      {name, measure,
       static_cast<cut::Cost>(share * static_cast<double>(used))});
  return goal;
}

cut::Goal HnMemory(const ModelLike& model) {
  return Limited(model, "HN memory", model.hn_memory, 0.6);
}

cut::Goal Bytes(const ModelLike& model) {
  return Limited(model, "bytes", model.bytes, 0.8);
}

cut::Goal BothLimits(const ModelLike& model) {
  cut::Goal goal = HnMemory(model);
  for (cut::Limit& limit : Bytes(model).limits) {
    goal.limits.push_back(std::move(limit));
  }
  return goal;
}

cut::Goal ThroughputInMemory(const ModelLike& model) {
  cut::Goal goal = Throughput(model);
  goal.limits = HnMemory(model).limits;
  return goal;
}

nlohmann::ordered_json Spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {{"min", values.front()},
          {"median", values[values.size() / 2]},
          {"max", values.back()}};
}

// The search as `refract partition` runs it. False, with a message on stderr,
// if it failed.
bool Time(const Goals& goals, const Shape& shape, int size, unsigned seed,
          nlohmann::ordered_json& results) {
  std::vector<double> times_ms;
  std::vector<double> cuts;
  std::vector<double> gaps;
  int proven = 0;
  for (int i = 0; i < kProblems; ++i) {
    const ModelLike model = shape.make(size, seed + i);
    cut::Goal goal = goals.make(model);
    goal.max_cuts = cut::CutsWorthWaitingFor(model.problem.num_nodes());
    // One thread that only computes: its processor time equals the wall time of
    // an otherwise idle machine.
    const std::clock_t begin = std::clock();
    const absl::StatusOr<cut::Found> found = cut::FindBest(model.problem, goal);
    const double took_ms = 1e3 * static_cast<double>(std::clock() - begin) /
                           static_cast<double>(CLOCKS_PER_SEC);
    if (!found.ok() || !found->best) {
      std::fprintf(stderr, "%s of %d nodes, %s, seed %u: %s\n", shape.name,
                   size, goals.name, seed + i,
                   found.status().ToString().c_str());
      return false;
    }
    times_ms.push_back(took_ms);
    cuts.push_back(static_cast<double>(found->cuts));
    const cut::Best& best = *found->best;
    proven += best.proven() ? 1 : 0;
    gaps.push_back(best.cost == 0 ? 0
                                  : 1 - static_cast<double>(best.lower_bound) /
                                            static_cast<double>(best.cost));
  }
  results.push_back({{"shape", shape.name},
                     {"objective", goals.name},
                     {"nodes", size},
                     {"problems", kProblems},
                     {"ms", Spread(times_ms)},
                     {"minimum_cuts", Spread(cuts)},
                     {"proven", proven},
                     {"gap", Spread(gaps)}});
  const nlohmann::ordered_json& last = results.back();
  std::fprintf(stderr, "%-17s %-32s %5d %8.1f %8.1f %6d %9.4f %9.4f\n",
               shape.name, goals.name, size, last["ms"]["median"].get<double>(),
               last["ms"]["max"].get<double>(), proven,
               last["gap"]["median"].get<double>(),
               last["gap"]["max"].get<double>());
  return true;
}

int Run(unsigned seed) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  std::fprintf(stderr, "%-17s %-32s %5s %8s %8s %6s %9s %9s\n", "shape",
               "objective", "nodes", "ms", "at most", "proven", "gap",
               "at most");
  for (const Shape& shape : kShapes) {
    for (const Goals& goals :
         {Goals{"latency", Latency}, Goals{"cost", Price},
          Goals{"throughput", Throughput},
          Goals{"latency, 60 % of the HN memory", HnMemory},
          Goals{"latency, 80 % of the bytes", Bytes},
          Goals{"latency, both limits", BothLimits},
          Goals{"throughput, 60 % of the HN memory", ThroughputInMemory}}) {
      for (const int size : kSizes) {
        if (!Time(goals, shape, size, seed, results)) return EXIT_FAILURE;
      }
    }
  }
  const nlohmann::ordered_json report = {{"seed", seed},
                                         {"results", std::move(results)}};
  std::printf("%s\n", base::FormatJson(report, 2).c_str());
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace refract::bench

int main(int argc, char** argv) {
  return refract::bench::Run(
      argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 1);
}
