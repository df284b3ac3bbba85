#ifndef REFRACT_PLACEMENT_TOPOLOGY_DISCOVERY_H_
#define REFRACT_PLACEMENT_TOPOLOGY_DISCOVERY_H_

#include "absl/status/statusor.h"
#include "placement/topology/node_topology.h"
#include "placement/topology/sysfs_tree.h"

namespace refract::placement {

// The machine that `tree` shows. Facts that sysfs lacks stay unknown and are no
// error: PCI data of software devices, NUMA nodes in virtual machines, link
// speeds behind hypervisors.
//
//   NUMA nodes  devices/system/node/node*/{cpulist,meminfo,distance}
//   bridges     the path that bus/pci/devices/ADDRESS leads to
//   links       {max,current}_link_{speed,width} of each function
//   RDMA NICs   class/infiniband/*/{device,ports/*/{state,rate,link_layer,gids,
//               gid_attrs}}; bonds: class/net/*/bonding/slaves
//   other NICs  class/net/* with a device that no RDMA device uses
//   GPUs        PCI class 0x0300 or 0x0302 of vendor 0x10de (NVIDIA); models
//               from refract.nvml (nvml.h), where the tree has it
//
// The speed of a link is the most that its function supports, because idle GPUs
// and NICs lower the current speed; its width is the current one, because a
// link keeps its width, and a card that trained with fewer lanes is slow for
// good. Virtual functions have the link of their physical function.
//
// Errors: of `tree`; InvalidArgument names a file whose contents make no sense,
// and whatever Check() refuses.
absl::StatusOr<NodeTopology> Discover(SysfsTree& tree);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_DISCOVERY_H_
