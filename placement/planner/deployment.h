#ifndef REFRACT_PLACEMENT_PLANNER_DEPLOYMENT_H_
#define REFRACT_PLACEMENT_PLANNER_DEPLOYMENT_H_

// The answer of the capacity planner in the form for writers of manifests:
// services, demand of each instance, and how the instances find each other.
// Values only.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "placement/cluster/instance.h"

namespace refract::placement {

// Annotation of pods whose GPU comes with a DRA claim: number of whole GPUs, or
// the MIG profile. Schedulers' extenders cannot see claims (extender/).
inline constexpr char kGpuAnnotation[] = "refract-gpu";

// Equal instances of one role: a Deployment or StatefulSet in Kubernetes.
struct Service {
  std::string name;  // DNS label (RFC 1123), unique: "ranker-cn"
  std::string app;   // models that belong together: "ranker"; a DNS label
  Role role = Role::kCn;
  int replicas = 1;        // at the peak of traffic; ≥ 1
  int least_replicas = 1;  // at its valley; 1 … replicas
  int max_per_node = -1;   // instances on one node; -1 = no limit
  // Demand of an instance: cores (cpu_milli), memory, whole GPUs or a MIG slice
  // (HN), share of one NIC (nic_percent; 0 = needs none).
  Demand demand;
  // GPU model as in the node list ("A100"); empty: any, or none is needed.
  std::string gpu_model;
  double nic_gbps = 200;  // rate of the NIC that nic_percent is a share of

  // Nodes must have these labels: key, value. E.g. a node pool.
  std::vector<std::pair<std::string, std::string>> node_labels;

  // Executions at once in one instance: --workers of a CN, --instances of an
  // HN. ≥ 1.
  int parallel = 1;
  // HN: --batching-window-us; negative: the flag is not given, requests are not
  // merged. 0 merges requests that wait already.
  double batching_window_us = -1;
  // Requests per second of one instance at the answer's load, and its limit:
  // the load at which p99 leaves the SLO. For targets of autoscaling.
  double requests_per_s = 0;
  double most_requests_per_s = 0;
};

struct Deployment {
  std::string name;  // a DNS label; prefix of objects that services share
  std::vector<Service> services;

  std::string image;             // container image with the daemons
  std::string model_repository;  // --model-repository, inside the containers
  // Ports, as the daemons' flags: 0 = not served.
  int grpc_port = 8001;        // CN --grpc-port
  int cn_metrics_port = 8002;  // CN --metrics-port
  int hn_port = 8100;          // HN --port
  int hn_metrics_port = 8102;  // HN --metrics-port

  double slo_p99_ms = 0;  // p99 ≤ this
  // Keys of node labels with a node's place, nearest domain first: leaf, pod,
  // zone. Empty: unknown. CNs and HNs of one app share the value of the second
  // key (the pod).
  std::vector<std::string> tier_keys;
};

// Whether `name` can be the name of a Kubernetes object: DNS labels of any
// length (RFC 1123: a-z, 0-9 and '-') joined by dots, 253 characters at the
// most.
bool IsObjectName(absl::string_view name);
// The same for names of services and namespaces: one label of at most 63
// characters.
bool IsDnsLabel(absl::string_view name);

// InvalidArgument names the service and the field: a name that is no DNS label
// or occurs twice, replicas or ports out of range, a CN with GPUs; a tier key
// that is no key of a label.
absl::Status Check(const Deployment& deployment);

}  // namespace refract::placement

#endif  // REFRACT_PLACEMENT_PLANNER_DEPLOYMENT_H_
