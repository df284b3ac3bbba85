#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "base/status_macros.h"
#include "models/repository/repository.h"
#include "runtime/program.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/inspect/model_summary.h"
#include "tools/json_output.h"
#include "tools/sizes.h"

namespace refract::tools {
namespace {

struct InspectOptions {
  std::string model;
  JsonOutput json;
  std::vector<std::string> sizes;
  std::vector<std::string> op_libraries;
  bool verbose = false;
};

absl::Status PrintSteps(const models::LoadedModel& model, std::ostream& out) {
  runtime::CompileOptions options;
  options.config = model.config;
  REFRACT_ASSIGN_OR_RETURN(
      const std::unique_ptr<const runtime::Program> program,
      runtime::Program::Compile(model.graph, runtime::Part::Whole(model.graph),
                                model.weights, options));
  out << "steps of the unsplit program\n";
  for (const std::string& step : program->Describe()) {
    out << "  " << step << "\n";
  }
  return absl::OkStatus();
}

absl::Status Inspect(const InspectOptions& options, std::ostream& out,
                     std::ostream& err) {
  REFRACT_RETURN_IF_ERROR(LoadOpLibraries(options.op_libraries));
  REFRACT_ASSIGN_OR_RETURN(const auto model, LoadModel(options.model));
  REFRACT_ASSIGN_OR_RETURN(const AssumedSizes sizes,
                           AssumeSizes(options.sizes, *model));
  REFRACT_RETURN_IF_ERROR(CheckGivenSizes(model->graph, sizes.per_item));
  const ModelSummary summary =
      Summarize(*model, model->plan ? &*model->plan : nullptr, sizes.per_item);
  PrintSummary(summary, out);
  PrintSizes(sizes, out, err);
  if (options.verbose) REFRACT_RETURN_IF_ERROR(PrintSteps(*model, out));
  if (options.json.empty()) return absl::OkStatus();
  return options.json.WriteText(ToJson(summary));
}

}  // namespace

void AddInspectCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand(
      "inspect",
      "Shows a model's inputs, outputs, operators, tables, work per item and "
      "split plan");
  command
      ->add_option("model", options->model,
                   "DIR/NAME or DIR/NAME/VERSION (without: the newest)")
      ->type_name("MODEL")
      ->required();
  options->json.AddTo(*command, context, "the facts");
  AddSizeOption(*command, options->sizes);
  AddOpLibraryOption(*command, options->op_libraries);
  command->add_flag("--verbose", options->verbose,
                    "also list each step and the kernel that runs it");
  SetAction(*command, context, [&context, options] {
    return Inspect(*options, context.out, context.err);
  });
}

}  // namespace refract::tools
