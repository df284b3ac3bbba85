#include "placement/manifests/manifests.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "placement/manifests/objects.h"
#include "placement/manifests/yaml.h"

namespace refract::placement {
namespace {

constexpr std::array<std::pair<Flavour, absl::string_view>, 4> kFlavours = {{
    {Flavour::kPlain, "plain"},
    {Flavour::kKueue, "kueue"},
    {Flavour::kKai, "kai"},
    {Flavour::kGrove, "grove"},
}};

// Names of Grove's domains, nearest first, for the tiers.
constexpr std::array<absl::string_view, 3> kDomains = {"rack", "block", "zone"};

// Comment at the top of each file, for its reader.
constexpr char kPlainNote[] =
    "Only generally available fields: Kubernetes 1.35 (resource.k8s.io/v1, "
    "policy/v1, autoscaling/v2, networking.k8s.io/v1).";
constexpr char kKueueNote[] =
    "For Kueue: the label kueue.x-k8s.io/queue-name, and the annotation "
    "kueue.x-k8s.io/podset-preferred-topology of Topology Aware Scheduling, "
    "which is beta and on by default since Kueue 0.14. Pod affinity is left "
    "out, because Kueue does not consider it. Devices of claims are not "
    "counted in Kueue's topology. Otherwise fields of Kubernetes 1.35 that are "
    "generally available.";
constexpr char kKaiNote[] =
    "For the KAI scheduler: schedulerName, the label kai.scheduler/queue and "
    "the annotations kai.scheduler/topology. Topology is "
    "kai.scheduler/v1alpha1, an alpha API (KAI 0.12 on; checked with 0.17). "
    "Otherwise fields of Kubernetes 1.35 that are generally available.";
constexpr char kGroveNote[] =
    "For Grove: PodCliqueSet and ClusterTopologyBinding are grove.io/v1alpha1, "
    "an alpha API that may change with Grove. Topology constraints need "
    "Grove's topologyAwareScheduling and the KAI scheduler, and cannot be "
    "changed once the PodCliqueSet exists. Otherwise fields of Kubernetes 1.35 "
    "that are generally available.";

absl::string_view NoteOf(Flavour flavour) {
  switch (flavour) {
    case Flavour::kPlain:
      return kPlainNote;
    case Flavour::kKueue:
      return kKueueNote;
    case Flavour::kKai:
      return kKaiNote;
    case Flavour::kGrove:
      return kGroveNote;
  }
  return "";
}

// A comment of lines that fit 80 columns.
std::string Comment(absl::string_view text) {
  constexpr size_t kWidth = 78;
  std::string comment = "#";
  size_t width = 1;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (width + 1 + word.size() > kWidth) {
      comment.append("\n#");
      width = 1;
    }
    absl::StrAppend(&comment, " ", word);
    width += 1 + word.size();
  }
  comment.append("\n");
  return comment;
}

std::string Documents(absl::string_view comments,
                      const std::vector<Yaml>& objects) {
  std::string text(comments);
  for (const Yaml& object : objects) {
    absl::StrAppend(&text, "---\n", object.Text());
  }
  return text;
}

// The comment above the objects of a service: meaning of the plan's numbers.
std::string ServiceNote(const ManifestOf& of) {
  const Service& service = of.service;
  std::string note = absl::StrCat(Name(service.role), " of app '", service.app,
                                  "': ", service.least_replicas, " to ",
                                  service.replicas, " instances");
  if (service.requests_per_s > 0) {
    absl::StrAppendFormat(&note, ", %.6g requests/s each at the planned load",
                          service.requests_per_s);
  }
  if (service.most_requests_per_s > 0) {
    absl::StrAppendFormat(&note, ", %.6g where p99 leaves %.6g ms",
                          service.most_requests_per_s,
                          of.deployment.slo_p99_ms);
  }
  note += ".";
  if (service.demand.nic_percent > 0) {
    absl::StrAppendFormat(
        &note,
        " The NIC is a device of class %s that gives %d %% of %.6g Gb/s, a "
        "virtual function for instance: shares of one device "
        "(DRAConsumableCapacity) are not generally available.",
        of.options.nic_class, service.demand.nic_percent, service.nic_gbps);
  }
  return Comment(note);
}

absl::Status Wrong(const Service& service, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("service '", service.name, "': ", what));
}

// Names the option of `refract plan`, without its dashes.
absl::Status CheckNames(const ManifestOptions& options) {
  for (const auto& [option, name] :
       {std::pair("namespace", &options.name_space),
        std::pair("monitoring-namespace", &options.monitoring_namespace)}) {
    if (!IsDnsLabel(*name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(option, ": '", *name,
                       "' is no DNS label (a-z, 0-9, '-', 63 at the most)"));
    }
  }
  for (const auto& [option, name] :
       {std::pair("gpu-class", &options.gpu_class),
        std::pair("mig-class", &options.mig_class),
        std::pair("nic-class", &options.nic_class),
        std::pair("cpu-class", &options.cpu_class),
        std::pair("queue", &options.queue),
        std::pair("topology-name", &options.topology),
        std::pair("node-tls-secret", &options.node_tls_secret)}) {
    // Empty: there is no such object.
    const bool optional =
        name == &options.cpu_class || name == &options.node_tls_secret;
    if (!IsObjectName(*name) && !(optional && name->empty())) {
      return absl::InvalidArgumentError(
          absl::StrCat(option, ": '", *name,
                       "' is no name of a Kubernetes object (DNS labels joined "
                       "by dots, 253 characters at the most)"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWords(const Deployment& deployment,
                        const ManifestOptions& options) {
  if (deployment.image.empty()) {
    return absl::InvalidArgumentError("image: is not given");
  }
  if (deployment.model_repository.empty() ||
      deployment.model_repository.front() != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("model_repository: '", deployment.model_repository,
                     "' is no absolute path inside the containers"));
  }
  if (deployment.hn_port == 0 || deployment.grpc_port == 0) {
    return absl::InvalidArgumentError(
        "hn_port and grpc_port: must be given, other pods need them");
  }
  for (const Service& service : deployment.services) {
    const Demand& demand = service.demand;
    if (service.role == Role::kWhole && demand.gpus > 0) {
      return Wrong(service, "role: whole models on GPUs have no daemon");
    }
    // Only KAI shares a GPU by fractions (annotation gpu-fraction).
    const bool fraction = demand.gpus > 0 && demand.gpu_milli < 1000 &&
                          demand.mig == MigProfile::kNone;
    if (fraction && options.flavour != Flavour::kKai) {
      return Wrong(service,
                   absl::StrCat("demand.gpu_milli: ", demand.gpu_milli,
                                " of a GPU works only with flavour kai; give "
                                "a MIG slice"));
    }
    // The name becomes part of a CEL expression (GpuConditions).
    const bool plain = std::all_of(
        service.gpu_model.begin(), service.gpu_model.end(), [](char c) {
          return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == ' ' ||
                 c == '.';
        });
    if (!plain) {
      return Wrong(service, absl::StrCat("gpu_model: '", service.gpu_model,
                                         "' is no product name"));
    }
  }
  return absl::OkStatus();
}

// An object of the cluster, without a namespace.
Yaml ClusterObject(absl::string_view version, absl::string_view kind,
                   absl::string_view name) {
  return Yaml::Map({{"apiVersion", version},
                    {"kind", kind},
                    {"metadata", Yaml::Map({{"name", name}})}});
}

// Widest domain first, down to the host.
Yaml Levels(const Deployment& deployment) {
  Yaml levels = Yaml::List();
  for (size_t i = deployment.tier_keys.size(); i > 0; --i) {
    levels.Add(Yaml::Map({{"nodeLabel", deployment.tier_keys[i - 1]}}));
  }
  levels.Add(Yaml::Map({{"nodeLabel", "kubernetes.io/hostname"}}));
  return levels;
}

// As Levels(), for Grove: each level has the name of a domain.
Yaml DomainLevels(const Deployment& deployment) {
  Yaml levels = Yaml::List();
  for (size_t i = std::min(deployment.tier_keys.size(), kDomains.size()); i > 0;
       --i) {
    levels.Add(Yaml::Map(
        {{"domain", kDomains[i - 1]}, {"key", deployment.tier_keys[i - 1]}}));
  }
  levels.Add(
      Yaml::Map({{"domain", "host"}, {"key", "kubernetes.io/hostname"}}));
  return levels;
}

// Objects that tell the scheduler the fabric, once per cluster.
std::optional<ManifestFile> ClusterFile(const Deployment& deployment,
                                        const ManifestOptions& options) {
  if (deployment.tier_keys.empty()) return std::nullopt;
  Yaml object = Yaml::Map();
  switch (options.flavour) {
    case Flavour::kPlain:
      return std::nullopt;
    case Flavour::kKueue:
      object =
          ClusterObject("kueue.x-k8s.io/v1beta2", "Topology", options.topology);
      object.Set("spec", Yaml::Map({{"levels", Levels(deployment)}}));
      break;
    case Flavour::kKai:
      object = ClusterObject("kai.scheduler/v1alpha1", "Topology",
                             options.topology);
      object.Set("spec", Yaml::Map({{"levels", Levels(deployment)}}));
      break;
    case Flavour::kGrove:
      object = ClusterObject("grove.io/v1alpha1", "ClusterTopologyBinding",
                             options.topology);
      object.Set("spec", Yaml::Map({{"levels", DomainLevels(deployment)}}));
      break;
  }
  std::string comment = absl::StrCat(kManifestMark, ".\n");
  comment += Comment(
      "The fabric according to its node labels. One per cluster: omit this "
      "file if the cluster's administrator has created such an object.");
  if (options.flavour == Flavour::kKueue) {
    comment += Comment(
        "A ResourceFlavor names it in spec.topologyName (Kueue 0.15 on: "
        "v1beta2; before: v1beta1 or v1alpha1).");
  }
  return ManifestFile{"00-cluster.yaml", Documents(comment, {object})};
}

// One PodCliqueSet per app, with a clique per service: placed together.
Yaml CliqueSet(const Deployment& deployment, const ManifestOptions& options,
               absl::string_view app) {
  Yaml cliques = Yaml::List();
  for (const Service& service : deployment.services) {
    if (service.app != app) continue;
    const ManifestOf of{deployment, service, options};
    Yaml spec = Yaml::Map({{"roleName", service.name},
                           {"replicas", of.autoscaled() ? service.least_replicas
                                                        : service.replicas},
                           {"minAvailable", 1},
                           {"podSpec", PodSpec(of)}});
    if (of.autoscaled()) {
      spec.Set("autoScalingConfig",
               Yaml::Map({{"minReplicas", service.least_replicas},
                          {"maxReplicas", service.replicas},
                          {"metrics", ScaleMetrics(of)}}));
    }
    Yaml clique =
        Yaml::Map({{"name", service.name}, {"labels", PodLabels(of)}});
    clique.Set("spec", spec);
    cliques.Add(clique);
  }
  Yaml body = Yaml::Map();
  const size_t tiers = deployment.tier_keys.size();
  if (tiers > 0) {
    // As the plain flavour: one pod of the fabric, or else a rack if possible.
    body.Set(
        "topologyConstraint",
        Yaml::Map(
            {{"topologyName", options.topology},
             {"pack", tiers >= 2 ? Yaml::Map({{"required", kDomains[1]}})
                                 : Yaml::Map({{"preferred", kDomains[0]}})}}));
  }
  body.Set("cliqueStartupType", "CliqueStartupTypeAnyOrder");
  body.Set("cliques", cliques);
  Yaml set =
      Object("grove.io/v1alpha1", "PodCliqueSet", app, deployment, options);
  set.Set("spec", Yaml::Map({{"replicas", 1}, {"template", body}}));
  return set;
}

}  // namespace

absl::string_view Name(Flavour flavour) {
  for (const auto& [known, name] : kFlavours) {
    if (known == flavour) return name;
  }
  return "";
}

std::optional<Flavour> FlavourFromName(absl::string_view name) {
  for (const auto& [flavour, known] : kFlavours) {
    if (known == name) return flavour;
  }
  return std::nullopt;
}

std::optional<std::vector<std::string>> TierKeysOf(absl::string_view labels) {
  if (labels == "topograph") {
    return {{"fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1",
             "topology.kubernetes.io/zone"}};
  }
  if (labels == "topograph-legacy") {
    return {{"network.topology.nvidia.com/leaf",
             "network.topology.nvidia.com/spine",
             "topology.kubernetes.io/zone"}};
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<ManifestFile>> WriteManifests(
    const Deployment& deployment, const ManifestOptions& options) {
  REFRACT_RETURN_IF_ERROR(Check(deployment));
  REFRACT_RETURN_IF_ERROR(CheckNames(options));
  REFRACT_RETURN_IF_ERROR(CheckWords(deployment, options));
  std::vector<ManifestFile> files;
  // File names begin with numbers: kubectl applies the fabric first, then HNs,
  // CNs, and Grove's sets.
  if (auto cluster = ClusterFile(deployment, options)) {
    files.push_back(*std::move(cluster));
  }
  const std::string head = absl::StrCat(
      kManifestMark, ", flavour ", Name(options.flavour), ": deployment '",
      deployment.name, "'.\n", Comment(NoteOf(options.flavour)));
  std::vector<std::string> apps;
  for (const Service& service : deployment.services) {
    const ManifestOf of{deployment, service, options};
    std::vector<Yaml> objects;
    // Claims before the pods that name them.
    if (NeedsClaim(of)) objects.push_back(ClaimTemplate(of));
    objects.push_back(ServiceObject(of));
    objects.push_back(DisruptionBudget(of));
    objects.push_back(TrafficPolicy(of));
    if (options.flavour != Flavour::kGrove) {
      objects.push_back(Workload(of));
      if (of.autoscaled()) objects.push_back(Autoscaler(of));
    } else if (std::find(apps.begin(), apps.end(), service.app) == apps.end()) {
      apps.push_back(service.app);
    }
    // GPU nodes first: CPU nodes are ready when they find some.
    files.push_back(
        {absl::StrCat(of.is_hn() ? "10-" : "20-", service.name, ".yaml"),
         Documents(absl::StrCat(head, ServiceNote(of)), objects)});
  }
  for (const std::string& app : apps) {
    files.push_back({absl::StrCat("30-", app, ".yaml"),
                     Documents(head, {CliqueSet(deployment, options, app)})});
  }
  std::stable_sort(files.begin(), files.end(),
                   [](const ManifestFile& a, const ManifestFile& b) {
                     return a.name < b.name;
                   });
  return files;
}

}  // namespace refract::placement
