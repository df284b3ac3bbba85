#ifndef REFRACT_PLACEMENT_FABRIC_FABRIC_FILE_H_
#define REFRACT_PLACEMENT_FABRIC_FABRIC_FILE_H_

// Files with the places of hosts in the fabric. The contents show the
// form:
//
//  - Kubernetes: `kubectl get nodes -o json`. Zone and region from
//    topology.kubernetes.io/{zone,region}; leaf and pod from NVIDIA Topograph's
//    labels, fabric.topograph.run/tier-{0,1} (since 1.1), or
//    network.topology.nvidia.com/{leaf,spine} (before). Where there is no zone
//    label, tier-2 or core stands for it. Addresses from status.addresses.
//    NVLink domains (accelerator labels) do not matter to CPU nodes.
//  - Slurm: topology.conf. SwitchName lines: the switch that names a node is
//    its leaf, the switches above are pod, zone and region. BlockName lines:
//    the block is the leaf.
//  - plain text, a host per line, `#` begins a comment:
//      cn-01 leaf=leaf-1 pod=pod-1 zone=a region=eu address=10.0.0.1,cn-01.x

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "placement/fabric/fabric.h"

namespace refract::placement {

// InvalidArgument names the line, in JSON the field: unknown keys, hosts or
// switches twice, contradictory labels, switches that form a cycle or have two
// switches above, no host at all.
absl::StatusOr<Fabric> ParseFabric(absl::string_view text);

// As ParseFabric(); every error names `path`.
absl::StatusOr<Fabric> LoadFabric(absl::string_view path);

// "n1", "n2", "n3" and "m" of Slurm's "n[1-3],m"; leading zeros are kept.
// InvalidArgument: not such a list, or more than 65,536 names.
absl::StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view text);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_FABRIC_FABRIC_FILE_H_
