#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/repository.h"
#include "models/split_plan.h"
#include "nlohmann/json.hpp"
#include "partitioner/ancestors.h"
#include "partitioner/heuristic.h"
#include "partitioner/optimal.h"
#include "partitioner/work.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/files.h"
#include "tools/model_summary.h"
#include "tools/split_conditions.h"
#include "tools/split_report.h"

namespace refract::tools {
namespace {

struct PartitionOptions {
  std::string model;
  std::string method = "heuristic";
  std::string json;
  std::vector<std::string> sizes;
  ConditionOptions conditions;
};

struct Planned {
  models::SplitPlan plan;
  // With --method optimal.
  std::optional<SplitConditions> conditions;
  std::optional<partitioner::OptimalSplit> split;
};

absl::StatusOr<Planned> MakePlan(
    const PartitionOptions& options, const models::LoadedModel& model,
    const absl::flat_hash_map<std::string, int64_t>& sizes) {
  const models::Graph& graph = model.graph;
  Planned planned;
  if (options.method == "optimal") {
    REFRACT_ASSIGN_OR_RETURN(planned.conditions,
                             MakeConditions(options.conditions, graph, sizes));
    REFRACT_ASSIGN_OR_RETURN(
        planned.split, partitioner::SplitOptimally(
                           graph, model.digest, planned.conditions->conditions,
                           planned.conditions->goal));
    planned.plan = planned.split->best.plan;
  } else if (options.method == "heuristic") {
    REFRACT_ASSIGN_OR_RETURN(
        planned.plan, partitioner::SplitHeuristically(graph, model.digest));
    REFRACT_ASSIGN_OR_RETURN(
        planned.plan,
        partitioner::SendSmallerAncestors(
            graph,
            partitioner::SizesForBatch(graph, options.conditions.batch, sizes),
            std::move(planned.plan)));
  } else if (options.method == "all-cn") {
    planned.plan = partitioner::AllCn(graph, model.digest);
  } else if (options.method == "all-hn") {
    REFRACT_ASSIGN_OR_RETURN(planned.plan,
                             partitioner::AllHn(graph, model.digest));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--method ", options.method,
                     ": unknown; use optimal, heuristic, all-cn or all-hn"));
  }
  return planned;
}

absl::Status Partition(const PartitionOptions& options, std::ostream& out) {
  // A plan of an earlier run, even a damaged one, is about to be replaced.
  REFRACT_ASSIGN_OR_RETURN(const auto model,
                           LoadModel(options.model, {.with_plan = false}));
  REFRACT_ASSIGN_OR_RETURN(const auto sizes,
                           ParseSizes(options.sizes, model->graph));
  REFRACT_ASSIGN_OR_RETURN(const Planned planned,
                           MakePlan(options, *model, sizes));
  const std::string path = absl::StrCat(model->folder, "/split_plan.pb");
  REFRACT_RETURN_IF_ERROR(models::SavePlan(model->graph, planned.plan, path));
  const ModelSummary summary = Summarize(*model, &planned.plan, sizes);
  PrintPlan(*summary.plan, out);
  if (planned.split) {
    PrintSplit(model->graph, *planned.conditions, *planned.split, out);
  }
  out << "written: " << path << "\n";
  if (options.json.empty()) return absl::OkStatus();
  if (!planned.split) return WriteText(options.json, ToJson(summary));
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(ToJson(summary));
  json["partition"] = nlohmann::ordered_json::parse(
      SplitToJson(model->graph, *planned.conditions, *planned.split));
  return WriteText(options.json, json.dump(2) + "\n");
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
                   "optimal: the least cost under the conditions below; "
                   "heuristic: grow the HN part from the dense operators; "
                   "all-cn: no split; all-hn: as much on the HN as may be")
      ->type_name("optimal|heuristic|all-cn|all-hn");
  command
      ->add_option("--json", options->json,
                   "also write the model's facts, the plan and, with optimal, "
                   "all costs to this file as JSON")
      ->type_name("FILE");
  AddConditionOptions(*command, options->conditions);
  AddSizeOption(*command, options->sizes);
  command->callback([&context, options] {
    context.action = [&context, options] {
      return Partition(*options, context.out);
    };
  });
}

}  // namespace refract::tools
