#include <cmath>
#include <functional>
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
#include "placement/report/figures.h"
#include "placement/simulator/disaggregation.h"
#include "tools/bench_json.h"
#include "tools/command.h"
#include "tools/json_output.h"
#include "tools/place/placement_options.h"
#include "tools/progress.h"
#include "tools/simulate/simulate.h"

namespace refract::tools {
namespace {

using placement::DisaggregationResult;
using placement::FragmentSum;

struct DisaggregationCommand {
  ClusterOptions cluster;
  std::string policy = "best-fit";
  placement::BackgroundOptions background;
  int seeds = 3;
  bool without_memory = false;
  bool no_sensitivity = false;
  JsonOutput json;
  std::string curve;
  std::string report;
};

// A row of the table: the change of the options, and the results of its seeds.
struct Row {
  std::string name;
  std::vector<DisaggregationResult> results;
};

// The change that the table shows for a drop in percent, with one digit. The
// negated drop would print "-0.0" where there is no drop.
double ChangeOf(double drop) { return 0.0 - std::round(10 * drop) / 10; }

// Part of the fragment that disaggregation removes, in percent; mean over the
// seeds.
double Drop(const Row& row, FragmentSum DisaggregationResult::*before,
            FragmentSum DisaggregationResult::*after) {
  double sum = 0;
  for (const DisaggregationResult& result : row.results) {
    // A population without a fragment has nothing to remove: it counts as 0 %.
    const double whole = (result.*before).fragment;
    if (whole > 0) sum += 1 - (result.*after).fragment / whole;
  }
  return 100 * sum / static_cast<double>(row.results.size());
}

double RowMean(const Row& row, auto value) {
  double sum = 0;
  for (const DisaggregationResult& result : row.results) sum += value(result);
  return sum / static_cast<double>(row.results.size());
}

std::string CurvesCsv(const DisaggregationResult& result) {
  std::string text = "resource,population,node,fragment_of_free\n";
  const auto add = [&](absl::string_view resource, absl::string_view population,
                       const FragmentSum& sum) {
    for (size_t i = 0; i < sum.by_node.size(); ++i) {
      absl::StrAppend(&text, resource, ",", population, ",", i, ",",
                      sum.by_node[i], "\n");
    }
  };
  add("cpu", "whole", result.whole_cpu);
  add("cpu", "CN", result.split_cpu);
  add("gpu", "whole", result.whole_gpu);
  add("gpu", "HN", result.split_gpu);
  return text;
}

nlohmann::ordered_json RowJson(const Row& row) {
  const auto mean = [&](auto value) { return RowMean(row, value); };
  return {{"case", row.name},
          {"cpu_allocated",
           mean([](const DisaggregationResult& r) { return r.cpu_allocated; })},
          {"gpu_allocated",
           mean([](const DisaggregationResult& r) { return r.gpu_allocated; })},
          {"cpu_fragment_whole_cores", mean([](const DisaggregationResult& r) {
             return r.whole_cpu.fragment;
           })},
          {"cpu_fragment_cn_cores", mean([](const DisaggregationResult& r) {
             return r.split_cpu.fragment;
           })},
          {"gpu_fragment_whole_gpus", mean([](const DisaggregationResult& r) {
             return r.whole_gpu.fragment;
           })},
          {"gpu_fragment_hn_gpus", mean([](const DisaggregationResult& r) {
             return r.split_gpu.fragment;
           })},
          {"cpu_drop_percent", Drop(row, &DisaggregationResult::whole_cpu,
                                    &DisaggregationResult::split_cpu)},
          {"gpu_drop_percent", Drop(row, &DisaggregationResult::whole_gpu,
                                    &DisaggregationResult::split_gpu)}};
}

void PrintRow(const Row& row, std::ostream& out) {
  const nlohmann::ordered_json json = RowJson(row);
  const auto value = [&](const char* key) { return json[key].get<double>(); };
  out << absl::StreamFormat(
      "%-28s %5.1f %5.1f   %7.0f %7.0f %6.1f   %6.0f %6.0f %6.1f\n", row.name,
      100 * value("cpu_allocated"), 100 * value("gpu_allocated"),
      value("cpu_fragment_whole_cores"), value("cpu_fragment_cn_cores"),
      ChangeOf(value("cpu_drop_percent")), value("gpu_fragment_whole_gpus"),
      value("gpu_fragment_hn_gpus"), ChangeOf(value("gpu_drop_percent")));
}

// The curves are those of the first row's first seed.
placement::Figures FiguresOf(const placement::Cluster& cluster,
                             const std::vector<Row>& rows) {
  placement::Figures figures{
      .title = "Fragments before and after disaggregation",
      .notes = {ClusterText(cluster),
                absl::StrFormat("Means of %d seeds; curves of the first.",
                                rows[0].results.size())}};
  placement::Table table{
      .title = "Sensitivity",
      .head = {"case", "CPU allocated, %", "GPU allocated, %",
               "CPU fragment, cores: whole", "CN", "change, %",
               "GPU fragment, GPUs: whole", "HN", "change, %"}};
  for (const Row& row : rows) {
    const nlohmann::ordered_json json = RowJson(row);
    std::vector<std::string> cells = {row.name};
    const auto value = [&](const char* key) { return json[key].get<double>(); };
    for (const auto& [figure, digits] :
         {std::pair(100 * value("cpu_allocated"), 1),
          {100 * value("gpu_allocated"), 1},
          {value("cpu_fragment_whole_cores"), 0},
          {value("cpu_fragment_cn_cores"), 0},
          {ChangeOf(value("cpu_drop_percent")), 1},
          {value("gpu_fragment_whole_gpus"), 0},
          {value("gpu_fragment_hn_gpus"), 0},
          {ChangeOf(value("gpu_drop_percent")), 1}}) {
      cells.push_back(absl::StrFormat("%.*f", digits, figure));
    }
    table.rows.push_back(std::move(cells));
  }
  figures.tables = {std::move(table)};
  const DisaggregationResult& first = rows[0].results[0];
  const auto line = [](std::string name, const FragmentSum& sum) {
    placement::Line result{.name = std::move(name)};
    for (size_t i = 0; i < sum.by_node.size(); ++i) {
      result.points.push_back({static_cast<double>(i), 100 * sum.by_node[i]});
    }
    return result;
  };
  figures.charts = {{.title = "CPU fragment of each node with free CPU",
                     .x = "nodes",
                     .y = "% of its free CPU",
                     .lines = {line("whole models", first.whole_cpu),
                               line("CN instances", first.split_cpu)}},
                    {.title = "GPU fragment of each node with free GPU",
                     .x = "nodes",
                     .y = "% of its free GPU",
                     .lines = {line("whole models", first.whole_gpu),
                               line("HN instances", first.split_gpu)}}};
  return figures;
}

absl::Status RunDisaggregation(const DisaggregationCommand& options,
                               std::ostream& out, std::ostream& err) {
  REFRACT_ASSIGN_OR_RETURN(const placement::Policy policy,
                           ParsePolicy(options.policy));
  REFRACT_ASSIGN_OR_RETURN(const placement::Cluster cluster,
                           LoadCluster(options.cluster));
  if (cluster.TotalGpus() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.cluster.nodes, ": no node has a GPU"));
  }
  // The change of the options in each row.
  struct Case {
    std::string name;
    std::function<void(placement::BackgroundOptions&)> change;
    bool with_memory;
  };
  const bool memory = !options.without_memory;
  std::vector<Case> cases = {
      {"as given", [](placement::BackgroundOptions&) {}, memory}};
  // The first row is the experiment; each further row changes one assumption,
  // to show how far the result depends on it.
  if (!options.no_sensitivity) {
    for (const double level : {0.8, 0.85, 0.95}) {
      cases.push_back(
          {absl::StrFormat("CPU and GPU to %.0f %%", 100 * level),
           [level](placement::BackgroundOptions& o) { o.cpu = o.gpu = level; },
           memory});
    }
    for (const double training : {0.5, 0.7}) {
      cases.push_back(
          {absl::StrFormat("training %.0f %% of GPUs", 100 * training),
           [training](placement::BackgroundOptions& o) {
             o.training = training;
           },
           memory});
    }
    for (const placement::Policy other :
         {placement::Policy::kCombined, placement::Policy::kPacking,
          placement::Policy::kDotProd, placement::Policy::kRandom}) {
      cases.push_back({absl::StrCat("background by ", Name(other)),
                       [other](placement::BackgroundOptions& o) {
                         o.placer.policy = other;
                       },
                       memory});
    }
    cases.push_back({memory ? "without memory" : "with memory",
                     [](placement::BackgroundOptions&) {}, !memory});
  }
  std::vector<Row> rows;
  {
    Progress progress(err);
    // The same seeds in every row: rows then differ by the change alone.
    for (const Case& one : cases) {
      Row row{.name = one.name};
      const placement::Populations populations =
          placement::PublishedPopulations(one.with_memory);
      for (int seed = 0; seed < options.seeds; ++seed) {
        progress.Show(absl::StrCat(one.name, ", seed ", seed));
        placement::BackgroundOptions background = options.background;
        // Before one.change(), which may replace the policy.
        background.placer.policy = policy;
        background.seed += static_cast<uint64_t>(seed);
        one.change(background);
        row.results.push_back(
            MeasureDisaggregation(cluster, populations, background));
      }
      rows.push_back(std::move(row));
    }
  }
  out << absl::StreamFormat("%d nodes, %d GPUs, %.0f cores; %d seeds\n\n",
                            cluster.nodes.size(), cluster.TotalGpus(),
                            static_cast<double>(cluster.TotalCpuMilli()) / 1000,
                            options.seeds);
  out << "                            allocated %   CPU fragment, cores       "
         "GPU fragment, GPUs\n"
         "case                          CPU   GPU     whole      CN      %    "
         " whole     HN      %\n";
  for (const Row& row : rows) PrintRow(row, out);
  if (!options.json.empty()) {
    nlohmann::ordered_json json = BenchJson("simulate disaggregation");
    json["cluster"] = ClusterJson(cluster);
    json["seeds"] = options.seeds;
    for (const Row& row : rows) json["cases"].push_back(RowJson(row));
    REFRACT_RETURN_IF_ERROR(options.json.Write(json));
  }
  if (!options.curve.empty()) {
    REFRACT_RETURN_IF_ERROR(
        base::WriteText(options.curve, CurvesCsv(rows[0].results[0])));
  }
  if (!options.report.empty()) {
    REFRACT_RETURN_IF_ERROR(base::WriteText(
        options.report, FiguresToHtml(FiguresOf(cluster, rows))));
  }
  return absl::OkStatus();
}

}  // namespace

void AddSimulateDisaggregationCommand(CLI::App& simulate, Context& context) {
  auto options = std::make_shared<DisaggregationCommand>();
  CLI::App* command = simulate.add_subcommand(
      "disaggregation",
      "Fragments of a busy cluster for whole models and for their CN and HN "
      "instances: the experiment of Prism's figure 19");
  AddClusterOptions(*command, options->cluster);
  const auto part = base::NumberIn(0, 1);
  command
      ->add_option("--policy", options->policy,
                   absl::StrCat("policy that places the background: ",
                                placement::PolicyNames()))
      ->type_name("P");
  command
      ->add_option("--cpu", options->background.cpu,
                   "part of the CPU that the background allocates")
      ->type_name("R")
      ->check(part);
  command
      ->add_option("--gpu", options->background.gpu,
                   "part of the GPUs that the background allocates")
      ->type_name("R")
      ->check(part);
  command
      ->add_option("--training", options->background.training,
                   "part of these GPUs that training jobs of 8 GPUs ask for; "
                   "whole models ask for the others")
      ->type_name("R")
      ->check(part);
  command->add_option("--seeds", options->seeds, "seeds to average")
      ->type_name("N")
      ->check(base::NumberIn(1, 1000));
  command
      ->add_option("--first-seed", options->background.seed, "the first seed")
      ->type_name("N");
  command->add_flag("--without-memory", options->without_memory,
                    "leave memory out of the populations");
  command->add_flag("--no-sensitivity", options->no_sensitivity,
                    "only the first row of the table");
  options->json.AddTo(*command, context, "all figures");
  AddOutputFile(*command, "--curve", options->curve,
                "write fragment ÷ free of each node, ascending, of the "
                "first seed, CSV");
  AddOutputFile(*command, "--report", options->report, "write an HTML page");
  SetAction(*command, context, [&context, options] {
    return RunDisaggregation(*options, context.out, context.err);
  });
}

}  // namespace refract::tools
