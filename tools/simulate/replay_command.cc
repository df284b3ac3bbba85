#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/number_range.h"
#include "base/process/files.h"
#include "base/quantile.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "placement/cluster/lists.h"
#include "placement/cluster/stay.h"
#include "placement/report/figures.h"
#include "placement/simulator/replay.h"
#include "placement/simulator/validate.h"
#include "tools/bench_json.h"
#include "tools/command.h"
#include "tools/json_output.h"
#include "tools/place/placement_options.h"
#include "tools/progress.h"
#include "tools/simulate/simulate.h"

namespace refract::tools {
namespace {

// A century of hours. Each sample measures every node.
constexpr int kMostSamples = 1'000'000;

struct ReplayCommand {
  ClusterOptions cluster;
  RuleOptions rules;
  std::string instances;
  std::string policy = "combined";
  double sample_s = 3600;
  JsonOutput json;
  std::string samples;
  std::string placements;
  std::string report;
};

std::string SamplesCsv(const std::vector<placement::ReplaySample>& samples) {
  std::string text =
      "time_s,cns,hns,wholes,waiting,cpu_allocated,gpu_allocated,"
      "gpu_fragment\n";
  for (const placement::ReplaySample& s : samples) {
    absl::StrAppendFormat(&text, "%.15g", s.time);
    absl::StrAppend(&text, ",", s.cns, ",", s.hns, ",", s.wholes, ",",
                    s.waiting, ",", s.cpu_allocated, ",");
    absl::StrAppend(&text, s.gpu_allocated, ",", s.gpu_fragment, "\n");
  }
  return text;
}

// Over the days of the trace; `notes` are the lines of the terminal.
placement::Figures FiguresOf(
    const std::vector<placement::ReplaySample>& samples,
    std::vector<std::string> notes) {
  using Sample = placement::ReplaySample;
  placement::Figures figures{.title = "Replay of a trace",
                             .notes = std::move(notes)};
  const auto line = [&](std::string name, auto value) {
    placement::Line result{.name = std::move(name), .steps = true};
    for (const Sample& sample : samples) {
      result.points.push_back({sample.time / 86400, value(sample)});
    }
    return result;
  };
  figures.charts = {
      {.title = "Instances",
       .x = "day",
       .y = "instances",
       .lines = {line("CN", [](const Sample& s) { return s.cns; }),
                 line("HN", [](const Sample& s) { return s.hns; }),
                 line("whole models", [](const Sample& s) { return s.wholes; }),
                 line("waiting", [](const Sample& s) { return s.waiting; })}},
      {.title = "Allocated, and GPU fragment",
       .x = "day",
       .y = "% of the cluster",
       .lines = {
           line("CPU", [](const Sample& s) { return 100 * s.cpu_allocated; }),
           line("GPU", [](const Sample& s) { return 100 * s.gpu_allocated; }),
           line("GPU fragment",
                [](const Sample& s) { return 100 * s.gpu_fragment; })}}};
  return figures;
}

std::string ObstaclesText(const placement::Obstacles& obstacles) {
  std::string text;
  for (int i = 1; i < placement::kObstacles; ++i) {
    if (obstacles[i] == 0) continue;
    absl::StrAppend(&text, text.empty() ? " (" : ", ",
                    Name(static_cast<placement::Obstacle>(i)), " ",
                    obstacles[i]);
  }
  return text.empty() ? text : absl::StrCat(text, ")");
}

absl::Status RunReplay(const ReplayCommand& options, std::ostream& out,
                       std::ostream& err) {
  REFRACT_ASSIGN_OR_RETURN(const placement::Policy policy,
                           ParsePolicy(options.policy));
  REFRACT_ASSIGN_OR_RETURN(placement::Cluster cluster,
                           LoadCluster(options.cluster));
  REFRACT_ASSIGN_OR_RETURN(
      const placement::InstanceList list,
      placement::ReadInstances(options.instances, cluster));
  for (const placement::Instance& instance : list.instances) {
    const double last = instance.deleted < placement::kNeverDeleted
                            ? instance.deleted
                            : instance.created;
    if (last / options.sample_s > kMostSamples) {
      return absl::InvalidArgumentError(absl::StrCat(
          options.instances, ": instance ", instance.name, ": its time ", last,
          " s is more than ", kMostSamples, " samples of ", options.sample_s,
          " s away (--sample-seconds)"));
    }
    // An instance that fits no node even of an empty cluster would wait for
    // ever: the list belongs to another cluster.
    const std::string why = placement::WhyImpossible(cluster, instance);
    if (!why.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          options.instances, ": instance ", instance.name, ": ", why));
    }
  }
  const placement::FragmentMeter meter(
      placement::WorkloadOf(list.instances, {}));
  placement::ReplayOptions replay;
  replay.placer = PlacerOptionsOf(policy, options.rules);
  replay.sample_every_s = options.sample_s;
  replay.now_us = CpuClockUs();
  const std::function<double()> now_us = ClockUs();
  const double begin = now_us();
  placement::ReplayResult result;
  {
    Progress progress(err);
    replay.progress = [&](double part) {
      progress.Show(
          absl::StrFormat("replay: %.0f %% of the events", 100 * part));
    };
    result = Replay(cluster, list, meter, TargetsOf(list), replay);
  }
  const double seconds = (now_us() - begin) / 1e6;
  // The validator checks all placements again with code of its own, so that a
  // defect of the placer or of the replay does not go unnoticed.
  constexpr int kMostViolations = 20;
  const std::vector<placement::Violation> violations = Validate(
      cluster, list, result.stays,
      {.pods = replay.placer.keep_pod, .leaf_quota = replay.placer.leaf_quota},
      kMostViolations);
  placement::PathCounts paths;
  int cns_at_nic = 0;
  int cns_with_nic = 0;
  for (const placement::Stay& stay : result.stays) {
    const placement::Node& node = cluster.nodes[stay.node];
    paths.Count(node, stay.devices);
    // A CN instance with a NIC share: its cores should be on the NIC's socket.
    if (stay.devices.nic >= 0 && stay.devices.gpus == 0) {
      ++cns_with_nic;
      cns_at_nic += TopologyScore(node, stay.devices) == placement::kCoresAtNic;
    }
  }
  std::vector<double> waits = result.waits_s;
  std::sort(waits.begin(), waits.end());
  const DecisionTimes times = TimesOf(result.decisions_us);

  // One text for the terminal and for the notes of the HTML page.
  std::ostringstream text;
  text << ClusterText(cluster) << "\n";
  text << absl::StreamFormat(
      "%d instances, %d events in %.2f s; decision p50 %.0f us, p99 %.0f us\n",
      list.instances.size(), result.events, seconds, times.p50, times.p99);
  text << absl::StreamFormat(
      "placed %d, of those %d after a wait (median %.0f s); never placed "
      "%d%s\n",
      result.stays.size(), waits.size(),
      waits.empty() ? 0 : base::Quantile(waits, 0.5), result.never_placed,
      ObstaclesText(result.obstacles));
  text << absl::StreamFormat(
      "most at once: %d instances, %.1f %% of the CPU, %.1f %% of the GPUs\n",
      result.most_instances, 100 * result.most_cpu_allocated,
      100 * result.most_gpu_allocated);
  if (paths.Total() > 0) {
    text << absl::StreamFormat(
        "GPU and NIC under one switch %.1f %%, one socket %.1f %%, two sockets "
        "%.1f %%\n",
        Percent(paths.same_switch, paths.Total()),
        Percent(paths.same_socket, paths.Total()),
        Percent(paths.other_socket, paths.Total()));
  }
  if (cns_with_nic > 0) {
    text << absl::StreamFormat(
        "instances without GPU with all cores at their NIC's socket %.1f %%\n",
        Percent(cns_at_nic, cns_with_nic));
  }
  text << "validator: "
       << (violations.empty()
               ? std::string("no rule broken")
               : absl::StrCat("rules broken: ", violations[0].text))
       << "\n";
  out << text.str();

  if (!options.json.empty()) {
    nlohmann::ordered_json json = BenchJson("simulate replay");
    json["cluster"] = ClusterJson(cluster);
    json["policy"] = options.policy;
    json["instances"] = list.instances.size();
    json["events"] = result.events;
    json["seconds"] = seconds;
    json["decisions_us"] = TimesJson(times);
    json["placed"] = result.stays.size();
    json["waited"] = waits.size();
    json["never_placed"] = result.never_placed;
    json["obstacles"] = ObstaclesJson(result.obstacles);
    json["most_at_once"] = result.most_instances;
    json["paths"] = PathsJson(paths);
    json["violations"] = nlohmann::ordered_json::array();
    for (const placement::Violation& violation : violations) {
      json["violations"].push_back(violation.text);
    }
    REFRACT_RETURN_IF_ERROR(options.json.Write(json));
  }
  if (!options.samples.empty()) {
    REFRACT_RETURN_IF_ERROR(
        base::WriteText(options.samples, SamplesCsv(result.samples)));
  }
  if (!options.report.empty()) {
    REFRACT_RETURN_IF_ERROR(base::WriteText(
        options.report,
        FiguresToHtml(
            FiguresOf(result.samples,
                      absl::StrSplit(text.str(), '\n', absl::SkipEmpty())))));
  }
  if (!options.placements.empty()) {
    REFRACT_RETURN_IF_ERROR(base::WriteText(
        options.placements, PlacementsToCsv(cluster, list, result.stays)));
  }
  // Last: the files are written in any case, for a look at what went wrong.
  if (!violations.empty()) {
    return absl::InternalError(
        absl::StrCat("a rule is broken: ", violations[0].text));
  }
  return absl::OkStatus();
}

}  // namespace

void AddSimulateReplayCommand(CLI::App& simulate, Context& context) {
  auto options = std::make_shared<ReplayCommand>();
  CLI::App* command = simulate.add_subcommand(
      "replay",
      "Replays a trace of instances that come and go, and checks all rules");
  AddClusterOptions(*command, options->cluster);
  command
      ->add_option("--instances", options->instances,
                   "instance list with times, CSV")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--policy", options->policy,
                   absl::StrCat("one of ", placement::PolicyNames()))
      ->type_name("P");
  AddRuleOptions(*command, options->rules);
  command
      ->add_option("--sample-seconds", options->sample_s,
                   "seconds of the trace between samples")
      ->type_name("S")
      ->check(base::NumberIn(1, 1e9));
  options->json.AddTo(*command, context, "all figures");
  AddOutputFile(*command, "--samples", options->samples,
                "write the samples, CSV");
  AddOutputFile(*command, "--placements", options->placements,
                "write every placement, CSV");
  AddOutputFile(*command, "--report", options->report, "write an HTML page");
  SetAction(*command, context, [&context, options] {
    return RunReplay(*options, context.out, context.err);
  });
}

}  // namespace refract::tools
