#ifndef REFRACT_PLACEMENT_TOPOLOGY_NODE_TOPOLOGY_H_
#define REFRACT_PLACEMENT_TOPOLOGY_NODE_TOPOLOGY_H_

// What one machine consists of and how far its parts are from each other: NUMA
// nodes, PCI bridges, NICs and GPUs. Values only: discovery.h reads them from
// sysfs, topology_file.h from a file.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace refract::placement {

// How two devices, or a device and the memory of a NUMA node, are connected.
// Nearest first; the names are those of `nvidia-smi topo -m`.
enum class PathClass {
  kPix,      // through one PCIe switch at most
  kPxb,      // through several PCIe switches, no host bridge
  kPhb,      // through the host bridge of both; to memory: of the NUMA node
  kNode,     // through two host bridges of one NUMA node
  kSys,      // between NUMA nodes
  kUnknown,  // sysfs does not say: virtual machines, software devices
};
inline constexpr int kNumPathClasses = 6;
// "PIX", …, "UNKNOWN".
absl::string_view Name(PathClass path_class);
// nullopt: no such name. Upper case only.
std::optional<PathClass> PathClassNamed(absl::string_view name);

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;      // ascending; empty: memory only
  int64_t memory_bytes = 0;   // 0: unknown
  std::vector<int> distance;  // to the nodes in order of id, 10 = local
};

// A PCI function: a bridge or a device.
struct PciFunction {
  std::string address;  // "0000:3b:00.0", lower case
  std::string root;     // host bridge: "pci0000:3a"
  int parent = -1;      // bridge above, index in NodeTopology::pci; -1: none
  int numa_node = -1;   // NumaNode::id; -1: unknown
  // The link of this function: of a root port or a downstream port of a switch
  // it lies below the function, of other functions above. 0: unknown.
  double gigatransfers = 0;  // per second and lane
  int lanes = 0;
  int max_lanes = 0;              // more than `lanes`: the link is degraded
  double gbps = 0;                // payload bits per second × 1e-9, one way
  std::string physical_function;  // address, of SR-IOV virtual functions
};

struct Gid {
  int index = 0;
  std::string address;  // "0000:…:0a00:0001", as the kernel writes it
  std::string type;     // "RoCE v2", "IB/RoCE v1", empty: unknown
  std::string netdev;   // empty: none
};

struct NicPort {
  int number = 1;
  std::string state;  // "ACTIVE", "DOWN", …; empty: unknown
  double gbps = 0;    // 0: unknown
  std::string link_layer;
  std::vector<Gid> gids;

  bool active() const { return state == "ACTIVE"; }
};

struct Nic {
  std::string name;   // "mlx5_0"; of NICs without RDMA the network device
  bool rdma = false;  // else a network device only
  // Index in NodeTopology::pci; -1: a software device, or no PCI data.
  int pci = -1;
  int numa_node = -1;
  std::vector<NicPort> ports;
  std::vector<std::string> netdevs;
  // Members of a bond, network devices; empty: no bond.
  std::vector<std::string> bond_members;

  bool active() const;
  // Rate of the fastest active port; where no port is active, of the fastest
  // port.
  double port_gbps() const;
};

struct Gpu {
  std::string name;   // "gpu0": numbered in order of PCI addresses
  std::string model;  // "NVIDIA H200"; empty: unknown
  int pci = -1;
  int numa_node = -1;
};

// Path data that an operator gave in place of discovered data.
struct GivenPath {
  std::string from;  // name of a NIC or GPU
  std::string to;    // name of a NIC or GPU, or "node0"
  PathClass path_class = PathClass::kUnknown;
  double gbps = 0;  // 0: as computed
};

struct NodeTopology {
  std::vector<NumaNode> numa_nodes;  // by id
  std::vector<PciFunction> pci;
  std::vector<Nic> nics;  // RDMA devices first, each by name
  std::vector<Gpu> gpus;  // by PCI address
  std::vector<GivenPath> given_paths;

  const NumaNode* FindNode(int id) const;
  const Nic* FindNic(absl::string_view name) const;
  const Gpu* FindGpu(absl::string_view name) const;
  int FindPci(absl::string_view address) const;  // -1: none
  // A machine whose NUMA data would change no decision: one node, or none.
  bool is_uniform() const { return numa_nodes.size() < 2; }
};

struct Path {
  PathClass path_class = PathClass::kUnknown;
  // The slowest link of the path, NIC ports included; 0: unknown. The links
  // between sockets are not in sysfs and not counted.
  double gbps = 0;
  friend bool operator==(const Path&, const Path&) = default;
};

// An end of a path. Made from parts of a topology, which it must not outlive.
struct Endpoint {
  Endpoint(const Nic& nic);        // NOLINT(google-explicit-constructor)
  Endpoint(const Gpu& gpu);        // NOLINT(google-explicit-constructor)
  Endpoint(const NumaNode& node);  // NOLINT(google-explicit-constructor)

  std::string name;  // "mlx5_0", "gpu0", "node0"
  int pci = -1;
  int numa_node = -1;
  double gbps = 0;  // of a NIC's port; 0: no bound, or unknown
  bool is_memory = false;
};

// The path between two devices, or a device and memory. PIX where no more than
// one bridge of each side lies below the nearest common bridge (the two
// downstream ports of one switch), PXB where more do: NCCL's count (pciDistance
// in its graph search), but functions of one card are PIX. To memory: PHB of
// the device's own NUMA node, SYS of another.
//
// `topology` has passed Check().
Path PathBetween(const NodeTopology& topology, const Endpoint& a,
                 const Endpoint& b);

// Bits of payload per second × 1e-9 of a PCIe link: transfers less the line
// code (8b/10b up to 5 GT/s, 128b/130b up to 32, flits of 236 in 256 bytes at
// 64; PCI Express Base Specification 6.0). Packet headers take some more.
double PcieGbps(double gigatransfers, int lanes);

// InvalidArgument names the field: bridges that form a cycle or leave their
// root, names, addresses or NUMA nodes twice, a CPU in two NUMA nodes, devices
// on NUMA nodes that the machine does not have, given paths to nothing.
absl::Status Check(const NodeTopology& topology);

// CPUs as the kernel lists them: "0-3,8"; empty for none.
std::string CpuListText(const std::vector<int>& cpus);
// InvalidArgument: `text` is no such list, or longer than any machine's.
absl::StatusOr<std::vector<int>> ParseCpuList(absl::string_view text);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_TOPOLOGY_NODE_TOPOLOGY_H_
