#ifndef REFRACT_PLACEMENT_SIMULATOR_VALIDATE_H_
#define REFRACT_PLACEMENT_SIMULATOR_VALIDATE_H_

// Checks finished placements against the rules, independently: it shares no
// bookkeeping with the placing code.

#include <string>
#include <vector>

#include "placement/cluster/cluster.h"
#include "placement/cluster/instance.h"
#include "placement/cluster/stay.h"

namespace refract::placement {

struct ValidationRules {
  bool pods = false;      // all live instances of an app in one pod
  double leaf_quota = 0;  // as PlacerOptions::leaf_quota
};

struct Violation {
  double time = 0;
  std::string text;  // names instance, node and rule
};

// Violations in order of time, at most `most`. Rules: every resource of every
// node, single GPUs, MIG slices and positions, single NICs, CPU per socket, GPU
// models, max_per_node, and `rules`. An instance may stay once only.
std::vector<Violation> Validate(const Cluster& cluster,
                                const InstanceList& list,
                                const std::vector<Stay>& stays,
                                const ValidationRules& rules, int most);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_SIMULATOR_VALIDATE_H_
