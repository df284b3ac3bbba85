#ifndef REFRACT_PLACEMENT_FRAGMENTATION_WORKLOAD_H_
#define REFRACT_PLACEMENT_FRAGMENTATION_WORKLOAD_H_

// The target workload: the instances that a cluster is expected to be asked
// for, as a distribution over demands. Fragmentation is measured against it
// (Weng et al., "Beware of Fragmentation", ATC '23, section 3).

#include <vector>

#include "absl/types/span.h"
#include "placement/cluster/instance.h"

namespace refract::placement {

struct Shape {
  Demand demand;  // a demand of 0 of a resource never lacks it
  double popularity = 0;
};

// Popularities sum to 1.
struct TargetWorkload {
  std::vector<Shape> shapes;
};

struct WorkloadOptions {
  // The most frequent shapes until they are this share of the instances; the
  // published FGD simulator takes 95 %.
  double coverage = 0.95;
  // Whether shapes differ by memory, too. The published metric leaves it out.
  bool with_memory = false;
};

// The shapes of `instances`, most frequent first. Disk and NIC are left out.
TargetWorkload WorkloadOf(absl::Span<const Instance> instances,
                          const WorkloadOptions& options);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_FRAGMENTATION_WORKLOAD_H_
