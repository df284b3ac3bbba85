#ifndef REFRACT_PLACEMENT_TOPOLOGY_NODE_BINDING_H_
#define REFRACT_PLACEMENT_TOPOLOGY_NODE_BINDING_H_

// Which NICs, CPUs and memory of a machine a daemon uses. Pure.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "placement/topology/node_topology.h"

namespace refract::placement {

// A NIC as seen from a daemon's GPU, or from its memory.
struct NicChoice {
  std::string name;
  bool rdma = false;
  Path path;
  // Share of the path's rate to expect (ClassFactor).
  double factor = 1;
  int numa_node = -1;
};

struct NodeBinding {
  // The NUMA node of the GPU or, without one, of the memory; -1: unknown.
  int numa_node = -1;
  // CPUs of that node that the process may use; empty where that would be all
  // of them or none: there is nothing to bind.
  std::vector<int> cpus;
  // The most promising first: active NICs, then RDMA devices, then by path rate
  // × factor.
  std::vector<NicChoice> nics;
};

// The share of a path's rate that crosses it, from Prism's figure 11 (NSDI
// '25): of 172.7 Gb/s below one PCIe switch, 0.80 through the host bridge and
// 0.63 between sockets. PXB, for which no figure is published, is taken half
// way between PIX and PHB; UNKNOWN half way between NODE and SYS.
double ClassFactor(PathClass path_class);

// The binding of a daemon that may use `usable_cpus`. `gpu` is the GPU that it
// executes on, null without one; `nic` the name of the NIC that its operator
// chose, empty for none. The NUMA node is that of the GPU; else the node that
// has all usable CPUs; else that of the chosen NIC, or of the best NIC by port
// rate.
NodeBinding Bind(const NodeTopology& topology,
                 absl::Span<const int> usable_cpus, const Gpu* gpu,
                 absl::string_view nic);

// For the log: "NUMA node 1 (CPUs 8-15), NICs mlx5_1 PIX 200 Gb/s, …".
std::string BindingText(const NodeBinding& binding);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_NODE_BINDING_H_
