#ifndef REFRACT_PLACEMENT_CLUSTER_STAY_H_
#define REFRACT_PLACEMENT_CLUSTER_STAY_H_

// A finished placement, and lists of placements as comma-separated files: the
// columns of an instance list and node, gpu_ids, mig_slices, nic_id,
// socket_cpu_milli, from, to. `refract place` writes such files and reads them
// as the running instances.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "placement/cluster/cluster.h"
#include "placement/cluster/csv.h"
#include "placement/cluster/instance.h"
#include "placement/cluster/usage.h"

namespace refract::placement {

// The stay of an instance on a node; [from, to) in seconds of the trace.
struct Stay {
  int instance = -1;  // position in the list
  int node = -1;
  Devices devices;
  double from = 0;
  double to = kNeverDeleted;
};

std::string PlacementsToCsv(const Cluster& cluster, const InstanceList& list,
                            const std::vector<Stay>& stays);

// The stays of a file whose instances are `list`, row by row. InvalidArgument
// names file, line and column: a node that `cluster` does not have, a device
// that the node does not have, resources that are taken twice.
absl::StatusOr<std::vector<Stay>> StaysFromTable(const CsvTable& table,
                                                 const Cluster& cluster,
                                                 const InstanceList& list);

// "0|3" of bits 0 and 3.
std::string BitsToText(uint32_t bits);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_CLUSTER_STAY_H_
