#ifndef REFRACT_PLACEMENT_TOPOLOGY_READ_TOPOLOGY_H_
#define REFRACT_PLACEMENT_TOPOLOGY_READ_TOPOLOGY_H_

#include <string>

#include "absl/status/statusor.h"
#include "placement/topology/node_topology.h"
#include "placement/topology/sysfs_tree.h"

namespace refract::placement {

struct TopologySources {
  std::string sysfs_root = "/sys";
  std::string dump_file;      // of sysfs_tree.h; read instead of sysfs
  std::string override_file;  // of topology_file.h; empty: none
  bool hwloc = false;         // ask hwloc (hwloc_source.h), not sysfs
};

// The machine that `sources` describe. On this machine (sysfs_root "/sys")
// NVIDIA's management library gives the models of GPUs, where it is installed.
// `dump` (may be null) receives everything that was read from sysfs. Takes
// milliseconds.
//
// Errors name the file and the field: InvalidArgument, NotFound,
// PermissionDenied, Unavailable (a file that exists cannot be read); those of
// DiscoverWithHwloc().
absl::StatusOr<NodeTopology> ReadTopology(const TopologySources& sources,
                                          SysfsDump* dump = nullptr);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_READ_TOPOLOGY_H_
