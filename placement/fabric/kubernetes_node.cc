#include "placement/fabric/kubernetes_node.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "placement/topology/json_text.h"

namespace refract::placement {
namespace {

using Json = nlohmann::json;

// The value of a label that has an older and a newer name. InvalidArgument if
// both are there and differ.
absl::StatusOr<std::string> Label(const Json& labels, const char* newer,
                                  const char* older) {
  const std::string a = JsonText(labels, newer);
  const std::string b = JsonText(labels, older);
  if (!a.empty() && !b.empty() && a != b) {
    return absl::InvalidArgumentError(absl::StrCat(
        "contradictory labels: ", newer, " is ", a, ", ", older, " is ", b));
  }
  return a.empty() ? b : a;
}

}  // namespace

absl::StatusOr<FabricHost> HostFromNode(const Json& node) {
  if (!node.is_object()) return absl::InvalidArgumentError("is no object");
  const Json& metadata = JsonMember(node, "metadata");
  const Json& labels = JsonMember(metadata, "labels");
  FabricHost host;
  host.name = JsonText(metadata, "name");
  if (host.name.empty()) {
    return absl::InvalidArgumentError("metadata.name: is missing");
  }
  // Labels of Topograph, newer and older names; the zone and region are
  // Kubernetes' own labels, with Topograph's third tier where the zone is
  // missing.
  REFRACT_ASSIGN_OR_RETURN(host.leaf,
                           Label(labels, "fabric.topograph.run/tier-0",
                                 "network.topology.nvidia.com/leaf"));
  REFRACT_ASSIGN_OR_RETURN(host.pod,
                           Label(labels, "fabric.topograph.run/tier-1",
                                 "network.topology.nvidia.com/spine"));
  host.zone = JsonText(labels, "topology.kubernetes.io/zone");
  if (host.zone.empty()) {
    REFRACT_ASSIGN_OR_RETURN(host.zone,
                             Label(labels, "fabric.topograph.run/tier-2",
                                   "network.topology.nvidia.com/core"));
  }
  host.region = JsonText(labels, "topology.kubernetes.io/region");
  const Json& addresses = JsonMember(JsonMember(node, "status"), "addresses");
  if (addresses.is_array()) {
    for (const Json& address : addresses) {
      const std::string text = JsonText(address, "address");
      // The host name is an address, too, and usually equals the node's name.
      if (!text.empty() && text != host.name &&
          std::find(host.addresses.begin(), host.addresses.end(), text) ==
              host.addresses.end()) {
        host.addresses.push_back(text);
      }
    }
  }
  return host;
}

}  // namespace refract::placement
