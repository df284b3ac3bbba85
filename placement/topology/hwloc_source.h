#ifndef REFRACT_PLACEMENT_TOPOLOGY_HWLOC_SOURCE_H_
#define REFRACT_PLACEMENT_TOPOLOGY_HWLOC_SOURCE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "placement/topology/node_topology.h"

namespace refract::placement {

// The machine as hwloc sees it: a second opinion to compare with Discover(),
// used by no decision. hwloc has no rates of ports, and rates of PCIe links
// only where it may read configuration space (as root); both are 0 otherwise.
//
// `sysfs_root` is "/sys", or a copy in a folder named "sys". Not thread-safe: a
// copy is named to hwloc by an environment variable. InvalidArgument names a
// root of another name; Unimplemented: built without hwloc; Unavailable: hwloc
// fails.
absl::StatusOr<NodeTopology> DiscoverWithHwloc(absl::string_view sysfs_root);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_HWLOC_SOURCE_H_
