#ifndef REFRACT_TOOLS_PLACE_PLACEMENT_OPTIONS_H_
#define REFRACT_TOOLS_PLACE_PLACEMENT_OPTIONS_H_

// Options of `refract place` and `refract simulate`.

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "placement/cluster/cluster.h"
#include "placement/cluster/lists.h"
#include "placement/policy/placer.h"

namespace CLI {
class App;
}  // namespace CLI

namespace refract::tools {

// The nodes, and the fabric if the node list has none.
struct ClusterOptions {
  std::string nodes;
  placement::NodeDefaults defaults;
  placement::FabricShape fabric;
  std::string fabric_file;  // in place of a made-up fabric
  // 0 = all nodes of the list, once; else the list is repeated or cut to this
  // number of nodes.
  int node_count = 0;
};
void AddClusterOptions(CLI::App& command, ClusterOptions& options);
// InvalidArgument names file, line and column.
absl::StatusOr<placement::Cluster> LoadCluster(const ClusterOptions& options);

// Rules and weights, without the policy.
struct RuleOptions {
  bool ignore_pods = false;
  double leaf_slack = 0.02;
  double leaf_quota = 0.8;
  bool nearest_nic = false;
};
void AddRuleOptions(CLI::App& command, RuleOptions& options);
placement::PlacerOptions PlacerOptionsOf(placement::Policy policy,
                                         const RuleOptions& options);

// InvalidArgument lists the policies.
absl::StatusOr<placement::Policy> ParsePolicy(const std::string& name);

// Size of the cluster, for the head of a report.
nlohmann::ordered_json ClusterJson(const placement::Cluster& cluster);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_PLACE_PLACEMENT_OPTIONS_H_
