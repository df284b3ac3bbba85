#ifndef REFRACT_PLACEMENT_POLICY_STATE_H_
#define REFRACT_PLACEMENT_POLICY_STATE_H_

// The running instances: the state that placement decisions read. Instances
// enter and leave one at a time, so incremental placement is the only kind.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "placement/cluster/cluster.h"
#include "placement/cluster/instance.h"
#include "placement/cluster/usage.h"

namespace refract::placement {

// GPU requests that the Clustering policy keeps apart.
enum class GpuKind : uint8_t { kNone, kShared, k1, k2To3, k4To7, k8Up };
inline constexpr int kGpuKinds = 6;
GpuKind KindOf(const Demand& demand);

// `cluster` must outlive the state. Not thread-safe.
class State {
 public:
  State(const Cluster& cluster, int apps);

  const Cluster& cluster() const { return *cluster_; }
  const NodeFree& free(int node) const { return free_[node]; }
  // Changes with every change on the node.
  uint32_t version(int node) const { return version_[node]; }
  // Instances of each kind on the node.
  const std::array<int32_t, kGpuKinds>& kinds(int node) const {
    return kinds_[node];
  }
  // Position of the node in the order of names, the last tie-break.
  int name_rank(int node) const { return name_rank_[node]; }
  const std::vector<int>& nodes_of_leaf(int leaf) const {
    return leaf_nodes_[leaf];
  }
  // NIC bandwidth granted below a leaf switch, Gbit/s.
  double leaf_gbps(int leaf) const { return leaf_gbps_[leaf]; }

  // The pod of an app's instances; -1 if it has none. With instances in several
  // pods: the pod of the instance that came first after the app had none.
  int PodOf(int app) const;
  // Number of instances of the app and role on a node; of the app below a leaf.
  int OnNode(int app, Role role, int node) const;
  int UnderLeaf(int app, int leaf) const;
  // Leaves with instances of the app, and how many.
  const absl::flat_hash_map<int, int>& LeavesOf(int app) const;

  // The caller must have checked that the instance fits with these devices.
  void Add(const Instance& instance, int node, const Devices& devices);
  void Remove(const Instance& instance, int node, const Devices& devices);

 private:
  struct App {
    int pod = -1;
    int instances = 0;
    absl::flat_hash_map<int, int> leaves;
    absl::flat_hash_map<int64_t, int> nodes;  // key: node × 3 + role
  };

  void Move(const Instance& instance, int node, const Devices& devices,
            int sign);

  const Cluster* cluster_;
  std::vector<NodeFree> free_;
  std::vector<uint32_t> version_;
  std::vector<std::array<int32_t, kGpuKinds>> kinds_;
  std::vector<int> name_rank_;
  std::vector<std::vector<int>> leaf_nodes_;
  std::vector<double> leaf_gbps_;
  std::vector<App> apps_;
};

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_POLICY_STATE_H_
