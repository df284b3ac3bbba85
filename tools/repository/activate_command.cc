#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/repository/split_plan.h"
#include "tools/command.h"
#include "tools/common_options.h"

namespace refract::tools {
namespace {

struct ActivateOptions {
  std::string model;
  std::string plan;
  bool previous = false;
};

absl::Status Activate(const ActivateOptions& options, std::ostream& out) {
  if (options.plan.empty() && !options.previous) {
    return absl::InvalidArgumentError(
        "give --plan FILE (of refract partition --plan-out) or --previous");
  }
  REFRACT_ASSIGN_OR_RETURN(const auto model,
                           LoadModel(options.model, {.with_plan = false}));
  const std::string path =
      options.previous
          ? absl::StrCat(model->folder, "/", models::kFormerPlanFile)
          : options.plan;
  REFRACT_ASSIGN_OR_RETURN(const models::SplitPlan plan,
                           models::LoadPlan(model->graph, path));
  REFRACT_RETURN_IF_ERROR(base::Annotate(
      models::ActivatePlan(model->graph, model->digest, plan, model->folder),
      path));
  out << "activated: plan '" << plan.method << "' of " << path << " is now "
      << model->folder << "/" << models::kSplitPlanFile << "\n"
      << "running nodes keep the plan that they loaded; start GPU nodes again "
         "first, then CPU nodes\n";
  return absl::OkStatus();
}

}  // namespace

void AddActivateCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<ActivateOptions>();
  CLI::App* command = app.add_subcommand(
      "activate", "Makes a plan the version's, for nodes that load it later");
  command
      ->add_option("model", options->model,
                   "DIR/NAME or DIR/NAME/VERSION (without: the newest)")
      ->type_name("MODEL")
      ->required();
  CLI::Option* plan =
      command
          ->add_option("--plan", options->plan,
                       "plan that refract partition --plan-out has kept")
          ->type_name("FILE")
          ->check(CLI::ExistingFile);
  command
      ->add_flag("--previous", options->previous,
                 "the plan before the present one, which becomes the previous "
                 "one in turn")
      ->excludes(plan);
  SetAction(*command, context,
            [&context, options] { return Activate(*options, context.out); });
}

}  // namespace refract::tools
