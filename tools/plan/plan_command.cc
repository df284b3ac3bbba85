#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/number_range.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "placement/planner/plan.h"
#include "placement/report/plan_report.h"
#include "tools/command.h"
#include "tools/json_output.h"
#include "tools/loadgen/schedule.h"
#include "tools/plan/manifest_options.h"
#include "tools/plan/model_costs.h"
#include "tools/progress.h"

namespace refract::tools {
namespace {

struct PlanCommand {
  std::string spec;
  std::string prices;
  placement::PlanOptions plan;
  bool no_sensitivity = false;
  JsonOutput json;
  std::string csv;
  std::string report;
  ManifestFlags manifests;
};

absl::StatusOr<std::vector<double>> RowsOf(absl::string_view text) {
  REFRACT_ASSIGN_OR_RETURN(const loadgen::QuerySizes sizes,
                           loadgen::QuerySizes::Parse(text));
  return std::vector<double>(sizes.values().begin(), sizes.values().end());
}

// Makes the output folder of option `name` before minutes of planning, which
// would be lost. An empty `folder` is none.
absl::Status MakeFolder(const std::string& name, const std::string& folder) {
  if (folder.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " ", folder, ": ", error.message()));
}

absl::Status WriteCsv(const std::string& folder,
                      const placement::PlanSpec& spec,
                      const placement::Plan& plan) {
  for (const auto& [name, text] : placement::PlanToCsv(spec, plan)) {
    REFRACT_RETURN_IF_ERROR(
        base::WriteText(absl::StrCat(folder, "/", name), text));
  }
  return absl::OkStatus();
}

// Refuses names and options of manifests before minutes of planning. Counts of
// instances do not matter here, so the deployment has one CN and one HN of each
// service.
absl::Status CheckManifests(const ManifestFlags& flags,
                            const placement::PlanSpec& spec) {
  placement::Plan plan;
  plan.services.resize(spec.services.size());
  for (placement::ServicePlan& service : plan.services) {
    service.answer.sizing.cns = 1;
    service.answer.sizing.hns = 1;
  }
  return ManifestFiles(flags, placement::DeploymentOf(spec, plan)).status();
}

absl::Status RunPlan(PlanCommand options, std::ostream& out,
                     std::ostream& err) {
  if (options.spec.empty()) {
    return absl::InvalidArgumentError(
        "which SPEC? (docs/reference/planning_files.md has its fields)");
  }
  Progress progress(err);
  options.plan.sensitivity = !options.no_sensitivity;
  options.plan.progress = [&](const std::string& text) { progress.Show(text); };
  REFRACT_ASSIGN_OR_RETURN(const std::string text,
                           base::ReadText(options.spec));
  placement::SpecReaders readers{.model = CostsOfVersion, .rows = RowsOf};
  if (!options.prices.empty()) {
    REFRACT_ASSIGN_OR_RETURN(readers.prices,
                             placement::ReadPrices(options.prices));
  }
  REFRACT_ASSIGN_OR_RETURN(
      const placement::PlanSpec spec,
      placement::ParsePlanSpec(text, options.spec, readers));
  REFRACT_RETURN_IF_ERROR(MakeFolder("--csv", options.csv));
  if (!options.manifests.folder.empty()) {
    REFRACT_RETURN_IF_ERROR(CheckManifests(options.manifests, spec));
  }
  REFRACT_RETURN_IF_ERROR(MakeFolder("--manifests", options.manifests.folder));
  const absl::StatusOr<placement::Plan> plan =
      placement::MakePlan(spec, options.plan);
  if (!plan.ok()) {
    return absl::Status(
        plan.status().code(),
        absl::StrCat(options.spec, ": ", plan.status().message()));
  }
  out << placement::PlanToText(spec, *plan);
  if (!options.json.empty()) {
    REFRACT_RETURN_IF_ERROR(
        options.json.WriteText(placement::PlanToJson(spec, *plan)));
  }
  if (!options.csv.empty()) {
    REFRACT_RETURN_IF_ERROR(WriteCsv(options.csv, spec, *plan));
  }
  if (!options.report.empty()) {
    REFRACT_RETURN_IF_ERROR(
        base::WriteText(options.report, placement::PlanToHtml(spec, *plan)));
    out << "report: " << options.report << "\n";
  }
  if (!options.manifests.folder.empty()) {
    REFRACT_RETURN_IF_ERROR(WriteManifestFiles(
        options.manifests, placement::DeploymentOf(spec, *plan)));
    out << "manifests: " << options.manifests.folder << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<PlanCommand>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "How many CNs, HNs and NICs serve a rate within a latency objective, and "
      "what they cost");
  command
      ->add_option("spec", options->spec,
                   "node types, services, traffic: JSON "
                   "(docs/reference/planning_files.md)")
      ->type_name("SPEC");
  command
      ->add_option("--prices", options->prices,
                   "price list, CSV with columns node and price_per_h; "
                   "replaces the spec's prices")
      ->type_name("FILE");
  command
      ->add_option("--seeds", options->plan.sizing.seeds,
                   "simulations of each deployment; figures are their mean")
      ->type_name("N")
      ->check(base::NumberIn(1, 1000));
  command
      ->add_option("--seed", options->plan.sizing.first_seed, "the first seed")
      ->type_name("N");
  command
      ->add_option("--requests", options->plan.sizing.requests,
                   "requests counted in each simulation, at least")
      ->type_name("N")
      ->check(base::NumberIn(1000, 1e7));
  command
      ->add_option("--samples", options->plan.samples,
                   "configurations sized by simulation, per service, at most")
      ->type_name("N")
      ->check(base::NumberIn(1, 10'000));
  command->add_flag("--no-sensitivity", options->no_sensitivity,
                    "leave out the answers to changed inputs");
  options->json.AddTo(*command, context, "everything");
  command
      ->add_option("--csv", options->csv,
                   "write load.csv, search.csv, sensitivity.csv and day.csv "
                   "into this folder")
      ->type_name("DIR");
  AddOutputFile(*command, "--report", options->report, "write an HTML page");
  AddManifestFlags(*command, options->manifests);
  command->callback([&context, command, options] {
    if (!command->get_subcommands().empty()) return;
    context.action = [&context, options] {
      return RunPlan(*options, context.out, context.err);
    };
  });
  AddPlanLoanCommand(*command, context);
}

}  // namespace refract::tools
