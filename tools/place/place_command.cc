#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/number_range.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "placement/cluster/csv.h"
#include "placement/cluster/lists.h"
#include "placement/cluster/stay.h"
#include "placement/fragmentation/fragmentation.h"
#include "placement/policy/placer.h"
#include "placement/simulator/replay.h"
#include "tools/bench_json.h"
#include "tools/command.h"
#include "tools/json_output.h"
#include "tools/place/placement_options.h"

namespace refract::tools {
namespace {

struct PlaceCommand {
  ClusterOptions cluster;
  RuleOptions rules;
  std::string instances;
  std::string running;
  std::string policy = "combined";
  std::string explain;
  int alternatives = 5;
  std::string output;
  JsonOutput json;
};

// Running instances and instances to place, under one set of app numbers.
struct Lists {
  placement::InstanceList all;
  std::vector<placement::Stay> running;
  std::vector<int> to_place;
};

absl::StatusOr<Lists> ReadLists(const PlaceCommand& options,
                                placement::Cluster& cluster) {
  Lists lists;
  if (!options.running.empty()) {
    REFRACT_ASSIGN_OR_RETURN(const placement::CsvTable table,
                             placement::CsvTable::Read(options.running));
    REFRACT_ASSIGN_OR_RETURN(lists.all, InstancesFromTable(table, cluster));
    REFRACT_ASSIGN_OR_RETURN(lists.running,
                             StaysFromTable(table, cluster, lists.all));
  }
  REFRACT_ASSIGN_OR_RETURN(
      const placement::InstanceList added,
      placement::ReadInstances(options.instances, cluster));
  // Both files number apps from 0 in their own order: numbers of the second
  // list are translated by name.
  std::vector<int> app_numbers;
  for (const std::string& app : added.apps) {
    const auto found =
        std::find(lists.all.apps.begin(), lists.all.apps.end(), app);
    app_numbers.push_back(static_cast<int>(found - lists.all.apps.begin()));
    if (found == lists.all.apps.end()) lists.all.apps.push_back(app);
  }
  for (placement::Instance instance : added.instances) {
    const std::string why = placement::WhyImpossible(cluster, instance);
    if (!why.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          options.instances, ": instance ", instance.name, ": ", why));
    }
    for (const placement::Stay& stay : lists.running) {
      if (lists.all.instances[stay.instance].name == instance.name) {
        return absl::InvalidArgumentError(
            absl::StrCat(options.instances, ": instance ", instance.name,
                         " runs already, in ", options.running));
      }
    }
    if (instance.app >= 0) instance.app = app_numbers[instance.app];
    lists.to_place.push_back(static_cast<int>(lists.all.instances.size()));
    lists.all.instances.push_back(std::move(instance));
  }
  return lists;
}

// Begins with a comma; empty for an instance that takes memory alone.
std::string DevicesText(const placement::Node& node,
                        const placement::Devices& devices) {
  std::string text;
  for (int socket = 0; socket < node.sockets; ++socket) {
    if (devices.socket_cpu_milli[socket] == 0) continue;
    absl::StrAppend(&text, text.empty() ? ", " : " + ",
                    devices.socket_cpu_milli[socket] / 1000.0,
                    " cores of socket ", socket);
  }
  if (devices.gpus != 0) {
    absl::StrAppend(&text, ", GPU ", placement::BitsToText(devices.gpus));
  }
  if (devices.mig_slices != 0) {
    absl::StrAppend(&text, " slices ",
                    placement::BitsToText(devices.mig_slices));
  }
  if (devices.nic >= 0) absl::StrAppend(&text, ", NIC ", devices.nic);
  return text;
}

std::string ScoreText(const placement::Verdict& verdict) {
  return absl::StrFormat(
      "path %.2f, score %.4g, fit %.4f, %d of the app under its leaf",
      verdict.choice.score.topology, verdict.choice.score.primary,
      verdict.choice.score.secondary, verdict.under_leaf);
}

// The chosen node, the next best with the criterion by which each lost, and how
// many nodes were out for which reason.
void PrintExplanation(const placement::Cluster& cluster,
                      const placement::Instance& instance,
                      const std::vector<placement::Verdict>& verdicts,
                      int alternatives, std::ostream& out) {
  out << "why: instance " << instance.name << "\n";
  placement::Obstacles obstacles{};
  std::array<int, placement::kObstacles> example{};
  int candidates = 0;
  for (const placement::Verdict& verdict : verdicts) {
    const auto obstacle = static_cast<int>(verdict.obstacle);
    // Verdicts come best first (Placer::Explain), so the first candidate is the
    // chosen node and the next ones are its closest rivals.
    if (++obstacles[obstacle] == 1) example[obstacle] = verdict.node;
    if (verdict.obstacle != placement::Obstacle::kNothing) continue;
    if (candidates++ > alternatives) continue;
    out << absl::StreamFormat(
        "  %-20s %s: %s\n", cluster.nodes[verdict.node].name,
        std::string(Name(verdict.loses_by)), ScoreText(verdict));
  }
  if (candidates > alternatives + 1) {
    out << "  and " << candidates - alternatives - 1 << " more nodes\n";
  }
  for (int i = 1; i < placement::kObstacles; ++i) {
    if (obstacles[i] == 0) continue;
    out << "  nodes out by " << Name(static_cast<placement::Obstacle>(i))
        << ": " << obstacles[i] << ", such as "
        << cluster.nodes[example[i]].name << "\n";
  }
}

nlohmann::ordered_json VerdictJson(const placement::Cluster& cluster,
                                   const placement::Verdict& verdict) {
  nlohmann::ordered_json json = {{"node", cluster.nodes[verdict.node].name}};
  if (verdict.obstacle != placement::Obstacle::kNothing) {
    json["obstacle"] = std::string(Name(verdict.obstacle));
    return json;
  }
  json["verdict"] = std::string(Name(verdict.loses_by));
  json["path"] = verdict.choice.score.topology;
  json["score"] = verdict.choice.score.primary;
  json["fit"] = verdict.choice.score.secondary;
  json["under_leaf"] = verdict.under_leaf;
  return json;
}

absl::Status RunPlace(const PlaceCommand& options, std::ostream& out) {
  REFRACT_ASSIGN_OR_RETURN(const placement::Policy policy,
                           ParsePolicy(options.policy));
  REFRACT_ASSIGN_OR_RETURN(placement::Cluster cluster,
                           LoadCluster(options.cluster));
  REFRACT_ASSIGN_OR_RETURN(const Lists lists, ReadLists(options, cluster));
  const bool known =
      options.explain.empty() || options.explain == "all" ||
      std::any_of(lists.to_place.begin(), lists.to_place.end(), [&](int index) {
        return lists.all.instances[index].name == options.explain;
      });
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrCat("--explain ", options.explain, ": no such instance in ",
                     options.instances));
  }
  // The target workload: instances to place and instances that run are the best
  // guess at later demand.
  const placement::FragmentMeter meter(
      placement::WorkloadOf(lists.all.instances, {}));
  const std::vector<placement::AppTarget> targets = TargetsOf(lists.all);
  placement::State state(cluster, static_cast<int>(lists.all.apps.size()));
  // Instances that run take their devices first, whatever the rules would
  // choose now.
  for (const placement::Stay& stay : lists.running) {
    state.Add(lists.all.instances[stay.instance], stay.node, stay.devices);
  }
  placement::Placer placer(state, &meter, targets,
                           PlacerOptionsOf(policy, options.rules));
  std::vector<placement::Stay> placed = lists.running;
  nlohmann::ordered_json json = BenchJson("place");
  json["cluster"] = ClusterJson(cluster);
  json["policy"] = options.policy;
  json["placements"] = nlohmann::ordered_json::array();
  int without = 0;
  const std::vector<int> order = BatchOrder(lists.all, lists.to_place);
  int batch_app = -1;
  for (size_t i = 0; i < order.size(); ++i) {
    const int index = order[i];
    const placement::Instance& instance = lists.all.instances[index];
    if (instance.app >= 0 && instance.app != batch_app) {
      // BatchOrder() keeps the instances of an app together. BeginBatch() sees
      // all of them before the first takes a place, since leaves are chosen for
      // the batch as a whole.
      batch_app = instance.app;
      std::vector<placement::Instance> batch;
      for (size_t k = i; k < order.size(); ++k) {
        if (lists.all.instances[order[k]].app != batch_app) break;
        batch.push_back(lists.all.instances[order[k]]);
      }
      placer.BeginBatch(batch);
    }
    const placement::Decision decision = placer.Decide(instance);
    nlohmann::ordered_json entry = {{"instance", instance.name}};
    if (decision.node >= 0) {
      const placement::Node& node = cluster.nodes[decision.node];
      const placement::Devices& devices = decision.choice.devices;
      out << instance.name << ": " << node.name << DevicesText(node, devices)
          << "\n";
      entry["node"] = node.name;
      entry["gpus"] = placement::BitsToText(devices.gpus);
      entry["mig_slices"] = placement::BitsToText(devices.mig_slices);
      entry["nic"] = devices.nic;
      entry["path"] = TopologyScore(node, devices);
    } else {
      ++without;
      entry["node"] = nullptr;
    }
    const bool explain = options.explain == instance.name ||
                         options.explain == "all" || decision.node < 0;
    if (explain) {
      const std::vector<placement::Verdict> verdicts =
          placer.Explain(instance, decision);
      if (decision.node < 0) out << instance.name << ": no node\n";
      PrintExplanation(cluster, instance, verdicts, options.alternatives, out);
      for (const placement::Verdict& verdict : verdicts) {
        entry["nodes"].push_back(VerdictJson(cluster, verdict));
      }
    }
    json["placements"].push_back(entry);
    // Placed instances use up devices for the ones after them.
    if (decision.node < 0) continue;
    state.Add(instance, decision.node, decision.choice.devices);
    placed.push_back({.instance = index,
                      .node = decision.node,
                      .devices = decision.choice.devices,
                      .from = std::max(0.0, instance.created),
                      .to = instance.deleted});
  }
  if (!options.output.empty()) {
    REFRACT_RETURN_IF_ERROR(base::WriteText(
        options.output, PlacementsToCsv(cluster, lists.all, placed)));
  }
  if (!options.json.empty()) {
    REFRACT_RETURN_IF_ERROR(options.json.Write(json));
  }
  if (without > 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        without, " of ", lists.to_place.size(), " instances found no node"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlaceCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<PlaceCommand>();
  CLI::App* command = app.add_subcommand(
      "place", "Chooses nodes, GPUs, NICs and cores for instances");
  AddClusterOptions(*command, options->cluster);
  command
      ->add_option("--instances", options->instances,
                   "instances to place, CSV (docs/reference/planning_files.md)")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--running", options->running,
                   "instances that run already: a file that --output wrote")
      ->type_name("FILE");
  command
      ->add_option("--policy", options->policy,
                   absl::StrCat("one of ", placement::PolicyNames()))
      ->type_name("P");
  AddRuleOptions(*command, options->rules);
  command
      ->add_option("--explain", options->explain,
                   "print why an instance, or each of all, got its node and "
                   "not another node")
      ->type_name("NAME|all");
  command
      ->add_option("--alternatives", options->alternatives,
                   "other candidates that --explain prints")
      ->type_name("N")
      ->check(base::NumberIn(0, 1e6));
  AddOutputFile(*command, "--output", options->output,
                "write all placements, the running ones too, CSV");
  options->json.AddTo(*command, context,
                      "the decisions; with --explain, every node's verdict");
  SetAction(*command, context,
            [&context, options] { return RunPlace(*options, context.out); });
}

}  // namespace refract::tools
