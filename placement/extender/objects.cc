#include "placement/extender/objects.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "placement/fabric/kubernetes_node.h"
#include "placement/planner/deployment.h"
#include "placement/topology/json_text.h"

namespace refract::placement {
namespace {

using JsonValue = nlohmann::json;
using Quantities = std::map<std::string, double>;

constexpr absl::string_view kGpu = "nvidia.com/gpu";
constexpr absl::string_view kMig = "nvidia.com/mig-";
constexpr double kMib = 1 << 20;

absl::StatusOr<Quantities> AmountsOf(const JsonValue& resources) {
  Quantities amounts;
  if (!resources.is_object()) return amounts;
  for (const auto& [name, value] : resources.items()) {
    // Quantities are texts ("500m"); YAML and Go may also write plain numbers.
    const auto amount =
        value.is_string()   ? ParseQuantity(value.get<std::string>())
        : value.is_number() ? ParseQuantity(base::FormatJson(value))
                            : std::nullopt;
    if (!amount.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          base::Shorten(name), ": '", base::Shorten(base::FormatJson(value)),
          "' is no quantity"));
    }
    amounts[name] = *amount;
  }
  return amounts;
}

void AddTo(const Quantities& more, Quantities& sum) {
  for (const auto& [name, amount] : more) sum[name] += amount;
}

// The largest of both for each name.
void RaiseTo(const Quantities& least, Quantities& amounts) {
  for (const auto& [name, amount] : least) {
    amounts[name] = std::max(amounts[name], amount);
  }
}

// The requests of a pod as kube-scheduler counts them. Init containers start in
// their order; with restartPolicy Always they go on running, so each later init
// container runs beside them, and the containers run beside all of them. The
// pod's own requests for CPU and memory take the place of the sum. The overhead
// of the pod's runtime class comes on top.
absl::StatusOr<Quantities> RequestsOf(const JsonValue& spec) {
  Quantities sum;
  Quantities staying;   // init containers that go on running
  Quantities starting;  // the most while init containers start
  const auto requests = [](const JsonValue& owner,
                           const auto&... where) -> absl::StatusOr<Quantities> {
    absl::StatusOr<Quantities> asked =
        AmountsOf(JsonMember(JsonMember(owner, "resources"), "requests"));
    if (asked.ok()) return asked;
    return base::Annotate(
        asked.status(), absl::StrCat("spec.", where..., "resources.requests"));
  };
  const JsonValue& containers = JsonMember(spec, "containers");
  for (size_t i = 0; containers.is_array() && i < containers.size(); ++i) {
    REFRACT_ASSIGN_OR_RETURN(const Quantities asked,
                             requests(containers[i], "containers[", i, "]."));
    AddTo(asked, sum);
  }
  const JsonValue& inits = JsonMember(spec, "initContainers");
  for (size_t i = 0; inits.is_array() && i < inits.size(); ++i) {
    REFRACT_ASSIGN_OR_RETURN(Quantities asked,
                             requests(inits[i], "initContainers[", i, "]."));
    if (JsonText(inits[i], "restartPolicy") == "Always") {
      AddTo(asked, staying);
      RaiseTo(staying, starting);
    } else {
      AddTo(staying, asked);
      RaiseTo(asked, starting);
    }
  }
  AddTo(staying, sum);
  RaiseTo(starting, sum);
  REFRACT_ASSIGN_OR_RETURN(const Quantities whole, requests(spec));
  for (const char* name : {"cpu", "memory"}) {
    if (const auto found = whole.find(name); found != whole.end()) {
      sum[name] = found->second;
    }
  }
  absl::StatusOr<Quantities> overhead = AmountsOf(JsonMember(spec, "overhead"));
  if (!overhead.ok()) return base::Annotate(overhead.status(), "spec.overhead");
  AddTo(*overhead, sum);
  return sum;
}

int64_t RoundedUp(double value) {
  // The bound is more than any check accepts; sums of it do not overflow.
  return static_cast<int64_t>(std::ceil(std::min(value, 1e15)));
}

absl::Status SetMig(absl::string_view name, Demand& demand) {
  const auto profile = MigProfileFromName(name);
  if (!profile.has_value() || demand.gpus != 0) {
    return absl::InvalidArgumentError(
        profile.has_value()
            ? "a MIG slice and other GPUs in one pod"
            : absl::StrCat("'", base::Shorten(name), "' is no MIG profile"));
  }
  demand.mig = *profile;
  demand.gpus = 1;
  demand.gpu_milli = MigGpuMilli(*profile);
  return absl::OkStatus();
}

absl::StatusOr<Demand> DemandOf(const JsonValue& pod) {
  REFRACT_ASSIGN_OR_RETURN(Quantities asked,
                           RequestsOf(JsonMember(pod, "spec")));
  Demand demand;
  demand.cpu_milli = RoundedUp(1000 * asked["cpu"]);
  demand.memory_mib = RoundedUp(asked["memory"] / kMib);
  demand.disk_mib = RoundedUp(asked["ephemeral-storage"] / kMib);
  const auto take_whole = [&](double gpus) {
    demand.gpus = static_cast<int32_t>(std::min(std::ceil(gpus), 1e6));
    demand.gpu_milli = kWholeGpu;
  };
  // Devices of the device plugin first. The annotation names devices of a DRA
  // claim, which requests do not show.
  if (asked[std::string(kGpu)] > 0) take_whole(asked[std::string(kGpu)]);
  for (const auto& [name, amount] : asked) {
    absl::string_view profile = name;
    // "nvidia.com/mig-2g.20gb": the profile is part of the resource's name.
    if (!absl::ConsumePrefix(&profile, kMig) || amount == 0) continue;
    if (amount != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": more than one slice in one pod"));
    }
    REFRACT_RETURN_IF_ERROR(base::Annotate(SetMig(profile, demand), name));
  }
  const std::string claimed = JsonText(
      JsonMember(JsonMember(pod, "metadata"), "annotations"), kGpuAnnotation);
  int gpus = 0;
  if (demand.gpus == 0 && !claimed.empty()) {
    if (absl::SimpleAtoi(claimed, &gpus) && gpus >= 1) {
      take_whole(gpus);
    } else {
      REFRACT_RETURN_IF_ERROR(base::Annotate(
          SetMig(claimed, demand),
          absl::StrCat("metadata.annotations.", kGpuAnnotation)));
    }
  }
  REFRACT_RETURN_IF_ERROR(Check(demand));
  return demand;
}

// The items of a list, each as `read` reads it.
template <typename Read>
auto ItemsOf(const JsonValue& list, const Read& read) -> absl::StatusOr<
    std::vector<std::decay_t<decltype(*read(std::declval<JsonValue>()))>>> {
  const JsonValue& items = JsonMember(list, "items");
  std::vector<std::decay_t<decltype(*read(items))>> objects;
  // Go leaves out an empty list.
  if (items.is_null() && list.is_object()) return objects;
  if (!items.is_array()) {
    return absl::InvalidArgumentError("items: is no list");
  }
  for (size_t i = 0; i < items.size(); ++i) {
    auto object = read(items[i]);
    if (!object.ok()) {
      return base::Annotate(object.status(), absl::StrCat("items[", i, "]"));
    }
    objects.push_back(*std::move(object));
  }
  return objects;
}

// Without `demand`.
absl::StatusOr<PodObject> NamedPodFromJson(const JsonValue& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("is no object");
  const JsonValue& metadata = JsonMember(json, "metadata");
  PodObject pod;
  pod.name = JsonText(metadata, "name");
  pod.name_space = JsonText(metadata, "namespace");
  pod.uid = JsonText(metadata, "uid");
  if (pod.name.empty()) {
    return absl::InvalidArgumentError("metadata.name: is missing");
  }
  pod.node = JsonText(JsonMember(json, "spec"), "nodeName");
  const std::string phase = JsonText(JsonMember(json, "status"), "phase");
  // An ended pod stays in lists and takes no resources.
  pod.ended = phase == "Succeeded" || phase == "Failed";
  const JsonValue& labels = JsonMember(metadata, "labels");
  const std::string app = JsonText(labels, "app.kubernetes.io/part-of");
  // Equal labels in two namespaces are two apps.
  if (!app.empty()) pod.app = absl::StrCat(pod.name_space, "/", app);
  const std::string role = JsonText(labels, "app.kubernetes.io/component");
  pod.role = role == "gpu-node"   ? Role::kHn
             : role == "cpu-node" ? Role::kCn
                                  : Role::kWhole;
  return pod;
}

// Items of lists. An error of one item would fail every request.
absl::StatusOr<PodObject> ListedPod(const JsonValue& json) {
  absl::StatusOr<PodObject> pod = PodFromJson(json);
  if (pod.ok()) return pod;
  std::string refusal(pod.status().message());
  pod = NamedPodFromJson(json);
  if (pod.ok()) pod->refusal = std::move(refusal);
  return pod;
}

absl::StatusOr<NodeObject> ListedNode(const JsonValue& json) {
  absl::StatusOr<NodeObject> node = NodeFromJson(json);
  std::string name = JsonText(JsonMember(json, "metadata"), "name");
  if (node.ok() || name.empty()) return node;
  NodeObject refused;
  refused.node.name = std::move(name);
  refused.refusal = std::string(node.status().message());
  return refused;
}

}  // namespace

std::optional<double> ParseQuantity(absl::string_view text) {
  static constexpr std::pair<absl::string_view, double> kSuffixes[] = {
      {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40},
      {"Pi", 0x1p50}, {"Ei", 0x1p60}, {"n", 1e-9},    {"u", 1e-6},
      {"m", 1e-3},    {"k", 1e3},     {"M", 1e6},     {"G", 1e9},
      {"T", 1e12},    {"P", 1e15},    {"E", 1e18}};
  double unit = 1;
  for (const auto& [suffix, factor] : kSuffixes) {
    if (absl::ConsumeSuffix(&text, suffix)) {
      unit = factor;
      break;
    }
  }
  double number = 0;
  // SimpleAtod() takes blanks, "inf" and "nan", too.
  if (text.find_first_not_of("0123456789.+eE-") != absl::string_view::npos ||
      !absl::SimpleAtod(text, &number) || !std::isfinite(number) ||
      number < 0) {
    return std::nullopt;
  }
  return number * unit;
}

absl::StatusOr<PodObject> PodFromJson(const JsonValue& json) {
  REFRACT_ASSIGN_OR_RETURN(PodObject pod, NamedPodFromJson(json));
  absl::StatusOr<Demand> demand = DemandOf(json);
  if (!demand.ok()) {
    return base::Annotate(demand.status(),
                          absl::StrCat("pod ", base::Shorten(pod.name)));
  }
  pod.demand = *demand;
  return pod;
}

absl::StatusOr<NodeObject> NodeFromJson(const JsonValue& json) {
  REFRACT_ASSIGN_OR_RETURN(const FabricHost host, HostFromNode(json));
  absl::StatusOr<Quantities> amounts =
      AmountsOf(JsonMember(JsonMember(json, "status"), "allocatable"));
  if (!amounts.ok()) {
    return base::Annotate(
        amounts.status(),
        absl::StrCat("node ", base::Shorten(host.name), ": allocatable"));
  }
  NodeObject object;
  object.leaf = host.leaf;
  object.pod = host.pod;
  Node& node = object.node;
  node.name = host.name;
  // Rounded down: a node never has more than it says.
  const auto amount = [&](absl::string_view name, double unit) {
    return static_cast<int64_t>(
        std::min((*amounts)[std::string(name)] * unit, 1e15));
  };
  node.cpu_milli = amount("cpu", 1000);
  node.memory_mib = amount("memory", 1 / kMib);
  if (amounts->contains("ephemeral-storage")) {
    node.disk_mib = amount("ephemeral-storage", 1 / kMib);
  }
  for (const auto& [name, value, most] :
       {std::tuple("cpu", node.cpu_milli, kMostCpuMilli),
        std::tuple("memory", node.memory_mib, kMostMib),
        std::tuple("ephemeral-storage", node.disk_mib, kMostMib)}) {
    if (value > most && value != kUnlimited) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", base::Shorten(host.name),
                       ": allocatable: ", name, ": more than a machine has"));
    }
  }
  const JsonValue& labels = JsonMember(JsonMember(json, "metadata"), "labels");
  // Allocatable GPUs are those of the device plugin that are not divided; the
  // label counts all, also those of DRA drivers.
  int64_t count = 0;
  if (!absl::SimpleAtoi(JsonText(labels, "nvidia.com/gpu.count"), &count)) {
    count = 0;
  }
  const int64_t gpus = std::max(amount(kGpu, 1), count);
  object.judged = gpus >= 0 && gpus <= kMaxGpus;
  node.gpus = object.judged ? static_cast<int>(gpus) : 0;
  if (node.gpus > 0) {
    const std::string product = JsonText(labels, "nvidia.com/gpu.product");
    absl::string_view model = product;
    // The label has "NVIDIA-H100-80GB-HBM3"; IsMigCapable() knows "H100".
    absl::ConsumePrefix(&model, "NVIDIA-");
    node.mig_capable = IsMigCapable(model);
  }
  // Kubernetes does not show sockets: all devices count as on one socket.
  AttachEvenly(node, 1);
  return object;
}

absl::StatusOr<std::vector<NodeObject>> NodesFromJson(const JsonValue& list) {
  return ItemsOf(list, ListedNode);
}

absl::StatusOr<PodPage> PodsFromText(absl::string_view text) {
  const JsonValue json =
      JsonValue::parse(text, nullptr, /*allow_exceptions=*/false);
  PodPage page;
  REFRACT_ASSIGN_OR_RETURN(page.pods, ItemsOf(json, ListedPod));
  page.next = JsonText(JsonMember(json, "metadata"), "continue");
  return page;
}

absl::StatusOr<NodePage> NodesFromText(absl::string_view text) {
  const JsonValue json =
      JsonValue::parse(text, nullptr, /*allow_exceptions=*/false);
  NodePage page;
  REFRACT_ASSIGN_OR_RETURN(page.nodes, NodesFromJson(json));
  page.next = JsonText(JsonMember(json, "metadata"), "continue");
  return page;
}

}  // namespace refract::placement
