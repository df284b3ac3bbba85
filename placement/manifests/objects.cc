#include "placement/manifests/objects.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace refract::placement {
namespace {

// Percentage of the SLO's largest load that an autoscaler aims for if the
// planner names no rate, and of CPUs.
constexpr int kTargetPercent = 70;

// An autoscaler acts after a minute or two, so it must aim below the load at
// which p99 leaves the SLO.
constexpr double kMostOfLimit = 0.8;

// Requests per second of an instance that an autoscaler aims for; 0: unknown.
double TargetRate(const Service& service) {
  // The planned rate, unless the instance would be too close to its limit.
  if (service.most_requests_per_s <= 0) return service.requests_per_s;
  return std::min(service.requests_per_s,
                  kMostOfLimit * service.most_requests_per_s);
}

// A fraction of a GPU is an annotation of KAI's, not a device.
bool NeedsGpuDevice(const Demand& demand) {
  return demand.gpus > 0 &&
         (demand.gpu_milli >= 1000 || demand.mig != MigProfile::kNone);
}

Yaml Request(absl::string_view name, absl::string_view device_class, int count,
             const std::vector<std::string>& conditions) {
  Yaml exactly = Yaml::Map({{"deviceClassName", device_class},
                            {"allocationMode", "ExactCount"},
                            {"count", count}});
  if (!conditions.empty()) {
    Yaml selectors = Yaml::List();
    for (const std::string& condition : conditions) {
      selectors.Add(
          Yaml::Map({{"cel", Yaml::Map({{"expression", condition}})}}));
    }
    exactly.Set("selectors", selectors);
  }
  return Yaml::Map({{"name", name}, {"exactly", exactly}});
}

Yaml Joined(std::initializer_list<Yaml> requests, absl::string_view attribute) {
  return Yaml::Map(
      {{"requests", Yaml::List(requests)}, {"matchAttribute", attribute}});
}

// Attributes of NVIDIA's DRA driver.
std::vector<std::string> GpuConditions(const Service& service) {
  std::vector<std::string> conditions;
  if (!service.gpu_model.empty()) {
    conditions.push_back(absl::StrCat(
        "device.attributes['gpu.nvidia.com'].productName.lowerAscii()"
        ".contains('",
        absl::AsciiStrToLower(service.gpu_model), "')"));
  }
  if (service.demand.mig != MigProfile::kNone) {
    conditions.push_back(
        absl::StrCat("device.attributes['gpu.nvidia.com'].profile.startsWith('",
                     Name(service.demand.mig), ".')"));
  }
  return conditions;
}

Yaml Selected(const Service& service) {
  return Yaml::Map({{"matchLabels", ServiceLabels(service)}});
}

Yaml PodTemplate(const ManifestOf& of) {
  Yaml metadata = Yaml::Map({{"labels", PodLabels(of)}});
  const Yaml annotations = PodAnnotations(of);
  if (!annotations.empty()) metadata.Set("annotations", annotations);
  return Yaml::Map({{"metadata", metadata}, {"spec", PodSpec(of)}});
}

// A metric of each pod, as the custom metrics API serves it
// (deploy/kubernetes/prometheus-adapter.yaml). `value` in thousandths.
Yaml PodsMetric(absl::string_view name, int64_t milli) {
  return Yaml::Map(
      {{"type", "Pods"},
       {"pods",
        Yaml::Map({{"metric", Yaml::Map({{"name", name}})},
                   {"target", Yaml::Map({{"type", "AverageValue"},
                                         {"averageValue",
                                          absl::StrCat(milli, "m")}})}})}});
}

}  // namespace

Yaml ServiceLabels(const Service& service) {
  return Yaml::Map({{"app.kubernetes.io/instance", service.name},
                    {"app.kubernetes.io/part-of", service.app},
                    {"app.kubernetes.io/component",
                     service.role == Role::kHn ? "gpu-node" : "cpu-node"}});
}

Yaml AppLabels(const Service& service, Role role) {
  Yaml labels = Yaml::Map({{"app.kubernetes.io/part-of", service.app}});
  if (role != Role::kWhole) {
    labels.Set("app.kubernetes.io/component",
               role == Role::kHn ? "gpu-node" : "cpu-node");
  }
  return labels;
}

Yaml Object(absl::string_view version, absl::string_view kind,
            absl::string_view name, const Deployment& deployment,
            const ManifestOptions& options) {
  return Yaml::Map(
      {{"apiVersion", version},
       {"kind", kind},
       {"metadata",
        Yaml::Map({{"name", name},
                   {"namespace", options.name_space},
                   {"labels",
                    Yaml::Map({{"app.kubernetes.io/name", "refract"},
                               {"app.kubernetes.io/managed-by", "refract"},
                               {"refract-deployment", deployment.name}})}})}});
}

bool NeedsClaim(const ManifestOf& of) {
  const Demand& demand = of.service.demand;
  return NeedsGpuDevice(demand) || demand.nic_percent > 0;
}

Yaml ClaimTemplate(const ManifestOf& of) {
  const Demand& demand = of.service.demand;
  const bool gpu = NeedsGpuDevice(demand);
  const bool nic = demand.nic_percent > 0;
  // CPUs are claimed only without a GPU: a GPU node binds itself to its GPU.
  const bool cpus = !gpu && !of.options.cpu_class.empty();
  Yaml requests = Yaml::List();
  Yaml constraints = Yaml::List();
  if (gpu) {
    requests.Add(Request("gpu",
                         demand.mig == MigProfile::kNone ? of.options.gpu_class
                                                         : of.options.mig_class,
                         demand.gpus, GpuConditions(of.service)));
  }
  if (nic) requests.Add(Request("nic", of.options.nic_class, 1, {}));
  if (cpus) {
    // Whole cores; DRA counts devices.
    requests.Add(Request("cpu", of.options.cpu_class,
                         static_cast<int>((demand.cpu_milli + 999) / 1000),
                         {}));
  }
  // Constraints make the scheduler choose devices that are near each other: GPU
  // and NIC of one PCIe root, or NIC and CPUs of one NUMA node.
  if (gpu && nic) {
    constraints.Add(Joined({"gpu", "nic"}, "resource.kubernetes.io/pcieRoot"));
  } else if (nic && cpus) {
    constraints.Add(Joined({"nic", "cpu"}, "resource.kubernetes.io/numaNode"));
  } else if (nic) {
    // Holds for any NIC that has a NUMA node: the CN binds its memory and its
    // threads to it.
    constraints.Add(Joined({"nic"}, "resource.kubernetes.io/numaNode"));
  }
  Yaml devices = Yaml::Map({{"requests", requests}});
  if (!constraints.empty()) devices.Set("constraints", constraints);
  Yaml claim = Object("resource.k8s.io/v1", "ResourceClaimTemplate",
                      of.service.name, of.deployment, of.options);
  claim.Set("spec", Yaml::Map({{"spec", Yaml::Map({{"devices", devices}})}}));
  return claim;
}

Yaml Workload(const ManifestOf& of) {
  Yaml workload = Object("apps/v1", of.is_hn() ? "StatefulSet" : "Deployment",
                         of.service.name, of.deployment, of.options);
  if (of.options.flavour == Flavour::kKueue) {
    workload["metadata"]["labels"].Set("kueue.x-k8s.io/queue-name",
                                       of.options.queue);
  }
  if (of.options.flavour == Flavour::kKai && !of.deployment.tier_keys.empty()) {
    const std::vector<std::string>& keys = of.deployment.tier_keys;
    workload["metadata"].Set(
        "annotations",
        Yaml::Map({{"kai.scheduler/topology", of.options.topology},
                   {"kai.scheduler/topology-preferred-placement", keys[0]}}));
  }
  Yaml spec = Yaml::Map();
  // An autoscaler changes the count; applying the manifest again must not set
  // it back.
  if (!of.autoscaled()) spec.Set("replicas", of.service.replicas);
  spec.Set("selector", Selected(of.service));
  if (of.is_hn()) {
    spec.Set("serviceName", of.service.name);
    // HNs do not depend on each other's start.
    spec.Set("podManagementPolicy", "Parallel");
  } else {
    spec.Set(
        "strategy",
        Yaml::Map({{"type", "RollingUpdate"},
                   {"rollingUpdate",
                    Yaml::Map({{"maxSurge", 1}, {"maxUnavailable", 1}})}}));
  }
  spec.Set("template", PodTemplate(of));
  workload.Set("spec", spec);
  return workload;
}

Yaml ServiceObject(const ManifestOf& of) {
  Yaml service =
      Object("v1", "Service", of.service.name, of.deployment, of.options);
  const auto port = [](absl::string_view name, int number) {
    return Yaml::Map({{"name", name}, {"port", number}, {"targetPort", name}});
  };
  Yaml spec = Yaml::Map();
  if (of.is_hn()) {
    // Headless: a DNS record per pod. Pods that are not ready have none, so
    // CPU nodes drain them.
    spec.Set("clusterIP", "None");
    spec.Set("ports", Yaml::List({port("refract", of.deployment.hn_port)}));
  } else {
    Yaml grpc = port("grpc", of.deployment.grpc_port);
    grpc.Set("appProtocol", "kubernetes.io/h2c");
    spec.Set("ports", Yaml::List({grpc}));
  }
  spec.Set("selector", ServiceLabels(of.service));
  service.Set("spec", spec);
  return service;
}

Yaml DisruptionBudget(const ManifestOf& of) {
  Yaml budget = Object("policy/v1", "PodDisruptionBudget", of.service.name,
                       of.deployment, of.options);
  budget.Set(
      "spec",
      Yaml::Map({{"maxUnavailable", std::max(1, of.service.replicas / 10)},
                 {"selector", Selected(of.service)},
                 {"unhealthyPodEvictionPolicy", "AlwaysAllow"}}));
  return budget;
}

Yaml ScaleMetrics(const ManifestOf& of) {
  Yaml metrics = Yaml::List();
  if (const double rate = TargetRate(of.service); rate > 0) {
    metrics.Add(PodsMetric(of.is_hn() ? "refract_hn_requests_per_second"
                                      : "refract_cn_requests_per_second",
                           std::max<int64_t>(1, std::llround(rate * 1000))));
  } else if (of.is_hn()) {
    // No planned rate: kTargetPercent of the instances of an HN should be busy.
    // 10 × percent are thousandths of an instance.
    metrics.Add(PodsMetric("refract_hn_busy_instances",
                           int64_t{10} * kTargetPercent * of.service.parallel));
  }
  if (!of.is_hn()) {
    metrics.Add(
        Yaml::Map({{"type", "Resource"},
                   {"resource",
                    Yaml::Map({{"name", "cpu"},
                               {"target", Yaml::Map({{"type", "Utilization"},
                                                     {"averageUtilization",
                                                      kTargetPercent}})}})}}));
  }
  return metrics;
}

Yaml Autoscaler(const ManifestOf& of) {
  Yaml scaler = Object("autoscaling/v2", "HorizontalPodAutoscaler",
                       of.service.name, of.deployment, of.options);
  scaler.Set(
      "spec",
      Yaml::Map(
          {{"scaleTargetRef",
            Yaml::Map({{"apiVersion", "apps/v1"},
                       {"kind", of.is_hn() ? "StatefulSet" : "Deployment"},
                       {"name", of.service.name}})},
           {"minReplicas", of.service.least_replicas},
           {"maxReplicas", of.service.replicas},
           {"metrics", ScaleMetrics(of)},
           {"behavior",
            Yaml::Map({{"scaleDown",
                        Yaml::Map({{"stabilizationWindowSeconds", 300}})}})}}));
  return scaler;
}

Yaml TrafficPolicy(const ManifestOf& of) {
  const auto port = [](absl::string_view name) {
    return Yaml::List({Yaml::Map({{"protocol", "TCP"}, {"port", name}})});
  };
  Yaml ingress = Yaml::List();
  if (of.is_hn()) {
    // HNs answer CNs of their own app alone; clients may reach CNs from
    // anywhere.
    const Yaml cns = Yaml::Map(
        {{"podSelector",
          Yaml::Map({{"matchLabels", AppLabels(of.service, Role::kCn)}})}});
    ingress.Add(
        Yaml::Map({{"from", Yaml::List({cns})}, {"ports", port("refract")}}));
  } else {
    ingress.Add(Yaml::Map({{"ports", port("grpc")}}));
  }
  const int metrics_port = of.is_hn() ? of.deployment.hn_metrics_port
                                      : of.deployment.cn_metrics_port;
  if (metrics_port > 0) {
    const Yaml prometheus = Yaml::Map(
        {{"namespaceSelector",
          Yaml::Map({{"matchLabels",
                      Yaml::Map({{"kubernetes.io/metadata.name",
                                  of.options.monitoring_namespace}})}})}});
    ingress.Add(Yaml::Map(
        {{"from", Yaml::List({prometheus})}, {"ports", port("metrics")}}));
  }
  Yaml policy = Object("networking.k8s.io/v1", "NetworkPolicy", of.service.name,
                       of.deployment, of.options);
  policy.Set("spec", Yaml::Map({{"podSelector", Selected(of.service)},
                                {"policyTypes", Yaml::List({"Ingress"})},
                                {"ingress", ingress}}));
  return policy;
}

}  // namespace refract::placement
