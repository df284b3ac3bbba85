#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/repository.h"
#include "runtime/split_run.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/files.h"
#include "tools/reference.h"

namespace refract::tools {
namespace {

struct RunOptions {
  std::string model;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::string mode = "whole";
  std::string device = "cpu";
  std::vector<std::string> op_libraries;
};

absl::Status CheckOptions(const RunOptions& options) {
  if (options.inputs.size() != options.outputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.inputs.size(), " --inputs but ",
                     options.outputs.size(), " --outputs: give them in pairs"));
  }
  if (options.mode != "whole" && options.mode != "split" &&
      options.mode != "reference") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--mode ", options.mode, ": unknown; use whole, split or reference"));
  }
  if (options.device == "cuda") {
    return absl::UnimplementedError(
        "--device cuda: this build has no CUDA code; use cpu");
  }
  if (options.device != "cpu") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device ", options.device, ": unknown; use cpu"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<runtime::RequestRunner>> MakeRunner(
    const RunOptions& options, const models::LoadedModel& model) {
  runtime::CompileOptions compile;
  compile.config = model.config;
  if (options.mode == "whole") {
    return runtime::RequestRunner::Whole(model.graph, model.weights, compile);
  }
  if (!model.plan) {
    return absl::FailedPreconditionError(absl::StrCat(
        model.folder, ": has no split plan yet; run refract partition first"));
  }
  return runtime::RequestRunner::Split(model.graph, *model.plan, model.weights,
                                       compile);
}

absl::Status RunReferenceMode(const RunOptions& options,
                              const models::LoadedModel& model) {
  ReferenceRun run{.model_file = model.source_file,
                   .inputs = options.inputs,
                   .outputs = options.outputs,
                   .op_libraries = options.op_libraries};
  std::string tables = absl::StrCat(model.folder, "/tables");
  std::error_code error;
  if (std::filesystem::is_directory(tables, error)) {
    run.tables_dir = std::move(tables);
  }
  return RunReference(run);
}

absl::Status Run(const RunOptions& options, std::ostream& out) {
  REFRACT_RETURN_IF_ERROR(CheckOptions(options));
  // The reference process loads the libraries itself.
  if (options.mode != "reference") {
    REFRACT_RETURN_IF_ERROR(LoadOpLibraries(options.op_libraries));
  }
  REFRACT_ASSIGN_OR_RETURN(const auto model, LoadModel(options.model));
  if (options.mode == "reference") return RunReferenceMode(options, *model);

  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<runtime::RequestRunner> runner,
                           MakeRunner(options, *model));
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    REFRACT_ASSIGN_OR_RETURN(const std::vector<base::Tensor> inputs,
                             ReadInputs(options.inputs[i], model->graph));
    runtime::RunStats stats;
    const auto outputs = runner->Run(ViewsOf(inputs), &stats);
    if (!outputs.ok()) {
      return base::Annotate(outputs.status(), options.inputs[i]);
    }
    REFRACT_RETURN_IF_ERROR(
        WriteOutputs(options.outputs[i], model->graph, ViewsOf(*outputs)));
    if (stats.replaced_ids > 0) {
      out << options.inputs[i] << ": " << stats.replaced_ids
          << " ids outside their tables were replaced by the id policy\n";
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AddRunCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand(
      "run", "Runs a model on requests in files, in this process");
  command
      ->add_option("model", options->model,
                   "DIR/NAME or DIR/NAME/VERSION (without: the newest)")
      ->type_name("MODEL")
      ->required();
  command
      ->add_option("--inputs", options->inputs,
                   "one request: a tensor per input; may be repeated, each "
                   "with its --outputs")
      ->type_name("X.safetensors")
      ->default_str("")
      ->allow_extra_args(false)
      ->required();
  command
      ->add_option("--outputs", options->outputs, "file to write the scores to")
      ->type_name("Y.safetensors")
      ->default_str("")
      ->allow_extra_args(false)
      ->required();
  command
      ->add_option("--mode", options->mode,
                   "whole: one program; split: the plan's parts one after the "
                   "other; reference: PyTorch on the original file")
      ->type_name("whole|split|reference");
  command->add_option("--device", options->device, "where whole and split run")
      ->type_name("cpu|cuda");
  AddOpLibraryOption(*command, options->op_libraries);
  command->callback([&context, options] {
    context.action = [&context, options] { return Run(*options, context.out); };
  });
}

}  // namespace refract::tools
