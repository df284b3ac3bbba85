#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "placement/cluster/cluster.h"
#include "placement/manifests/objects.h"

namespace refract::placement {
namespace {

constexpr char kHostname[] = "kubernetes.io/hostname";
// User id of the containers; images on distroless bases have this user.
constexpr int kUser = 65532;

// Seconds: the CN's lame-duck time and drain (docs/how-to/serving.md) and a
// margin; GPU nodes stop sooner.
constexpr int kGracePeriod = 45;
// Longest start, as failureThreshold × period: tables of 100 GB are verified.
constexpr int kStartPeriod = 10;
constexpr int kStartFailures = 90;

// Where the secret of --node-tls-secret is mounted.
constexpr char kNodeTlsFolder[] = "/etc/refract/node-tls";

// "16" or "1500m".
std::string Cores(int64_t milli) {
  return milli % 1000 == 0 ? absl::StrCat(milli / 1000)
                           : absl::StrCat(milli, "m");
}

// The CN's --gpu-nodes: the SRV records of the app's headless services, whose
// port is called "refract".
std::string GpuNodes(const ManifestOf& of) {
  std::vector<std::string> sources;
  for (const Service& other : of.deployment.services) {
    if (other.role != Role::kHn || other.app != of.service.app) continue;
    sources.push_back(absl::StrCat("srv:_refract._tcp.", other.name, ".",
                                   of.options.name_space, ".svc"));
  }
  return absl::StrJoin(sources, ",");
}

// A CN of whole models has no HN to talk to.
bool UsesNodeTls(const ManifestOf& of) {
  return !of.options.node_tls_secret.empty() &&
         of.service.role != Role::kWhole;
}

Yaml Arguments(const ManifestOf& of) {
  const Deployment& deployment = of.deployment;
  Yaml arguments = Yaml::List();
  const auto add = [&](absl::string_view flag, std::string value) {
    arguments.Add(absl::StrCat("--", flag, "=", value));
  };
  add("model-repository", deployment.model_repository);
  int metrics_port = deployment.cn_metrics_port;
  if (of.is_hn()) {
    add("host", "0.0.0.0");
    add("port", absl::StrCat(deployment.hn_port));
    add("instances", absl::StrCat(of.service.parallel));
    if (of.service.batching_window_us >= 0) {
      add("batching-window-us",
          absl::StrCat(std::llround(of.service.batching_window_us)));
    }
    metrics_port = deployment.hn_metrics_port;
  } else {
    add("grpc-host", "0.0.0.0");
    add("grpc-port", absl::StrCat(deployment.grpc_port));
    add("workers", absl::StrCat(of.service.parallel));
    const std::string gpu_nodes = GpuNodes(of);
    if (!gpu_nodes.empty()) add("gpu-nodes", gpu_nodes);
  }
  if (UsesNodeTls(of)) {
    for (const auto& [flag, file] : {std::pair("node-tls-cert", "tls.crt"),
                                     std::pair("node-tls-key", "tls.key"),
                                     std::pair("node-tls-ca", "ca.crt")}) {
      add(flag, absl::StrCat(kNodeTlsFolder, "/", file));
    }
    if (!of.is_hn()) add("node-tls-name", of.options.node_tls_name);
  }
  if (metrics_port == 0) {
    add("metrics-port", "off");
  } else {
    add("metrics-host", "0.0.0.0");
    add("metrics-port", absl::StrCat(metrics_port));
  }
  return arguments;
}

Yaml Port(absl::string_view name, int port) {
  return Yaml::Map({{"name", name}, {"containerPort", port}});
}

Yaml Ports(const ManifestOf& of) {
  const Deployment& deployment = of.deployment;
  Yaml ports = Yaml::List();
  ports.Add(of.is_hn() ? Port("refract", deployment.hn_port)
                       : Port("grpc", deployment.grpc_port));
  const int metrics =
      of.is_hn() ? deployment.hn_metrics_port : deployment.cn_metrics_port;
  if (metrics > 0) ports.Add(Port("metrics", metrics));
  return ports;
}

// A node reports its readiness, and its start and life if it has a port for
// them. Without such a port, an open port counts as life.
void AddProbes(const ManifestOf& of, Yaml& container) {
  // GPU nodes have HTTP paths for health on their metrics port.
  const bool http = of.is_hn() && of.deployment.hn_metrics_port > 0;
  const auto says = [](absl::string_view what) {
    return Yaml::Map(
        {{"path", absl::StrCat("/v2/health/", what)}, {"port", "metrics"}});
  };
  const Yaml connects = Yaml::Map({{"port", of.is_hn() ? "refract" : "grpc"}});
  const auto lives = [&](int failures) {
    Yaml probe = Yaml::Map();
    probe.Set(http ? "httpGet" : "tcpSocket", http ? says("live") : connects);
    probe.Set("periodSeconds", kStartPeriod);
    probe.Set("failureThreshold", failures);
    return probe;
  };
  // The startup probe gives a long load its time; only after it passes do the
  // other probes begin.
  container.Set("startupProbe", lives(kStartFailures));
  container.Set("livenessProbe", lives(3));
  Yaml ready = Yaml::Map();
  if (!of.is_hn()) {
    // grpc.health.v1, generally available since Kubernetes 1.27.
    ready.Set("grpc", Yaml::Map({{"port", of.deployment.grpc_port}}));
  } else {
    ready.Set(http ? "httpGet" : "tcpSocket", http ? says("ready") : connects);
  }
  ready.Set("periodSeconds", 2);
  ready.Set("failureThreshold", 2);
  container.Set("readinessProbe", ready);
}

Yaml Container(const ManifestOf& of) {
  const Demand& demand = of.service.demand;
  Yaml amounts = Yaml::Map();
  if (demand.cpu_milli > 0) amounts.Set("cpu", Cores(demand.cpu_milli));
  if (demand.memory_mib > 0) {
    amounts.Set("memory", absl::StrCat(demand.memory_mib, "Mi"));
  }
  if (demand.disk_mib > 0) {
    amounts.Set("ephemeral-storage", absl::StrCat(demand.disk_mib, "Mi"));
  }
  // Equal requests and limits: class Guaranteed, whose whole cores the kubelet
  // may give out exclusively and near the devices.
  Yaml resources = Yaml::Map({{"requests", amounts}, {"limits", amounts}});
  if (NeedsClaim(of)) {
    resources.Set("claims", Yaml::List({Yaml::Map({{"name", "devices"}})}));
  }
  Yaml capabilities = Yaml::Map({{"drop", Yaml::List({"ALL"})}});
  if (demand.nic_percent > 0) {
    // Registered memory is locked.
    capabilities.Set("add", Yaml::List({"IPC_LOCK"}));
  }
  Yaml container = Yaml::Map(
      {{"name", of.is_hn() ? "gpu-node" : "cpu-node"},
       {"image", of.deployment.image},
       {"command",
        Yaml::List({of.is_hn() ? "refract-gpu-node" : "refract-cpu-node"})},
       {"args", Arguments(of)},
       {"ports", Ports(of)},
       {"resources", resources}});
  AddProbes(of, container);
  container.Set("securityContext",
                Yaml::Map({{"allowPrivilegeEscalation", false},
                           {"readOnlyRootFilesystem", true},
                           {"capabilities", capabilities}}));
  Yaml mounts =
      Yaml::List({Yaml::Map({{"name", "models"},
                             {"mountPath", of.deployment.model_repository},
                             {"readOnly", true}}),
                  Yaml::Map({{"name", "tmp"}, {"mountPath", "/tmp"}})});
  if (UsesNodeTls(of)) {
    // A folder, since files mounted by subPath miss a change of the secret.
    mounts.Add(Yaml::Map({{"name", "node-tls"},
                          {"mountPath", kNodeTlsFolder},
                          {"readOnly", true}}));
  }
  container.Set("volumeMounts", mounts);
  return container;
}

// Pods of `role` in the domain of label `key`.
Yaml Near(const ManifestOf& of, Role role, absl::string_view key) {
  return Yaml::Map({{"labelSelector",
                     Yaml::Map({{"matchLabels", AppLabels(of.service, role)}})},
                    {"topologyKey", key}});
}

// Where CNs and HNs of the app should be near each other. Kueue and Grove place
// pods by their own constraints, which a pod affinity would contradict.
Yaml Affinity(const ManifestOf& of) {
  Yaml affinity = Yaml::Map();
  const std::vector<std::string>& keys = of.deployment.tier_keys;
  const Flavour flavour = of.options.flavour;
  if (flavour == Flavour::kPlain || flavour == Flavour::kKai) {
    Yaml pods = Yaml::Map();
    if (keys.size() >= 2) {
      // The first pod of the app satisfies the term by itself.
      pods.Set("requiredDuringSchedulingIgnoredDuringExecution",
               Yaml::List({Near(of, Role::kWhole, keys[1])}));
    }
    if (!keys.empty() && of.service.role == Role::kCn) {
      pods.Set("preferredDuringSchedulingIgnoredDuringExecution",
               Yaml::List({Yaml::Map(
                   {{"weight", 50},
                    {"podAffinityTerm", Near(of, Role::kHn, keys[0])}})}));
    }
    if (!pods.empty()) affinity.Set("podAffinity", pods);
  }
  if (of.service.max_per_node == 1) {
    affinity.Set(
        "podAntiAffinity",
        Yaml::Map(
            {{"requiredDuringSchedulingIgnoredDuringExecution",
              Yaml::List({Yaml::Map(
                  {{"labelSelector",
                    Yaml::Map({{"matchLabels", ServiceLabels(of.service)}})},
                   {"topologyKey", kHostname}})})}}));
  }
  return affinity;
}

Yaml Spread(const ManifestOf& of) {
  Yaml spread = Yaml::List();
  const auto add = [&](absl::string_view key, int skew, bool hard) {
    Yaml constraint = Yaml::Map({{"maxSkew", skew}, {"topologyKey", key}});
    if (hard) {
      // With fewer nodes than that the least count is taken as 0; with more
      // nodes one of them has no pod. So `skew` is the most pods on a node.
      constraint.Set("minDomains", of.service.replicas + 1);
    }
    constraint.Set("whenUnsatisfiable",
                   hard ? "DoNotSchedule" : "ScheduleAnyway");
    constraint.Set("labelSelector",
                   Yaml::Map({{"matchLabels", ServiceLabels(of.service)}}));
    spread.Add(constraint);
  };
  if (of.service.max_per_node > 1) {
    add(kHostname, of.service.max_per_node, /*hard=*/true);
  }
  // Spreads the pods, so that a failing switch affects few of them.
  if (!of.deployment.tier_keys.empty()) {
    add(of.deployment.tier_keys[0], 1, /*hard=*/false);
  }
  return spread;
}

}  // namespace

Yaml PodLabels(const ManifestOf& of) {
  Yaml labels = ServiceLabels(of.service);
  labels.Set("app.kubernetes.io/name", "refract");
  if (of.options.flavour == Flavour::kKai ||
      of.options.flavour == Flavour::kGrove) {
    labels.Set("kai.scheduler/queue", of.options.queue);
  }
  return labels;
}

Yaml PodAnnotations(const ManifestOf& of) {
  Yaml annotations = Yaml::Map();
  const Demand& demand = of.service.demand;
  if (demand.mig != MigProfile::kNone) {
    annotations.Set(kGpuAnnotation, std::string(Name(demand.mig)));
  } else if (demand.gpus > 0 && demand.gpu_milli == kWholeGpu) {
    annotations.Set(kGpuAnnotation, absl::StrCat(demand.gpus));
  }
  const std::vector<std::string>& keys = of.deployment.tier_keys;
  switch (of.options.flavour) {
    case Flavour::kKueue:
      if (keys.empty()) {
        annotations.Set("kueue.x-k8s.io/podset-unconstrained-topology", "true");
      } else {
        annotations.Set("kueue.x-k8s.io/podset-preferred-topology",
                        keys[keys.size() >= 2 ? 1 : 0]);
      }
      break;
    case Flavour::kKai:
      if (demand.gpus > 0 && demand.gpu_milli < kWholeGpu &&
          demand.mig == MigProfile::kNone) {
        annotations.Set("gpu-fraction",
                        absl::StrFormat("%.3f", demand.gpu_milli / 1000.0));
      }
      break;
    case Flavour::kPlain:
    case Flavour::kGrove:
      break;
  }
  return annotations;
}

Yaml PodSpec(const ManifestOf& of) {
  Yaml spec = Yaml::Map();
  if (of.options.flavour == Flavour::kKai ||
      of.options.flavour == Flavour::kGrove) {
    spec.Set("schedulerName", "kai-scheduler");
  }
  spec.Set("automountServiceAccountToken", false);
  spec.Set("terminationGracePeriodSeconds", kGracePeriod);
  spec.Set(
      "securityContext",
      Yaml::Map({{"runAsNonRoot", true},
                 {"runAsUser", kUser},
                 {"seccompProfile", Yaml::Map({{"type", "RuntimeDefault"}})}}));
  if (!of.service.node_labels.empty()) {
    Yaml labels = Yaml::Map();
    for (const auto& [key, value] : of.service.node_labels) {
      labels.Set(key, value);
    }
    spec.Set("nodeSelector", labels);
  }
  const Yaml affinity = Affinity(of);
  if (!affinity.empty()) spec.Set("affinity", affinity);
  const Yaml spread = Spread(of);
  if (!spread.empty() && of.options.flavour != Flavour::kKueue) {
    spec.Set("topologySpreadConstraints", spread);
  }
  if (NeedsClaim(of)) {
    spec.Set("resourceClaims",
             Yaml::List({Yaml::Map(
                 {{"name", "devices"},
                  {"resourceClaimTemplateName", of.service.name}})}));
  }
  spec.Set("containers", Yaml::List({Container(of)}));
  Yaml volumes = Yaml::List(
      {Yaml::Map({{"name", "models"},
                  {"persistentVolumeClaim",
                   Yaml::Map({{"claimName",
                               absl::StrCat(of.deployment.name, "-models")},
                              {"readOnly", true}})}}),
       Yaml::Map({{"name", "tmp"}, {"emptyDir", Yaml::Map()}})});
  if (UsesNodeTls(of)) {
    volumes.Add(Yaml::Map(
        {{"name", "node-tls"},
         {"secret",
          Yaml::Map({{"secretName", of.options.node_tls_secret}})}}));
  }
  spec.Set("volumes", volumes);
  return spec;
}

}  // namespace refract::placement
