#include "placement/cluster/cluster.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace refract::placement {
namespace {

absl::Status Bad(const Node& node, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("node ", node.name, ": ", what));
}

bool IsAmount(int64_t mib) {
  return mib == kUnlimited || (mib >= 0 && mib <= kMostMib);
}

absl::Status CheckNode(const Cluster& cluster, const Node& node) {
  if (node.name.empty()) {
    return absl::InvalidArgumentError("a node has no name");
  }
  if (node.cpu_milli < 0 || node.cpu_milli > kMostCpuMilli) {
    return Bad(node, absl::StrCat("cpu_milli ", node.cpu_milli,
                                  " is outside 0..", kMostCpuMilli));
  }
  if (!IsAmount(node.memory_mib)) {
    return Bad(node, absl::StrCat("memory_mib ", node.memory_mib,
                                  " is outside 0..", kMostMib));
  }
  if (!IsAmount(node.disk_mib)) {
    return Bad(node, absl::StrCat("disk_mib ", node.disk_mib, " is outside 0..",
                                  kMostMib));
  }
  if (node.gpus < 0 || node.gpus > kMaxGpus) {
    return Bad(node,
               absl::StrCat("gpus ", node.gpus, " is outside 0..", kMaxGpus));
  }
  if (node.nics < 0 || node.nics > kMaxNics) {
    return Bad(node,
               absl::StrCat("nics ", node.nics, " is outside 0..", kMaxNics));
  }
  if (node.sockets < 1 || node.sockets > kMaxSockets) {
    return Bad(node, absl::StrCat("sockets ", node.sockets, " is outside 1..",
                                  kMaxSockets));
  }
  if (!(node.nic_gbps > 0) || !std::isfinite(node.nic_gbps)) {
    return Bad(node, absl::StrCat("nic_gbps ", node.nic_gbps,
                                  " is no positive number"));
  }
  if (node.gpus > 0 &&
      (node.gpu_model < 0 ||
       node.gpu_model >= static_cast<int>(cluster.gpu_models.size()))) {
    return Bad(node, "has GPUs but no gpu_model");
  }
  if (node.leaf < 0 || node.leaf >= static_cast<int>(cluster.leaves.size())) {
    return Bad(node, "has no leaf switch");
  }
  for (int i = 0; i < node.gpus; ++i) {
    if (node.gpu_at[i].socket >= node.sockets) {
      return Bad(
          node, absl::StrCat("GPU ", i, " is at socket ", node.gpu_at[i].socket,
                             " of ", node.sockets));
    }
  }
  for (int i = 0; i < node.nics; ++i) {
    if (node.nic_at[i].socket >= node.sockets) {
      return Bad(
          node, absl::StrCat("NIC ", i, " is at socket ", node.nic_at[i].socket,
                             " of ", node.sockets));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t Cluster::TotalGpus() const {
  int64_t total = 0;
  for (const Node& node : nodes) total += node.gpus;
  return total;
}

int64_t Cluster::TotalCpuMilli() const {
  int64_t total = 0;
  for (const Node& node : nodes) total += node.cpu_milli;
  return total;
}

int GpuModelIndex(Cluster& cluster, absl::string_view model) {
  const auto found =
      std::find(cluster.gpu_models.begin(), cluster.gpu_models.end(), model);
  if (found != cluster.gpu_models.end()) {
    return static_cast<int>(found - cluster.gpu_models.begin());
  }
  // Sets of models are masks of 64 bits (Demand::gpu_models).
  if (cluster.gpu_models.size() == kMaxGpuModels) return -1;
  cluster.gpu_models.emplace_back(model);
  return static_cast<int>(cluster.gpu_models.size()) - 1;
}

bool IsMigCapable(absl::string_view model) {
  // Whole words: "A100-SXM4-80GB" is an A100, "A1000" is not.
  for (const absl::string_view name : {"A30", "A100", "A800", "H100", "H800",
                                       "H20", "H200", "B200", "GB200"}) {
    if (model == name || absl::StartsWith(model, absl::StrCat(name, "-"))) {
      return true;
    }
  }
  return false;
}

void AttachEvenly(Node& node, int sockets) {
  node.sockets = sockets;
  const int switches = std::max({node.nics, (node.gpus + 1) / 2, 1});
  const auto at = [&](int device, int count) {
    // Device i of n gets switch ⌊i · switches ÷ n⌋, and switches are divided
    // over sockets in the same way.
    const int pcie_switch = device * switches / count;
    return Attachment{
        .socket = static_cast<uint8_t>(pcie_switch * sockets / switches),
        .pcie_switch = static_cast<uint8_t>(pcie_switch)};
  };
  for (int i = 0; i < node.gpus; ++i) node.gpu_at[i] = at(i, node.gpus);
  for (int i = 0; i < node.nics; ++i) node.nic_at[i] = at(i, node.nics);
}

absl::Status Check(const Cluster& cluster) {
  if (cluster.nodes.empty()) {
    return absl::InvalidArgumentError("there are no nodes");
  }
  absl::flat_hash_set<absl::string_view> names;
  for (const Node& node : cluster.nodes) {
    if (const absl::Status status = CheckNode(cluster, node); !status.ok()) {
      return status;
    }
    if (!names.insert(node.name).second) return Bad(node, "is listed twice");
  }
  for (const Leaf& leaf : cluster.leaves) {
    if (leaf.pod < 0 || leaf.pod >= static_cast<int>(cluster.pods.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("leaf switch ", leaf.name, ": has no pod"));
    }
    if (!(leaf.uplink_gbps > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("leaf switch ", leaf.name, ": uplink_gbps ",
                       leaf.uplink_gbps, " is not positive"));
    }
  }
  return absl::OkStatus();
}

}  // namespace refract::placement
