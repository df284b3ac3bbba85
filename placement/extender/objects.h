#ifndef REFRACT_PLACEMENT_EXTENDER_OBJECTS_H_
#define REFRACT_PLACEMENT_EXTENDER_OBJECTS_H_

// Kubernetes' Pods and Nodes as instances and nodes of placement. Other fields
// are ignored.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "placement/cluster/cluster.h"
#include "placement/cluster/instance.h"

namespace refract::placement {

// A number of the resource model: "1500m", "4Gi", "2e3"; nullopt: it is none,
// or negative.
std::optional<double> ParseQuantity(absl::string_view text);

struct PodObject {
  std::string name;
  std::string name_space;
  std::string uid;
  std::string node;  // empty: not bound
  bool ended = false;
  // NAMESPACE/NAME of label app.kubernetes.io/part-of; empty: belongs to no
  // app.
  std::string app;
  Role role = Role::kWhole;  // label app.kubernetes.io/component
  // Of resources.requests: CPU, memory, ephemeral storage, nvidia.com/gpu or
  // one nvidia.com/mig-…; else GPUs of annotation refract-gpu ("1", "2g.20gb"),
  // which names the devices of a DRA claim. Without NIC.
  Demand demand;
  // Why `demand` is unknown; empty: it is known. Only in lists.
  std::string refusal;
};

struct NodeObject {
  Node node;  // leaf unset; without NICs, whose number Kubernetes does not know
  std::string leaf;  // names; empty: no label
  std::string pod;
  // False: it publishes more GPUs than a server has, because they are shared by
  // time slicing; single GPUs are then unknown.
  bool judged = true;
  // Why everything but the name is unknown; empty: it is known. Only in lists.
  std::string refusal;
};

// InvalidArgument names the field.
absl::StatusOr<PodObject> PodFromJson(const nlohmann::json& pod);
absl::StatusOr<NodeObject> NodeFromJson(const nlohmann::json& node);

// A page of a PodList or NodeList. An item with a wrong field has a `refusal`,
// so that it does not keep pods from the other nodes. InvalidArgument: is no
// list, or an item is no object with a name ("items[3]: …").
struct PodPage {
  std::vector<PodObject> pods;
  std::string next;  // metadata.continue; empty: the last page
};
struct NodePage {
  std::vector<NodeObject> nodes;
  std::string next;
};
absl::StatusOr<PodPage> PodsFromText(absl::string_view text);
absl::StatusOr<NodePage> NodesFromText(absl::string_view text);
absl::StatusOr<std::vector<NodeObject>> NodesFromJson(
    const nlohmann::json& list);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_EXTENDER_OBJECTS_H_
