#include "placement/simulator/fill.h"

#include <algorithm>
#include <numeric>

#include "placement/cluster/random.h"

namespace refract::placement {
namespace {

GpuFragment ClusterFragment(const State& state, const FragmentMeter& meter) {
  GpuFragment sum{};
  const std::vector<Node>& nodes = state.cluster().nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const GpuFragment one =
        meter.GpuMilliByCause(nodes[i], state.free(static_cast<int>(i)));
    for (int cause = 0; cause < kCauses; ++cause) sum[cause] += one[cause];
  }
  return sum;
}

}  // namespace

void PathCounts::Count(const Node& node, const Devices& devices) {
  if (devices.nic < 0 || devices.gpus == 0) return;
  const double score = TopologyScore(node, devices);
  if (score == kSameSwitch) {
    ++same_switch;
  } else if (score == kSameSocket) {
    ++same_socket;
  } else {
    ++other_socket;
  }
}

LeafPairs PairsOf(const State& state, int apps) {
  LeafPairs pairs;
  for (int app = 0; app < apps; ++app) {
    int64_t instances = 0;
    for (const auto& [leaf, count] : state.LeavesOf(app)) {
      instances += count;
      pairs.same_leaf += int64_t{count} * (count - 1) / 2;
    }
    pairs.all += instances * (instances - 1) / 2;
  }
  return pairs;
}

double FragmentOf(const GpuFragment& fragment) {
  return std::accumulate(fragment.begin(), fragment.end(), 0.0);
}

std::vector<int> DrawArrivals(const InstanceList& list, int64_t cluster_gpus,
                              double arrival, uint64_t seed) {
  std::vector<int> arrivals(list.instances.size());
  std::iota(arrivals.begin(), arrivals.end(), 0);
  // Every instance of the list once, then draws from it, as in the published
  // experiment: the mix of shapes stays that of the list.
  int64_t asked = 0;
  for (const Instance& instance : list.instances) {
    asked += instance.demand.TotalGpuMilli();
  }
  Random random(seed);
  if (asked > 0) {
    const double enough =
        arrival * static_cast<double>(cluster_gpus * kWholeGpu);
    while (static_cast<double>(asked) < enough) {
      const int drawn = static_cast<int>(random.Below(list.instances.size()));
      arrivals.push_back(drawn);
      asked += list.instances[drawn].demand.TotalGpuMilli();
    }
  }
  random.Shuffle(arrivals);
  return arrivals;
}

FillResult Fill(const Cluster& cluster, const InstanceList& list,
                const FragmentMeter& meter,
                const std::vector<AppTarget>& targets,
                const FillOptions& options) {
  // Amounts are counted in thousandths of a GPU and reported as parts of all
  // GPUs of the cluster.
  FillResult result;
  State state(cluster, static_cast<int>(list.apps.size()));
  PlacerOptions placer_options = options.placer;
  placer_options.seed = options.seed;
  Placer placer(state, &meter, targets, placer_options);
  const auto capacity = static_cast<double>(cluster.TotalGpus() * kWholeGpu);
  int64_t asked = 0;
  int64_t allocated = 0;
  int dropped = 0;
  const auto point_now = [&] {
    FillPoint point{.asked = static_cast<double>(asked) / capacity,
                    .allocated = static_cast<double>(allocated) / capacity,
                    .dropped = dropped};
    point.fragment = ClusterFragment(state, meter);
    for (double& cause : point.fragment) cause /= capacity;
    return point;
  };
  result.curve.push_back(point_now());
  int arrived = 0;
  bool full = false;
  for (const int arrival :
       DrawArrivals(list, cluster.TotalGpus(), options.arrival, options.seed)) {
    const Instance& instance = list.instances[arrival];
    const double begin = options.now_us ? options.now_us() : 0;
    const Decision decision = placer.Decide(instance);
    if (options.now_us) {
      result.decisions_us.push_back(options.now_us() - begin);
    }
    asked += instance.demand.TotalGpuMilli();
    if (decision.node >= 0) {
      state.Add(instance, decision.node, decision.choice.devices);
      allocated += instance.demand.TotalGpuMilli();
      ++result.placed;
      result.stays.push_back({.instance = arrival,
                              .node = decision.node,
                              .devices = decision.choice.devices,
                              .from = static_cast<double>(arrived)});
      result.paths.Count(cluster.nodes[decision.node], decision.choice.devices);
    } else {
      ++dropped;
      ++result.dropped[static_cast<int>(placer.MainObstacle(instance))];
    }
    ++arrived;
    const double part = static_cast<double>(asked) / capacity;
    // The paper's figure: the part of the GPUs that is unallocated when the
    // instances so far have asked for all GPUs of the cluster.
    if (!full && part >= 1) {
      full = true;
      result.unallocated = 1 - static_cast<double>(allocated) / capacity;
    }
    // One point per percent of the GPUs that is asked for; large instances may
    // pass several percents at once.
    if (part >= static_cast<double>(result.curve.size()) / 100) {
      result.curve.push_back(point_now());
    }
    if (part >= options.arrival) break;
  }
  result.end = point_now();
  result.pairs = PairsOf(state, static_cast<int>(list.apps.size()));
  return result;
}

}  // namespace refract::placement
