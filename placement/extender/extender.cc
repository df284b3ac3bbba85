#include "placement/extender/extender.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/shorten.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "placement/cluster/usage.h"
#include "placement/fragmentation/fragmentation.h"
#include "placement/planner/deployment.h"

namespace refract::placement {
namespace {

using JsonValue = nlohmann::json;
using Output = nlohmann::ordered_json;

// Pods whose demand is kept between Filter() and Bind(). kube-scheduler binds a
// pod within seconds of asking, or not at all.
constexpr size_t kMostAsked = 4096;
// A bound pod that no list of pods has shown for this long has been deleted.
constexpr absl::Duration kUnseen = absl::Seconds(60);

// Position of `name` in `names`; a new name is added.
int IndexIn(const std::string& name,
            absl::flat_hash_map<std::string, int>& names) {
  return names.try_emplace(name, static_cast<int>(names.size())).first->second;
}

// Nodes and pods in the placer's form, built anew for every request: the placer
// works with indices, Kubernetes with names.
class Picture {
 public:
  static absl::StatusOr<std::unique_ptr<Picture>> Make(
      absl::Span<const NodeObject> nodes, absl::Span<const PodObject> pods,
      const PodObject& asked, const PlacerOptions& options) {
    auto picture = std::unique_ptr<Picture>(new Picture());
    REFRACT_RETURN_IF_ERROR(picture->AddNodes(nodes));
    picture->AddPods(pods, asked, options);
    return picture;
  }

  const placement::Cluster& cluster() const { return cluster_; }
  const State& state() const { return *state_; }
  const FragmentMeter& meter() const { return *meter_; }
  int Find(const std::string& node) const {
    const auto found = node_of_.find(node);
    return found == node_of_.end() ? -1 : found->second;
  }
  // Why `node` takes no pod; empty: it may take some.
  const std::string& Refusal(int node) const { return refusals_[node]; }
  Instance InstanceOf(const PodObject& pod) const {
    Instance instance{.name = pod.name, .role = pod.role, .demand = pod.demand};
    const auto app = apps_.find(pod.app);
    if (!pod.app.empty() && app != apps_.end()) instance.app = app->second;
    return instance;
  }

 private:
  absl::Status AddNodes(absl::Span<const NodeObject> nodes) {
    absl::flat_hash_map<std::string, int> leaves;
    absl::flat_hash_map<std::string, int> pods;
    for (const NodeObject& object : nodes) {
      Node node = object.node;
      // Nodes without labels share one nameless leaf. A leaf has one pod.
      const int pod = IndexIn(object.pod, pods);
      node.leaf = IndexIn(absl::StrCat(object.pod, "\n", object.leaf), leaves);
      if (pod == static_cast<int>(cluster_.pods.size())) {
        cluster_.pods.push_back(object.pod);
      }
      if (node.leaf == static_cast<int>(cluster_.leaves.size())) {
        cluster_.leaves.push_back({.name = object.leaf, .pod = pod});
      }
      // Pods ask for no model: kube-scheduler matches node labels itself.
      if (node.gpus > 0) node.gpu_model = GpuModelIndex(cluster_, "GPU");
      node_of_[node.name] = static_cast<int>(cluster_.nodes.size());
      cluster_.nodes.push_back(std::move(node));
      refusals_.push_back(object.refusal);
    }
    return Check(cluster_);
  }

  void AddPods(absl::Span<const PodObject> pods, const PodObject& asked,
               const PlacerOptions& options) {
    // Running, waiting and asked-for pods are the best guess at future ones.
    std::vector<Instance> all;
    const auto know = [&](const PodObject& pod) {
      if (!pod.app.empty()) IndexIn(pod.app, apps_);
      all.push_back(InstanceOf(pod));
    };
    know(asked);
    for (const PodObject& pod : pods) {
      if (!pod.ended && pod.refusal.empty()) know(pod);
    }
    // Order: the meter needs all demands, the state all apps, then pods are put
    // on their nodes.
    meter_ = std::make_unique<FragmentMeter>(WorkloadOf(all, {}));
    state_ = std::make_unique<State>(cluster_, static_cast<int>(apps_.size()));
    for (const PodObject& pod : pods) {
      const int node = pod.ended || pod.node.empty() ? -1 : Find(pod.node);
      // A pod that is moved or scheduled again does not block itself.
      if (node < 0 || (!asked.uid.empty() && pod.uid == asked.uid)) continue;
      if (!pod.refusal.empty()) {
        // Nobody knows what this pod leaves free.
        refusals_[node] = pod.refusal;
        continue;
      }
      Put(InstanceOf(pod), node, options);
    }
  }

  void Put(Instance instance, int node, const PlacerOptions& options) {
    Demand& demand = instance.demand;
    const NodeFree& free = state_->free(node);
    // If the node is fuller than its figures say, the pod takes the rest.
    demand.cpu_milli = std::min(demand.cpu_milli, free.cpu_milli);
    demand.memory_mib = std::min(demand.memory_mib, free.memory_mib);
    demand.disk_mib = std::min(demand.disk_mib, free.disk_mib);
    // GPUs of this pod cannot be told apart from those of other pods; if no GPU
    // has room, the pod counts with its CPU and memory alone.
    if (ObstacleOf(cluster_.nodes[node], free, demand) != Obstacle::kNothing) {
      demand.gpus = 0;
      demand.gpu_milli = 0;
      demand.mig = MigProfile::kNone;
    }
    const Choice choice =
        ScoreNode(options.policy, {.node = cluster_.nodes[node],
                                   .free = free,
                                   .kinds = state_->kinds(node),
                                   .demand = demand,
                                   .meter = meter_.get()});
    state_->Add(instance, node, choice.devices);
  }

  placement::Cluster cluster_;
  std::vector<std::string> refusals_;  // by node
  absl::flat_hash_map<std::string, int> node_of_;
  absl::flat_hash_map<std::string, int> apps_;
  std::unique_ptr<FragmentMeter> meter_;
  std::unique_ptr<State> state_;
};

// A request of the verbs filter and prioritize.
struct Arguments {
  PodObject pod;
  // kube-scheduler's list: whole Nodes (nodeCacheCapable: false) or names.
  JsonValue node_list;
  std::vector<NodeObject> nodes;
  std::vector<std::string> names;
};

// Go writes these names with and without capital letters.
const JsonValue& AnyCase(const JsonValue& object, absl::string_view name) {
  static const auto& null = *new JsonValue();
  for (const auto& [key, value] : object.items()) {
    if (absl::EqualsIgnoreCase(key, name)) return value;
  }
  return null;
}

absl::StatusOr<JsonValue> ObjectFrom(absl::string_view request) {
  JsonValue json =
      JsonValue::parse(request, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the request is no JSON object");
  }
  return json;
}

absl::StatusOr<Arguments> ArgumentsFrom(absl::string_view request) {
  REFRACT_ASSIGN_OR_RETURN(const JsonValue json, ObjectFrom(request));
  Arguments arguments;
  absl::StatusOr<PodObject> pod = PodFromJson(AnyCase(json, "pod"));
  if (!pod.ok()) return base::Annotate(pod.status(), "Pod");
  arguments.pod = *std::move(pod);
  const JsonValue& names = AnyCase(json, "nodenames");
  if (names.is_array()) {
    for (const JsonValue& name : names) {
      if (!name.is_string()) {
        return absl::InvalidArgumentError("NodeNames: is no list of texts");
      }
      arguments.names.push_back(name.get<std::string>());
    }
    return arguments;
  }
  arguments.node_list = AnyCase(json, "nodes");
  if (!arguments.node_list.is_object()) {
    return absl::InvalidArgumentError("there are neither NodeNames nor Nodes");
  }
  absl::StatusOr<std::vector<NodeObject>> nodes =
      NodesFromJson(arguments.node_list);
  if (!nodes.ok()) return base::Annotate(nodes.status(), "Nodes");
  arguments.nodes = *std::move(nodes);
  for (const NodeObject& node : arguments.nodes) {
    arguments.names.push_back(node.node.name);
  }
  return arguments;
}

std::string TextIn(const JsonValue& object, absl::string_view name) {
  const JsonValue& text = AnyCase(object, name);
  return text.is_string() ? text.get<std::string>() : "";
}

std::string ErrorAnswer(const absl::Status& status) {
  return base::FormatJson(
      Output{{"Error", base::Shorten(std::string(status.message()),
                                     base::kMaxStatusTextBytes)}});
}

}  // namespace

absl::StatusOr<std::vector<NodeVerdict>> Judge(
    absl::Span<const NodeObject> nodes, absl::Span<const PodObject> pods,
    const PodObject& pod, absl::Span<const std::string> candidates,
    const PlacerOptions& options) {
  REFRACT_ASSIGN_OR_RETURN(const auto picture,
                           Picture::Make(nodes, pods, pod, options));
  const Instance instance = picture->InstanceOf(pod);
  // GPUs are not judged here: only kube-scheduler knows which are free.
  Instance without_gpus = instance;
  without_gpus.demand.gpus = 0;
  Placer placer(picture->state(), &picture->meter(), {}, options);
  const auto rank = [&](size_t candidate) {
    return picture->state().name_rank(picture->Find(candidates[candidate]));
  };
  // Both by position in `candidates`; no choice: not judged, or an obstacle.
  std::vector<NodeVerdict> verdicts(candidates.size());
  std::vector<std::optional<Choice>> choices(candidates.size());
  std::optional<size_t> best;
  for (size_t i = 0; i < candidates.size(); ++i) {
    NodeVerdict& verdict = verdicts[i];
    verdict.node = candidates[i];
    const int node = picture->Find(verdict.node);
    if (node < 0) {
      verdict.obstacle = "unknown node";
    } else if (!picture->Refusal(node).empty()) {
      verdict.obstacle = picture->Refusal(node);
    } else if (const Obstacle obstacle = placer.ObstacleAt(
                   node, nodes[node].judged ? instance : without_gpus);
               obstacle != Obstacle::kNothing) {
      verdict.obstacle = std::string(Name(obstacle));
    } else if (nodes[node].judged) {
      choices[i] = placer.ChoiceAt(node, instance);
      const Score& score = choices[i]->score;
      if (!best || score.BetterThan(choices[*best]->score) ||
          (score == choices[*best]->score && rank(i) < rank(*best))) {
        best = i;
      }
    }
  }
  if (!best) return verdicts;
  const Score& top = choices[*best]->score;
  size_t chosen = *best;
  int most = 0;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    if (!choices[i].has_value()) continue;
    const Score& score = choices[i]->score;
    // Scores of the API are 0 to 10: 10 for the placer's choice, below that a
    // point less per bucket of fragmentation.
    verdicts[i].score = std::clamp(
        kBestExtenderScore - 1 -
            static_cast<int>(std::lround(top.primary - score.primary)),
        0, kBestExtenderScore - 1);
    // As Placer::Decide(): near the app's other pods if the node fits as well.
    if (!options.pack_leaves || score.topology < top.topology ||
        score.primary < top.primary ||
        score.secondary < top.secondary - options.leaf_slack) {
      continue;
    }
    const int node = picture->Find(verdicts[i].node);
    const int under = picture->state().UnderLeaf(
        instance.app, picture->cluster().nodes[node].leaf);
    if (under > most || (under == most && under > 0 &&
                         score.BetterThan(choices[chosen]->score))) {
      most = under;
      chosen = i;
    }
  }
  verdicts[chosen].score = kBestExtenderScore;
  return verdicts;
}

Extender::Extender(Cluster cluster, const Options& options, base::Clock& clock)
    : cluster_(std::move(cluster)), options_(options), clock_(clock) {}

absl::Status Extender::Refresh() {
  const absl::Time now = clock_.Now();
  if (now - read_at_ < options_.refresh) return absl::OkStatus();
  // An error leaves read_at_ as it is, so the next request reads again.
  REFRACT_ASSIGN_OR_RETURN(nodes_, cluster_.nodes());
  REFRACT_ASSIGN_OR_RETURN(pods_, cluster_.pods());
  read_at_ = now;
  absl::flat_hash_map<std::string, bool> listed;
  for (const PodObject& pod : pods_) {
    // A list that was read before a binding took effect shows the pod unbound.
    // Until a list shows it bound, the pod counts where Bind() put it.
    if (!pod.node.empty()) listed[pod.uid] = true;
  }
  std::erase_if(bound_, [&](const Bound& bound) {
    return listed.contains(bound.pod.uid) || now - bound.at > kUnseen;
  });
  for (const Bound& bound : bound_) pods_.push_back(bound.pod);
  return absl::OkStatus();
}

void Extender::Remember(const PodObject& pod) {
  // Losing entries is safe: Bind() then does not know the pod's demand, and the
  // next read of the cluster shows the pod.
  if (asked_.size() >= kMostAsked) asked_.clear();
  if (!pod.uid.empty()) asked_[pod.uid] = pod;
}

absl::StatusOr<std::string> Extender::Filter(absl::string_view request) {
  REFRACT_ASSIGN_OR_RETURN(const Arguments arguments, ArgumentsFrom(request));
  if (const absl::Status read = Refresh(); !read.ok()) {
    return ErrorAnswer(read);
  }
  Remember(arguments.pod);
  // kube-scheduler gets its nodes back in the form in which it sent them.
  const bool whole = arguments.node_list.is_object();
  const auto verdicts = Judge(whole ? arguments.nodes : nodes_, pods_,
                              arguments.pod, arguments.names, options_.placer);
  if (!verdicts.ok()) return ErrorAnswer(verdicts.status());
  Output failed = Output::object();
  Output passed = Output::array();
  for (size_t i = 0; i < verdicts->size(); ++i) {
    const NodeVerdict& verdict = (*verdicts)[i];
    if (!verdict.obstacle.empty()) {
      failed[verdict.node] = absl::StrCat("refract: ", verdict.obstacle);
    } else if (whole) {
      passed.push_back(Output(arguments.node_list["items"][i]));
    } else {
      passed.push_back(verdict.node);
    }
  }
  Output answer;
  if (whole) {
    answer["Nodes"] = arguments.node_list;
    answer["Nodes"]["items"] = std::move(passed);
  } else {
    answer["NodeNames"] = std::move(passed);
  }
  answer["FailedNodes"] = std::move(failed);
  answer["Error"] = "";
  return base::FormatJson(answer);
}

absl::StatusOr<std::string> Extender::Prioritize(absl::string_view request) {
  REFRACT_ASSIGN_OR_RETURN(const Arguments arguments, ArgumentsFrom(request));
  REFRACT_RETURN_IF_ERROR(Refresh());
  Remember(arguments.pod);
  REFRACT_ASSIGN_OR_RETURN(
      const std::vector<NodeVerdict> verdicts,
      Judge(arguments.node_list.is_object() ? arguments.nodes : nodes_, pods_,
            arguments.pod, arguments.names, options_.placer));
  Output answer = Output::array();
  for (const NodeVerdict& verdict : verdicts) {
    answer.push_back({{"Host", verdict.node}, {"Score", verdict.score}});
  }
  return base::FormatJson(answer);
}

absl::StatusOr<std::string> Extender::Bind(absl::string_view request) {
  REFRACT_ASSIGN_OR_RETURN(const JsonValue json, ObjectFrom(request));
  const std::string pod = TextIn(json, "podname");
  const std::string name_space = TextIn(json, "podnamespace");
  const std::string uid = TextIn(json, "poduid");
  const std::string node = TextIn(json, "node");
  for (const auto& [name, value] : {std::pair("PodName", &pod),
                                    {"PodNamespace", &name_space},
                                    {"Node", &node}}) {
    // Names go into the path of a request to the API server.
    if (!IsObjectName(*value)) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": '", base::Shorten(*value), "' is no name of an object"));
    }
  }
  if (cluster_.bind == nullptr) {
    return ErrorAnswer(absl::FailedPreconditionError(
        "this extender has no API server to bind pods with"));
  }
  const absl::Status bound = cluster_.bind(name_space, pod, uid, node);
  if (!bound.ok()) return ErrorAnswer(bound);
  // Without this, the next pod would find the node as free as before.
  if (const auto asked = asked_.find(uid); asked != asked_.end()) {
    PodObject known = std::move(asked->second);
    asked_.erase(asked);
    known.node = node;
    pods_.push_back(known);
    bound_.push_back({std::move(known), clock_.Now()});
  }
  return ErrorAnswer(absl::OkStatus());
}

}  // namespace refract::placement
