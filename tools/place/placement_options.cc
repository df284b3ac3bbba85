#include "tools/place/placement_options.h"

#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/number_range.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "placement/fabric/fabric_file.h"

namespace refract::tools {
void AddClusterOptions(CLI::App& command, ClusterOptions& options) {
  command
      .add_option("--nodes", options.nodes,
                  "node list, CSV: columns of refract, of Alibaba's gpu-v2023 "
                  "or v2026-spot trace (docs/reference/planning_files.md)")
      ->type_name("FILE")
      ->required();
  command
      .add_option("--node-count", options.node_count,
                  "number of nodes: the list is repeated or cut to it; 0 = as "
                  "many as the list has")
      ->type_name("N")
      ->check(base::NumberIn(0, 1e6));
  command
      .add_option("--memory-gib-per-core", options.defaults.memory_gib_per_core,
                  "memory of nodes whose list has none, GiB per core; 0 = "
                  "memory is no limit")
      ->type_name("GIB")
      ->check(base::NumberIn(0, 1e4));
  command
      .add_option("--nics", options.defaults.nics,
                  "NICs of nodes whose list has none; -1 = one for every two "
                  "GPUs, at least one")
      ->type_name("N")
      ->check(base::NumberIn(-1, placement::kMaxNics));
  command
      .add_option("--nic-gbps", options.defaults.nic_gbps,
                  "rate of a NIC whose list has none, Gbit/s")
      ->type_name("G")
      ->check(base::NumberIn(1e-3, 1e5));
  command
      .add_option(
          "--nodes-per-leaf", options.fabric.nodes_per_leaf,
          "nodes under a leaf switch, where the list has no column leaf")
      ->type_name("N")
      ->check(base::NumberIn(1, 1e6));
  command
      .add_option("--pods", options.fabric.pods,
                  "pods of the fabric, where the list has no column leaf")
      ->type_name("N")
      ->check(base::NumberIn(1, 1e4));
  command
      .add_option("--oversubscription", options.fabric.oversubscription,
                  "NIC rates under a leaf switch ÷ its uplink; 0 = uplinks "
                  "never bind")
      ->type_name("R")
      ->check(base::NumberIn(0, 1e4));
  command
      .add_option(
          "--fabric", options.fabric_file,
          "leaves and pods of the nodes by name: `kubectl get nodes -o "
          "json`, Slurm's topology.conf, or text (docs/how-to/topology.md)")
      ->type_name("FILE");
  command
      .add_option("--fabric-seed", options.fabric.seed,
                  "seed of the made-up fabric")
      ->type_name("N");
}

absl::StatusOr<placement::Cluster> LoadCluster(const ClusterOptions& options) {
  REFRACT_ASSIGN_OR_RETURN(
      placement::Cluster cluster,
      placement::ReadNodes(options.nodes, options.defaults));
  const size_t listed = cluster.nodes.size();
  if (options.node_count > 0) {
    const auto wanted = static_cast<size_t>(options.node_count);
    cluster.nodes.reserve(wanted);
    // Copies after whole rounds of the list, so that the mix of node kinds
    // stays that of the list. Names must be unique.
    for (size_t i = listed; i < wanted; ++i) {
      placement::Node copy = cluster.nodes[i % listed];
      copy.name = absl::StrCat(copy.name, "-copy", i / listed);
      cluster.nodes.push_back(std::move(copy));
    }
    cluster.nodes.resize(wanted);
    REFRACT_RETURN_IF_ERROR(
        base::Annotate(placement::Check(cluster), options.nodes));
  }
  if (!options.fabric_file.empty()) {
    REFRACT_ASSIGN_OR_RETURN(const placement::Fabric fabric,
                             placement::LoadFabric(options.fabric_file));
    REFRACT_RETURN_IF_ERROR(base::Annotate(
        placement::TakeFabric(fabric, options.fabric.oversubscription, cluster),
        options.fabric_file));
  } else if (!cluster.fabric_known) {
    placement::BuildFabric(options.fabric, cluster);
  }
  return cluster;
}

void AddRuleOptions(CLI::App& command, RuleOptions& options) {
  command.add_flag("--ignore-pods", options.ignore_pods,
                   "let instances of an app run in several pods");
  command
      .add_option("--leaf-slack", options.leaf_slack,
                  "how much worse a node may fit (0 to 1) to be under a leaf "
                  "switch of the app; -1 = leaves do not count")
      ->type_name("S")
      ->check(base::NumberIn(-1, 1));
  command
      .add_option("--leaf-quota", options.leaf_quota,
                  "part of a leaf's uplink that NIC shares below it may fill; "
                  "0 = no limit")
      ->type_name("Q")
      ->check(base::NumberIn(0, 1));
  command.add_flag("--nearest-nic", options.nearest_nic,
                   "policies that ignore topology take the nearest NIC of the "
                   "node, not the first");
}

placement::PlacerOptions PlacerOptionsOf(placement::Policy policy,
                                         const RuleOptions& options) {
  placement::PlacerOptions placer;
  placer.policy = policy;
  placer.keep_pod = !options.ignore_pods;
  // The baselines know no leaf switches.
  placer.pack_leaves =
      policy == placement::Policy::kCombined && options.leaf_slack >= 0;
  placer.leaf_slack = options.leaf_slack;
  placer.leaf_quota = options.leaf_quota;
  placer.nic_rule = options.nearest_nic ? placement::NicRule::kNearest
                                        : placement::NicRule::kFirst;
  return placer;
}

absl::StatusOr<placement::Policy> ParsePolicy(const std::string& name) {
  const auto policy = placement::PolicyFromName(name);
  if (!policy) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--policy ", name, ": unknown; use ", placement::PolicyNames()));
  }
  return *policy;
}

nlohmann::ordered_json ClusterJson(const placement::Cluster& cluster) {
  return {{"nodes", cluster.nodes.size()},
          {"cores", static_cast<double>(cluster.TotalCpuMilli()) / 1000},
          {"gpus", cluster.TotalGpus()},
          {"leaves", cluster.leaves.size()},
          {"pods", cluster.pods.size()}};
}

}  // namespace refract::tools
