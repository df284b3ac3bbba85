#ifndef REFRACT_PLACEMENT_CLUSTER_CLUSTER_H_
#define REFRACT_PLACEMENT_CLUSTER_CLUSTER_H_

// Nodes on which instances are placed: resources, devices and place in the
// fabric. Values only; cluster/usage.h has their free resources.
//
// Units: CPU in thousandths of a core (milli), GPU in thousandths of a GPU,
// memory and disk in MiB, bandwidth of NICs in percent of one NIC.

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace refract::placement {

// Limits of one node. The largest servers of the traces have 8 GPUs.
inline constexpr int kMaxGpus = 16;
inline constexpr int kMaxNics = 16;
inline constexpr int kMaxSockets = 4;
inline constexpr int kWholeGpu = 1000;
inline constexpr int kWholeNic = 100;
// Capacity of a resource that a node list does not state: never binds.
inline constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 4;
// Larger amounts of a node or instance are mistaken units: 10,000 cores, 1
// PiB.
inline constexpr int64_t kMostCpuMilli = 10'000'000;
inline constexpr int64_t kMostMib = int64_t{1} << 30;
// Sets of GPU models are bit masks.
inline constexpr int kMaxGpuModels = 64;

// Socket and PCIe switch of a GPU or a NIC. Switches are numbered through the
// node, not per socket.
struct Attachment {
  uint8_t socket = 0;
  uint8_t pcie_switch = 0;
};

struct Node {
  std::string name;
  int64_t cpu_milli = 0;
  int64_t memory_mib = kUnlimited;
  int64_t disk_mib = kUnlimited;
  int gpus = 0;
  int gpu_model = -1;        // index in Cluster::gpu_models; -1 without GPUs
  bool mig_capable = false;  // its GPUs can be divided into MIG slices
  int nics = 0;
  double nic_gbps = 200;  // of each NIC, for the quota of the leaf's uplink
  int sockets = 1;        // `cpu_milli` is divided evenly among them
  std::array<Attachment, kMaxGpus> gpu_at{};
  std::array<Attachment, kMaxNics> nic_at{};
  int leaf = 0;  // index in Cluster::leaves
};

// A leaf (access) switch. Its pod is the part of the fabric within which RDMA
// runs at full speed.
struct Leaf {
  std::string name;
  int pod = 0;  // index in Cluster::pods
  double uplink_gbps = std::numeric_limits<double>::infinity();
};

// Everything is indexed by position. Names of nodes are unique.
struct Cluster {
  std::vector<Node> nodes;
  std::vector<std::string> gpu_models;
  std::vector<Leaf> leaves;
  std::vector<std::string> pods;
  bool fabric_known = false;  // leaves and pods are the node list's

  int64_t TotalGpus() const;
  int64_t TotalCpuMilli() const;
};

// The index of `model` in `cluster.gpu_models`, where it is added if missing;
// -1: there are kMaxGpuModels already.
int GpuModelIndex(Cluster& cluster, absl::string_view model);

// Whether GPUs called `model` can be divided by MIG: NVIDIA's A30, A100, A800,
// H100, H800, H20, H200, B200 and GB200.
bool IsMigCapable(absl::string_view model);

// Spreads `node`'s GPUs and NICs evenly over PCIe switches and sockets, in
// order: as many switches as NICs, or one for every two GPUs where that is
// more. Prism's GPU nodes are so: 2 sockets, 4 switches, each with 1 NIC and 2
// GPUs (Yang et al., NSDI '25, figure 10).
void AttachEvenly(Node& node, int sockets);

// InvalidArgument names the node and the field: no nodes, a name twice, a
// negative or absurd amount, an index out of range.
absl::Status Check(const Cluster& cluster);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_CLUSTER_CLUSTER_H_
