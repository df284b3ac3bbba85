#include "placement/fabric/kubernetes_node.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace refract::placement {
namespace {

using Json = nlohmann::json;

// The text `name` of an object; empty when it is absent or no text.
std::string TextOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>()
                                                     : "";
}

// The value of a label that has an older and a newer name. InvalidArgument if
// both are there and differ.
absl::StatusOr<std::string> Label(const Json& labels, const char* newer,
                                  const char* older) {
  const std::string a = TextOf(labels, newer);
  const std::string b = TextOf(labels, older);
  if (!a.empty() && !b.empty() && a != b) {
    return absl::InvalidArgumentError(absl::StrCat(
        "contradictory labels: ", newer, " is ", a, ", ", older, " is ", b));
  }
  return a.empty() ? b : a;
}

}  // namespace

absl::StatusOr<FabricHost> HostFromNode(const Json& node) {
  const Json empty = Json::object();
  // Absent members and members of other types count as empty.
  const auto member = [&empty](const Json& object,
                               const char* name) -> const Json& {
    const auto found = object.find(name);
    return found != object.end() && found->is_object() ? *found : empty;
  };
  if (!node.is_object()) return absl::InvalidArgumentError("is no object");
  const Json& metadata = member(node, "metadata");
  const Json& labels = member(metadata, "labels");
  FabricHost host;
  host.name = TextOf(metadata, "name");
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
  host.zone = TextOf(labels, "topology.kubernetes.io/zone");
  if (host.zone.empty()) {
    REFRACT_ASSIGN_OR_RETURN(host.zone,
                             Label(labels, "fabric.topograph.run/tier-2",
                                   "network.topology.nvidia.com/core"));
  }
  host.region = TextOf(labels, "topology.kubernetes.io/region");
  const Json& status = member(node, "status");
  const auto addresses = status.find("addresses");
  if (addresses != status.end() && addresses->is_array()) {
    for (const Json& address : *addresses) {
      if (!address.is_object()) continue;
      const std::string text = TextOf(address, "address");
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
