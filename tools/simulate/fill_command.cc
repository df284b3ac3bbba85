#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/number_range.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "placement/cluster/lists.h"
#include "placement/cluster/stay.h"
#include "placement/report/figures.h"
#include "placement/simulator/fill.h"
#include "placement/simulator/replay.h"
#include "tools/bench_json.h"
#include "tools/command.h"
#include "tools/json_output.h"
#include "tools/place/placement_options.h"
#include "tools/progress.h"
#include "tools/simulate/simulate.h"

namespace refract::tools {
namespace {

using placement::FillPoint;
using placement::FillResult;

struct FillCommand {
  ClusterOptions cluster;
  RuleOptions rules;
  std::string instances;
  std::vector<std::string> policies = {"fgd"};
  double arrival = 1.3;
  int seeds = 10;
  int first_seed = 42;
  int nic_percent_per_gpu = 0;
  int app_size = 0;
  JsonOutput json;
  std::string curve;
  std::string placements;
  std::string report;
};

// All seeds of one policy.
struct PolicyRuns {
  placement::Policy policy;
  std::vector<FillResult> runs;
  double seconds = 0;
};

struct Mean {
  double mean = 0;
  double deviation = 0;  // of the sample; 0 for one value
};

Mean MeanOf(const std::vector<double>& values) {
  Mean result;
  const auto count = static_cast<double>(values.size());
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) {
    squares += (value - result.mean) * (value - result.mean);
  }
  if (count > 1) result.deviation = std::sqrt(squares / (count - 1));
  return result;
}

Mean UnallocatedOf(const PolicyRuns& policy) {
  std::vector<double> values;
  for (const FillResult& run : policy.runs) values.push_back(run.unallocated);
  return MeanOf(values);
}

placement::PathCounts PathsOf(const PolicyRuns& policy) {
  placement::PathCounts sum;
  for (const FillResult& run : policy.runs) {
    sum.same_switch += run.paths.same_switch;
    sum.same_socket += run.paths.same_socket;
    sum.other_socket += run.paths.other_socket;
  }
  return sum;
}

DecisionTimes PolicyTimes(const PolicyRuns& policy) {
  std::vector<double> all;
  for (const FillResult& run : policy.runs) {
    all.insert(all.end(), run.decisions_us.begin(), run.decisions_us.end());
  }
  return TimesOf(std::move(all));
}

// Mean over seeds of a quantity at each percent of GPU asked for.
double CurveMean(const PolicyRuns& policy, size_t percent, auto value) {
  double sum = 0;
  for (const FillResult& run : policy.runs) sum += value(run.curve[percent]);
  return sum / static_cast<double>(policy.runs.size());
}

size_t CurveLength(const PolicyRuns& policy) {
  // The seeds' runs may end at different percents; a mean needs all of them.
  size_t length = policy.runs[0].curve.size();
  for (const FillResult& run : policy.runs) {
    length = std::min(length, run.curve.size());
  }
  return length;
}

// Fragment ÷ free GPU.
double RateOf(const FillPoint& point) {
  // Both are parts of the cluster's GPUs. A full cluster has no fragment.
  const double free = 1 - point.allocated;
  return free > 0 ? placement::FragmentOf(point.fragment) / free : 0;
}

std::string CurveCsv(const std::vector<PolicyRuns>& policies) {
  std::string text = "policy,asked_percent,allocated,unallocated,fragment,rate";
  for (int i = 0; i < placement::kCauses; ++i) {
    absl::StrAppend(&text,
                    ",fragment: ", Name(static_cast<placement::Cause>(i)));
  }
  absl::StrAppend(&text, ",dropped\n");
  for (const PolicyRuns& policy : policies) {
    for (size_t i = 0; i < CurveLength(policy); ++i) {
      const auto mean = [&](auto value) { return CurveMean(policy, i, value); };
      const double allocated =
          mean([](const FillPoint& p) { return p.allocated; });
      absl::StrAppend(&text, Name(policy.policy), ",", i, ",", allocated, ",",
                      1 - allocated, ",", mean([](const FillPoint& p) {
                        return placement::FragmentOf(p.fragment);
                      }),
                      ",", mean(RateOf));
      for (int cause = 0; cause < placement::kCauses; ++cause) {
        absl::StrAppend(&text, ",", mean([&](const FillPoint& p) {
          return p.fragment[cause];
        }));
      }
      absl::StrAppend(&text, ",", mean([](const FillPoint& p) {
        return static_cast<double>(p.dropped);
      }),
                      "\n");
    }
  }
  return text;
}

nlohmann::ordered_json ReportOf(const FillCommand& options,
                                const placement::Cluster& cluster,
                                const std::vector<PolicyRuns>& policies) {
  nlohmann::ordered_json json = BenchJson("simulate fill");
  json["cluster"] = ClusterJson(cluster);
  json["arrival"] = options.arrival;
  json["first_seed"] = options.first_seed;
  json["seeds"] = options.seeds;
  // At 0 % asked nothing is placed: the fragment that the node types alone
  // have. It is the same for all policies and seeds.
  json["empty_fragment"] =
      placement::FragmentOf(policies[0].runs[0].curve[0].fragment);
  for (const PolicyRuns& policy : policies) {
    nlohmann::ordered_json entry;
    entry["policy"] = std::string(Name(policy.policy));
    const Mean unallocated = UnallocatedOf(policy);
    entry["unallocated"] = {{"mean", unallocated.mean},
                            {"deviation", unallocated.deviation}};
    entry["paths"] = PathsJson(PathsOf(policy));
    entry["decisions_us"] = TimesJson(PolicyTimes(policy));
    entry["seconds"] = policy.seconds;
    for (const FillResult& run : policy.runs) {
      entry["runs"].push_back(
          {{"unallocated", run.unallocated},
           {"placed", run.placed},
           {"dropped", ObstaclesJson(run.dropped)},
           {"allocated_at_end", run.end.allocated},
           {"fragment_at_end", FragmentJson(run.end.fragment)},
           {"pairs_of_apps", run.pairs.all},
           {"pairs_under_one_leaf", run.pairs.same_leaf}});
    }
    json["policies"].push_back(entry);
  }
  return json;
}

void Print(const placement::Cluster& cluster, const FillCommand& options,
           const std::vector<PolicyRuns>& policies, std::ostream& out) {
  out << absl::StreamFormat(
      "%d nodes, %d GPUs, %.0f cores; fragment of the empty cluster %.2f %% "
      "of its GPUs\n",
      cluster.nodes.size(), cluster.TotalGpus(),
      static_cast<double>(cluster.TotalCpuMilli()) / 1000,
      100 * placement::FragmentOf(policies[0].runs[0].curve[0].fragment));
  out << absl::StreamFormat(
      "%d seeds from %d; GPUs asked for up to %.0f %% of the cluster's\n\n",
      options.seeds, options.first_seed, 100 * options.arrival);
  out << "policy      unallocated %   fragment % of free GPU at    same     "
         "same    decision, us\n";
  out << "            at 100 % asked  50    80    90    95  % asked switch %  "
         "leaf %  p50    p99    all, s\n";
  for (const PolicyRuns& policy : policies) {
    const Mean unallocated = UnallocatedOf(policy);
    const placement::PathCounts paths = PathsOf(policy);
    int64_t pairs = 0;
    int64_t same_leaf = 0;
    for (const FillResult& run : policy.runs) {
      pairs += run.pairs.all;
      same_leaf += run.pairs.same_leaf;
    }
    const DecisionTimes times = PolicyTimes(policy);
    out << absl::StreamFormat(
        "%-11s %6.2f +- %4.2f  ", std::string(Name(policy.policy)),
        100 * unallocated.mean, 100 * unallocated.deviation);
    for (const size_t percent : {50, 80, 90, 95}) {
      if (percent < CurveLength(policy)) {
        out << absl::StreamFormat("%5.1f ",
                                  100 * CurveMean(policy, percent, RateOf));
      } else {
        out << "    - ";
      }
    }
    out << (paths.Total() > 0
                ? absl::StrFormat("     %6.1f",
                                  Percent(paths.same_switch, paths.Total()))
                : "          -");
    out << (pairs > 0 ? absl::StrFormat("    %6.2f",
                                        Percent(static_cast<double>(same_leaf),
                                                static_cast<double>(pairs)))
                      : "         -");
    out << absl::StreamFormat("  %5.0f %6.0f  %6.2f\n", times.p50, times.p99,
                              policy.seconds);
  }
}

placement::Figures FiguresOf(const FillCommand& options,
                             const placement::Cluster& cluster,
                             const std::vector<PolicyRuns>& policies) {
  placement::Figures figures;
  figures.title = "Filling a cluster";
  figures.notes = {
      ClusterText(cluster),
      absl::StrFormat(
          "Instances of %s, %d seeds from %d. The fragment of the empty "
          "cluster is %.2f %% of its GPUs.",
          options.instances, options.seeds, options.first_seed,
          100 * placement::FragmentOf(policies[0].runs[0].curve[0].fragment))};
  placement::Table table{
      .title = "When all GPUs had been asked for once",
      .head = {"policy", "unallocated GPU, %", "deviation",
               "GPU and NIC under one switch, %", "decision p99, µs"}};
  placement::Chart unallocated{.title = "Unallocated GPU",
                               .x = "GPU asked for, % of the cluster",
                               .y = "% of the cluster"};
  placement::Chart rate = unallocated;
  rate.title = "Fragment ÷ free GPU, mean of the seeds";
  rate.y = "% of the free GPU";
  std::vector<placement::Chart> causes;
  for (const PolicyRuns& policy : policies) {
    const std::string name(Name(policy.policy));
    const Mean mean = UnallocatedOf(policy);
    const placement::PathCounts paths = PathsOf(policy);
    table.rows.push_back(
        {name, absl::StrFormat("%.2f", 100 * mean.mean),
         absl::StrFormat("%.2f", 100 * mean.deviation),
         paths.Total() > 0 ? absl::StrFormat("%.1f", Percent(paths.same_switch,
                                                             paths.Total()))
                           : "–",
         absl::StrFormat("%.0f", PolicyTimes(policy).p99)});
    // Percent of a quantity over the GPU asked for.
    const auto line = [&](std::string title, auto value) {
      placement::Line result{.name = std::move(title)};
      for (size_t i = 0; i < CurveLength(policy); ++i) {
        result.points.push_back(
            {static_cast<double>(i), 100 * CurveMean(policy, i, value)});
      }
      return result;
    };
    unallocated.lines.push_back(
        line(name, [](const FillPoint& p) { return 1 - p.allocated; }));
    rate.lines.push_back(line(name, RateOf));
    placement::Chart chart = unallocated;
    chart.title = absl::StrCat("Fragment by cause: ", name);
    chart.lines.clear();
    for (int cause = 0; cause < placement::kCauses; ++cause) {
      chart.lines.push_back(
          line(std::string(Name(static_cast<placement::Cause>(cause))),
               [&](const FillPoint& p) { return p.fragment[cause]; }));
    }
    causes.push_back(std::move(chart));
  }
  figures.tables = {std::move(table)};
  figures.charts = {std::move(unallocated), std::move(rate)};
  for (placement::Chart& chart : causes) {
    figures.charts.push_back(std::move(chart));
  }
  return figures;
}

// Instances of similar demands become apps of `size` instances each.
void MakeApps(int size, placement::InstanceList& list) {
  std::vector<int> order(list.instances.size());
  std::iota(order.begin(), order.end(), 0);
  // The index last makes the order total, so the apps are the same on every
  // machine.
  const auto key = [&](int i) {
    const placement::Demand& d = list.instances[i].demand;
    return std::make_tuple(d.gpus, d.gpu_milli, d.cpu_milli, d.memory_mib, i);
  };
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return key(a) < key(b); });
  list.apps.clear();
  for (size_t i = 0; i < order.size(); ++i) {
    // The i-th instance in the order of demands belongs to app i / size.
    const int app = static_cast<int>(i) / size;
    if (app == static_cast<int>(list.apps.size())) {
      list.apps.push_back(absl::StrCat("app-", app));
    }
    list.instances[order[i]].app = app;
  }
}

absl::Status RunFill(const FillCommand& options, std::ostream& out,
                     std::ostream& err) {
  std::vector<placement::Policy> policies;
  for (const std::string& name : options.policies) {
    REFRACT_ASSIGN_OR_RETURN(const placement::Policy policy, ParsePolicy(name));
    policies.push_back(policy);
  }
  REFRACT_ASSIGN_OR_RETURN(placement::Cluster cluster,
                           LoadCluster(options.cluster));
  REFRACT_ASSIGN_OR_RETURN(
      placement::InstanceList list,
      placement::ReadInstances(options.instances, cluster));
  if (list.instances.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.instances, ": there are no instances"));
  }
  if (cluster.TotalGpus() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.cluster.nodes, ": no node has a GPU"));
  }
  // From the list as it was given: its demands are the target workload.
  const placement::FragmentMeter meter(
      placement::WorkloadOf(list.instances, {}));
  for (placement::Instance& instance : list.instances) {
    // All run at once here.
    instance.created = placement::kBeforeStart;
    instance.deleted = placement::kNeverDeleted;
    if (options.nic_percent_per_gpu > 0 && instance.demand.gpus > 0) {
      instance.demand.nic_percent =
          std::min(placement::kWholeNic,
                   options.nic_percent_per_gpu * instance.demand.gpus);
    }
  }
  if (options.app_size > 0) MakeApps(options.app_size, list);
  const std::vector<placement::AppTarget> targets = TargetsOf(list);
  const std::function<double()> now_us = ClockUs();
  std::vector<PolicyRuns> results;
  {
    Progress progress(err);
    for (const placement::Policy policy : policies) {
      PolicyRuns runs{.policy = policy};
      const double begin = now_us();
      for (int i = 0; i < options.seeds; ++i) {
        progress.Show(
            absl::StrCat(Name(policy), ", seed ", options.first_seed + i));
        placement::FillOptions fill;
        fill.placer = PlacerOptionsOf(policy, options.rules);
        fill.seed = static_cast<uint64_t>(options.first_seed + i);
        fill.arrival = options.arrival;
        // Decisions by CPU time of this thread, whole runs by the clock.
        fill.now_us = CpuClockUs();
        runs.runs.push_back(Fill(cluster, list, meter, targets, fill));
      }
      runs.seconds = (now_us() - begin) / 1e6;
      results.push_back(std::move(runs));
    }
  }
  Print(cluster, options, results, out);
  if (!options.json.empty()) {
    REFRACT_RETURN_IF_ERROR(
        options.json.Write(ReportOf(options, cluster, results)));
  }
  if (!options.curve.empty()) {
    REFRACT_RETURN_IF_ERROR(base::WriteText(options.curve, CurveCsv(results)));
  }
  if (!options.report.empty()) {
    REFRACT_RETURN_IF_ERROR(base::WriteText(
        options.report, FiguresToHtml(FiguresOf(options, cluster, results))));
  }
  if (!options.placements.empty()) {
    REFRACT_RETURN_IF_ERROR(base::WriteText(
        options.placements,
        PlacementsToCsv(cluster, list, results.back().runs.back().stays)));
  }
  return absl::OkStatus();
}

}  // namespace

void AddSimulateFillCommand(CLI::App& simulate, Context& context) {
  auto options = std::make_shared<FillCommand>();
  CLI::App* command = simulate.add_subcommand(
      "fill",
      "Fills an empty cluster until instances fit no more: the experiment of "
      "the FGD paper (ATC '23)");
  AddClusterOptions(*command, options->cluster);
  command
      ->add_option("--instances", options->instances,
                   "instance list, CSV; its shapes are the target workload")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--policy", options->policies,
                   absl::StrCat("policies, joined by commas: ",
                                placement::PolicyNames()))
      ->type_name("P")
      ->delimiter(',');
  command
      ->add_option("--arrival", options->arrival,
                   "GPUs asked for ÷ GPUs of the cluster; instances are drawn "
                   "again until it is reached")
      ->type_name("R")
      ->check(base::NumberIn(0.01, 100));
  command->add_option("--seeds", options->seeds, "orders of arrival to average")
      ->type_name("N")
      ->check(base::NumberIn(1, 10000));
  command->add_option("--first-seed", options->first_seed, "the first seed")
      ->type_name("N")
      ->check(base::NumberIn(0, 1e9));
  command
      ->add_option("--nic-percent-per-gpu", options->nic_percent_per_gpu,
                   "NIC share that instances with GPU ask for, per GPU; 0 = as "
                   "in the list")
      ->type_name("P")
      ->check(base::NumberIn(0, 100));
  command
      ->add_option("--app-size", options->app_size,
                   "instances per app, made of instances with similar demands; "
                   "0 = as in the list")
      ->type_name("N")
      ->check(base::NumberIn(0, 1e6));
  AddRuleOptions(*command, options->rules);
  options->json.AddTo(*command, context, "all figures");
  AddOutputFile(*command, "--curve", options->curve,
                "write the curves over GPU asked for, means over the seeds, "
                "CSV");
  AddOutputFile(*command, "--placements", options->placements,
                "write the placements of the last policy and seed, CSV");
  AddOutputFile(*command, "--report", options->report, "write an HTML page");
  SetAction(*command, context, [&context, options] {
    return RunFill(*options, context.out, context.err);
  });
}

}  // namespace refract::tools
