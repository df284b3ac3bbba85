#ifndef REFRACT_PLACEMENT_MANIFESTS_MANIFESTS_H_
#define REFRACT_PLACEMENT_MANIFESTS_MANIFESTS_H_

// Kubernetes objects for a deployment. Pure: values in, the text of files out.
//
// The planner decides how many instances there are and their demands; the
// cluster's own schedulers decide where they run. A manifest therefore carries
// facts for a scheduler: claims that join GPU and NIC of one PCIe root,
// affinity and spread over the labels of the fabric, counts and their bounds.
// docs/how-to/kubernetes.md says what is written and why.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "placement/planner/deployment.h"

namespace refract::placement {

// The scheduler of the pods.
enum class Flavour : uint8_t {
  kPlain,  // kube-scheduler, with generally available fields alone
  kKueue,  // admission and topology by Kueue
  kKai,    // KAI scheduler
  kGrove,  // Grove's PodCliqueSet, placed by the KAI scheduler
};
absl::string_view Name(Flavour flavour);  // "plain", "kueue", "kai", "grove"
std::optional<Flavour> FlavourFromName(absl::string_view name);

// Keys of the node labels that Topograph writes, nearest domain first, and the
// zone. nullopt: neither "topograph" (1.1 on: fabric.topograph.run/tier-N) nor
// "topograph-legacy" (network.topology.nvidia.com/leaf and so on).
std::optional<std::vector<std::string>> TierKeysOf(absl::string_view labels);

struct ManifestOptions {
  Flavour flavour = Flavour::kPlain;
  std::string name_space = "default";
  // DeviceClasses of the cluster's DRA drivers.
  std::string gpu_class = "gpu.nvidia.com";
  std::string mig_class = "mig.nvidia.com";
  std::string nic_class = "rdma-nic";
  // Class of a driver that publishes CPUs; empty: no such driver, and the CPU
  // node binds itself to the NUMA node of its NIC.
  std::string cpu_class;
  std::string queue = "default";     // of Kueue (LocalQueue) or KAI
  std::string topology = "refract";  // Topology or ClusterTopologyBinding
  std::string monitoring_namespace = "monitoring";  // of Prometheus
  // Secret with tls.crt, tls.key and ca.crt of all nodes, for TLS between CNs
  // and HNs; empty: none.
  std::string node_tls_secret;
  // Name in the certificates of HNs. CNs dial the addresses of SRV records,
  // which certificates do not have.
  std::string node_tls_name = "refract-gpu-node";
};

// First line of every file, which identifies files of an earlier plan.
inline constexpr absl::string_view kManifestMark = "# Written by refract plan";

struct ManifestFile {
  std::string name;  // without a folder; kubectl applies them in this order
  std::string text;
};

// Files for `kubectl apply -f DIR`. InvalidArgument names the option that is no
// name of a Kubernetes object, or the service and the field that Check()
// refuses or that the flavour cannot express.
absl::StatusOr<std::vector<ManifestFile>> WriteManifests(
    const Deployment& deployment, const ManifestOptions& options);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_MANIFESTS_MANIFESTS_H_
