#ifndef REFRACT_PLACEMENT_TOPOLOGY_TOPOLOGY_FILE_H_
#define REFRACT_PLACEMENT_TOPOLOGY_TOPOLOGY_FILE_H_

// A topology as JSON: the output of `refract topology --json`, and the override
// file with which an operator corrects discovered data. Both have the same
// fields, so the output, edited, is an override file:
//
//   {"numa_nodes": [{"id": 0, "cpus": "0-31", "memory_bytes": 274877906944,
//                    "distance": [10, 21]}],
//    "pci":  [{"address": "0000:3b:00.0", "root": "pci0000:3a",
//              "parent": "0000:3a:01.0", "numa_node": 0, "gigatransfers": 16,
//              "lanes": 16, "max_lanes": 16, "gbps": 252,
//              "physical_function": ""}],
//    "nics": [{"name": "mlx5_0", "rdma": true, "pci": "0000:3b:00.0",
//              "numa_node": 0, "netdevs": ["ens1f0"], "bond_members": [],
//              "ports": [{"port": 1, "state": "ACTIVE", "gbps": 200,
//                         "link_layer": "Ethernet", "gids": [{"index": 3,
//                         "address": "…", "type": "RoCE v2",
//                         "netdev": "ens1f0"}]}]}],
//    "gpus": [{"name": "gpu0", "model": "NVIDIA H200", "pci": "0000:3d:00.0",
//              "numa_node": 0}],
//    "paths": [{"from": "mlx5_0", "to": "gpu0", "class": "PIX", "gbps": 200}]}

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "placement/topology/node_topology.h"

namespace refract::placement {

// All of the topology; "paths" has every NIC with every NUMA node and GPU. Ends
// with a line break.
std::string TopologyJson(const NodeTopology& topology);

// Changes `topology` as the JSON `text` says. Entries are found by id, address
// or name; fields that an entry lacks stay as they were. NUMA nodes and PCI
// functions that were not discovered are added, NICs and GPUs are not. The NUMA
// node of a PCI function holds for its NIC or GPU as well, unless that has its
// own in the file; "gbps" of a PCI function beats its lanes. "paths" beat paths
// that follow from the rest.
//
// InvalidArgument names the field: unknown fields or devices, values of the
// wrong type, an entry twice, a path of a class that the NUMA nodes of its ends
// contradict, and whatever Check() refuses. `topology` is then half changed.
absl::Status ApplyOverride(absl::string_view text, NodeTopology* topology);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_TOPOLOGY_FILE_H_
