#include "placement/policy/state.h"

#include <algorithm>
#include <numeric>

namespace refract::placement {
namespace {

int64_t NodeKey(int node, Role role) {
  return int64_t{node} * 3 + static_cast<int>(role);
}

int CountOf(const auto& counts, const auto& key) {
  const auto found = counts.find(key);
  return found == counts.end() ? 0 : found->second;
}

// Entries of 0 are erased: LeavesOf() lists only leaves with instances.
void ChangeCount(auto& counts, const auto& key, int by) {
  const auto at = counts.try_emplace(key, 0).first;
  at->second += by;
  if (at->second == 0) counts.erase(at);
}

}  // namespace

GpuKind KindOf(const Demand& demand) {
  if (demand.gpus == 0) return GpuKind::kNone;
  // Fractions and MIG slices are one kind.
  if (demand.gpu_milli < kWholeGpu) return GpuKind::kShared;
  if (demand.gpus == 1) return GpuKind::k1;
  if (demand.gpus < 4) return GpuKind::k2To3;
  return demand.gpus < 8 ? GpuKind::k4To7 : GpuKind::k8Up;
}

State::State(const Cluster& cluster, int apps)
    : cluster_(&cluster),
      version_(cluster.nodes.size(), 0),
      kinds_(cluster.nodes.size()),
      name_rank_(cluster.nodes.size()),
      leaf_nodes_(cluster.leaves.size()),
      leaf_gbps_(cluster.leaves.size(), 0),
      apps_(apps) {
  free_.reserve(cluster.nodes.size());
  for (const Node& node : cluster.nodes) {
    leaf_nodes_[node.leaf].push_back(static_cast<int>(free_.size()));
    free_.push_back(AllFree(node));
  }
  std::vector<int> order(cluster.nodes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return cluster.nodes[a].name < cluster.nodes[b].name;
  });
  for (size_t rank = 0; rank < order.size(); ++rank) {
    name_rank_[order[rank]] = static_cast<int>(rank);
  }
}

int State::PodOf(int app) const { return app < 0 ? -1 : apps_[app].pod; }

int State::OnNode(int app, Role role, int node) const {
  return app < 0 ? 0 : CountOf(apps_[app].nodes, NodeKey(node, role));
}

int State::UnderLeaf(int app, int leaf) const {
  return app < 0 ? 0 : CountOf(apps_[app].leaves, leaf);
}

const absl::flat_hash_map<int, int>& State::LeavesOf(int app) const {
  static const auto& none = *new absl::flat_hash_map<int, int>();
  return app < 0 ? none : apps_[app].leaves;
}

void State::Add(const Instance& instance, int node, const Devices& devices) {
  Take(instance.demand, devices, free_[node]);
  Move(instance, node, devices, 1);
}

void State::Remove(const Instance& instance, int node, const Devices& devices) {
  GiveBack(instance.demand, devices, free_[node]);
  Move(instance, node, devices, -1);
}

void State::Move(const Instance& instance, int node, const Devices& devices,
                 int sign) {
  // Caches of scores compare versions (Placer::Lookup).
  ++version_[node];
  kinds_[node][static_cast<int>(KindOf(instance.demand))] += sign;
  const int leaf = cluster_->nodes[node].leaf;
  if (devices.nic >= 0) {
    leaf_gbps_[leaf] += sign * instance.demand.nic_percent *
                        cluster_->nodes[node].nic_gbps / kWholeNic;
  }
  if (instance.app < 0) return;
  App& app = apps_[instance.app];
  app.instances += sign;
  // The first instance decides the pod of the app; the last to leave frees it.
  if (app.instances == 0) {
    app.pod = -1;  // the next instance chooses anew
  } else if (app.pod < 0) {
    app.pod = cluster_->leaves[leaf].pod;
  }
  ChangeCount(app.leaves, leaf, sign);
  ChangeCount(app.nodes, NodeKey(node, instance.role), sign);
}

}  // namespace refract::placement
