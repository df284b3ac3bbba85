#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/repository.h"
#include "models/split_plan.h"
#include "partitioner/heuristic.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/files.h"
#include "tools/model_summary.h"

namespace refract::tools {
namespace {

struct PartitionOptions {
  std::string model;
  std::string method = "heuristic";
  std::string json;
  std::vector<std::string> sizes;
};

absl::StatusOr<models::SplitPlan> MakePlan(const std::string& method,
                                           const models::LoadedModel& model) {
  if (method == "heuristic") {
    return partitioner::SplitHeuristically(model.graph, model.digest);
  }
  if (method == "all-cn") return partitioner::AllCn(model.graph, model.digest);
  if (method == "all-hn") return partitioner::AllHn(model.graph, model.digest);
  if (method == "optimal") {
    return absl::UnimplementedError(
        "--method optimal: this version has no cost-based partitioner; use "
        "heuristic, all-cn or all-hn");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--method ", method, ": unknown; use heuristic, all-cn or all-hn"));
}

absl::Status Partition(const PartitionOptions& options, std::ostream& out) {
  // A plan of an earlier run, even a damaged one, is about to be replaced.
  REFRACT_ASSIGN_OR_RETURN(const auto model,
                           LoadModel(options.model, {.with_plan = false}));
  REFRACT_ASSIGN_OR_RETURN(const auto sizes,
                           ParseSizes(options.sizes, model->graph));
  REFRACT_ASSIGN_OR_RETURN(const models::SplitPlan plan,
                           MakePlan(options.method, *model));
  const std::string path = absl::StrCat(model->folder, "/split_plan.pb");
  REFRACT_RETURN_IF_ERROR(models::SavePlan(model->graph, plan, path));
  const ModelSummary summary = Summarize(*model, &plan, sizes);
  PrintPlan(*summary.plan, out);
  out << "written: " << path << "\n";
  if (options.json.empty()) return absl::OkStatus();
  return WriteText(options.json, ToJson(summary));
}

}  // namespace

void AddPartitionCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<PartitionOptions>();
  CLI::App* command = app.add_subcommand(
      "partition",
      "Cuts a model into its CN and HN parts and writes the plan beside it");
  command
      ->add_option("model", options->model,
                   "DIR/NAME or DIR/NAME/VERSION (without: the newest)")
      ->type_name("MODEL")
      ->required();
  command
      ->add_option("--method", options->method,
                   "heuristic: grow the HN part from the dense operators; "
                   "all-cn: no split; all-hn: as much on the HN as may be")
      ->type_name("heuristic|all-cn|all-hn");
  command
      ->add_option("--json", options->json,
                   "also write the model's facts and the plan to this file "
                   "as JSON")
      ->type_name("FILE");
  AddSizeOption(*command, options->sizes);
  command->callback([&context, options] {
    context.action = [&context, options] {
      return Partition(*options, context.out);
    };
  });
}

}  // namespace refract::tools
