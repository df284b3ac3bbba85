#ifndef REFRACT_PLACEMENT_SIMULATOR_REPLAY_H_
#define REFRACT_PLACEMENT_SIMULATOR_REPLAY_H_

// Event-driven replay of a trace: instances come and go at their times. An
// instance without a node waits and is tried again, oldest first, whenever
// another instance has left; it gives up at the end of its own lifetime.

#include <array>
#include <functional>
#include <vector>

#include "placement/cluster/cluster.h"
#include "placement/cluster/instance.h"
#include "placement/cluster/stay.h"
#include "placement/fragmentation/fragmentation.h"
#include "placement/policy/placer.h"

namespace refract::placement {

struct ReplaySample {
  double time = 0;
  int cns = 0;  // instances that run
  int hns = 0;
  int wholes = 0;
  int waiting = 0;
  double cpu_allocated = 0;  // part of the cluster's
  double gpu_allocated = 0;
  double gpu_fragment = 0;  // part of the cluster's GPUs
};

struct ReplayOptions {
  PlacerOptions placer;
  double sample_every_s = 3600;
  // Microseconds of a clock, to time decisions; null = they are not timed.
  std::function<double()> now_us;
  // Called with the done share of the events, about a hundred times.
  std::function<void(double)> progress;
};

struct ReplayResult {
  std::vector<Stay> stays;
  std::vector<ReplaySample> samples;
  // The most at any moment, also between samples.
  int most_instances = 0;
  double most_cpu_allocated = 0;  // part of the cluster's
  double most_gpu_allocated = 0;
  int events = 0;
  int never_placed = 0;
  // Placer::MainObstacle() of instances that were never placed.
  std::array<int, kObstacles> obstacles{};
  std::vector<double> waits_s;       // of placed instances that had to wait
  std::vector<double> decisions_us;  // if timed, in order
};

// Targets of all apps: the most instances that an app has at once of each role,
// with the demand of the first instance of the role. A service's owner declares
// these numbers; a trace shows only their effect.
std::vector<AppTarget> TargetsOf(const InstanceList& list);

// Order in which a batch is placed: large apps first, so that they find a pod
// with room; within an app HN instances first, since GPUs are scarcer; large
// demands before small.
std::vector<int> BatchOrder(const InstanceList& list, std::vector<int> batch);

// Instances from before the trace's start are a batch.
ReplayResult Replay(const Cluster& cluster, const InstanceList& list,
                    const FragmentMeter& meter,
                    const std::vector<AppTarget>& targets,
                    const ReplayOptions& options);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_SIMULATOR_REPLAY_H_
