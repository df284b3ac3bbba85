#ifndef REFRACT_PLACEMENT_FABRIC_KUBERNETES_NODE_H_
#define REFRACT_PLACEMENT_FABRIC_KUBERNETES_NODE_H_

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "placement/fabric/fabric.h"

namespace refract::placement {

// The host of a Kubernetes Node, with the labels of fabric_file.h.
// InvalidArgument names the field, or labels of both generations of Topograph
// that contradict each other.
absl::StatusOr<FabricHost> HostFromNode(const nlohmann::json& node);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_FABRIC_KUBERNETES_NODE_H_
