#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "placement/loan/loan.h"
#include "tools/command.h"
#include "tools/json_output.h"

namespace refract::tools {
namespace {

struct LoanCommand {
  std::string spec;
  JsonOutput json;
  std::string csv;
  std::string report;
};

absl::Status RunLoan(const LoanCommand& options, std::ostream& out) {
  REFRACT_ASSIGN_OR_RETURN(const std::string text,
                           base::ReadText(options.spec));
  REFRACT_ASSIGN_OR_RETURN(const placement::LoanSpec spec,
                           placement::ParseLoanSpec(text, options.spec));
  const absl::StatusOr<placement::LoanPlan> plan = placement::PlanLoan(spec);
  if (!plan.ok()) {
    return absl::Status(
        plan.status().code(),
        absl::StrCat(options.spec, ": ", plan.status().message()));
  }
  out << placement::LoanToText(spec, *plan);
  if (!options.json.empty()) {
    REFRACT_RETURN_IF_ERROR(
        options.json.WriteText(placement::LoanToJson(spec, *plan)));
  }
  if (!options.csv.empty()) {
    REFRACT_RETURN_IF_ERROR(
        base::WriteText(options.csv, placement::LoanToCsv(spec, *plan)));
  }
  if (!options.report.empty()) {
    REFRACT_RETURN_IF_ERROR(
        base::WriteText(options.report, placement::LoanToHtml(spec, *plan)));
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlanLoanCommand(CLI::App& plan, Context& context) {
  auto options = std::make_shared<LoanCommand>();
  CLI::App* command = plan.add_subcommand(
      "loan",
      "Which training nodes to borrow for a peak, and when each step happens");
  command
      ->add_option("spec", options->spec,
                   "services, nodes, jobs, the peak: JSON "
                   "(docs/how-to/planning.md)")
      ->type_name("SPEC")
      ->required();
  options->json.AddTo(*command, context, "everything");
  AddOutputFile(*command, "--csv", options->csv,
                "write the events in order of time");
  AddOutputFile(*command, "--report", options->report, "write an HTML page");
  SetAction(*command, context,
            [&context, options] { return RunLoan(*options, context.out); });
}

}  // namespace refract::tools
