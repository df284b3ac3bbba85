#ifndef REFRACT_PLACEMENT_SIMULATOR_FILL_H_
#define REFRACT_PLACEMENT_SIMULATOR_FILL_H_

// The experiment of the FGD paper (ATC '23, section 6): instances arrive at an
// empty cluster, first come first served. An instance that fits nowhere is
// dropped, and none leaves. The curves are over the GPU asked for so far.

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "placement/cluster/cluster.h"
#include "placement/cluster/instance.h"
#include "placement/cluster/stay.h"
#include "placement/fragmentation/fragmentation.h"
#include "placement/policy/placer.h"

namespace refract::placement {

// Positions in `list` in order of arrival: every instance once and draws with
// replacement, until the GPU asked for is `arrival` times the cluster's;
// shuffled. Without GPU demands, every instance once.
std::vector<int> DrawArrivals(const InstanceList& list, int64_t cluster_gpus,
                              double arrival, uint64_t seed);

// State when the GPU asked for first passed `asked`. All but counts are parts
// of the cluster's GPUs.
struct FillPoint {
  double asked = 0;
  double allocated = 0;
  GpuFragment fragment{};  // by cause
  int dropped = 0;
};

struct PathCounts {
  int same_switch = 0;
  int same_socket = 0;
  int other_socket = 0;

  int Total() const { return same_switch + same_socket + other_socket; }
  void Count(const Node& node, const Devices& devices);
};

// Pairs of instances of one app, and those under one leaf switch.
struct LeafPairs {
  int64_t all = 0;
  int64_t same_leaf = 0;
};
LeafPairs PairsOf(const State& state, int apps);

struct FillResult {
  std::vector<FillPoint> curve;  // at 0, 1, 2, … percent asked
  FillPoint end;
  std::vector<Stay> stays;  // `from` is the position in the order of arrival
  // Part of the GPUs without an instance when all of them had been asked for.
  // 1 if the arrivals ended before.
  double unallocated = 1;
  int placed = 0;
  std::array<int, kObstacles> dropped{};  // by Placer::MainObstacle()
  PathCounts paths;                       // of instances with GPU and NIC
  LeafPairs pairs;                        // at the end
  std::vector<double> decisions_us;       // if timed
};

struct FillOptions {
  PlacerOptions placer;
  uint64_t seed = 0;
  double arrival = 1.3;
  // Microseconds of a clock, to time decisions; null = they are not timed.
  std::function<double()> now_us;
};

// `targets` by app; may be empty.
FillResult Fill(const Cluster& cluster, const InstanceList& list,
                const FragmentMeter& meter,
                const std::vector<AppTarget>& targets,
                const FillOptions& options);

double FragmentOf(const GpuFragment& fragment);  // sum over causes

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_SIMULATOR_FILL_H_
