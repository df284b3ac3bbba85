#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "gpu_node/device/compile_for_cuda.h"
#include "gpu_node/device/cuda_library.h"
#include "models/repository/files/safetensors.h"
#include "models/repository/model_config.h"
#include "models/repository/repository.h"
#include "models/repository/requests/request_files.h"
#include "partitioner/measure/scratch_folder.h"
#include "runtime/split_run.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/json_output.h"
#include "tools/run/reference.h"
#include "tools/run/run_report.h"

namespace refract::tools {
namespace {

struct RunOptions {
  std::string model;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  bool by_ids = false;
  std::string mode = "whole";
  std::string device = "cpu";
  std::string dense_weights;  // empty: as config.pbtxt says
  std::vector<std::string> op_libraries;
  JsonOutput json;
};

// The index of the GPU: "cuda" is "cuda:0"; nullopt for a text that names no
// GPU.
std::optional<int> CudaIndex(absl::string_view device) {
  if (device == "cuda") return 0;
  int index = 0;
  if (!absl::ConsumePrefix(&device, "cuda:") ||
      !absl::SimpleAtoi(device, &index) || index < 0) {
    return std::nullopt;
  }
  return index;
}

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
  if (!options.dense_weights.empty()) {
    if (!models::ParseDenseWeights(options.dense_weights)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--dense-weights ", options.dense_weights,
                       ": unknown; use fp32, bf16 or int8"));
    }
    if (options.mode == "reference") {
      return absl::InvalidArgumentError(
          "--dense-weights: PyTorch, which --mode reference runs, has fp32");
    }
  }
  if (options.device != "cpu" && !CudaIndex(options.device)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device ", options.device, ": unknown; use cpu, cuda or cuda:N"));
  }
  if (options.device != "cpu" && options.mode == "reference") {
    return absl::InvalidArgumentError(
        "--device: PyTorch, which --mode reference runs, stays on the CPU");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<runtime::RequestRunner>> MakeRunner(
    const RunOptions& options, const models::LoadedModel& model,
    models::DenseWeights form) {
  runtime::CompileOptions compile;
  compile.config = model.config;
  compile.config.dense_weights = form;
  runtime::RequestRunner::Compiler compiler = runtime::Program::Compile;
  if (const std::optional<int> index = CudaIndex(options.device)) {
    auto opened = gpu_node::OpenCudaDevice(*index);
    if (!opened.ok()) {
      return base::Annotate(opened.status(),
                            absl::StrCat("--device ", options.device));
    }
    // The compiler of the HN part, or of the whole model. It keeps the device
    // alive: programs refer to it.
    compiler =
        [device = std::shared_ptr<runtime::cuda::DeviceApi>(*std::move(opened)),
         name = absl::StrCat("cuda:", *index), index = *index,
         &model](const models::Graph& graph, const runtime::Part& part,
                 std::shared_ptr<const models::WeightStore> weights,
                 const runtime::CompileOptions& compile) {
          return gpu_node::CompileForCuda(
              device, graph, part, std::move(weights),
              {.model = model.name,
               .device = name,
               .compile = compile,
               .foreign = gpu_node::AtenOperatorsOn(index)});
        };
  }
  if (options.mode == "whole") {
    return runtime::RequestRunner::Whole(model.graph, model.weights, compile,
                                         compiler);
  }
  if (!model.plan) {
    return absl::FailedPreconditionError(absl::StrCat(
        model.folder, ": has no split plan yet; run refract partition first"));
  }
  return runtime::RequestRunner::Split(model.graph, *model.plan, model.weights,
                                       compile, compiler);
}

absl::string_view NameOf(models::DenseWeights form) {
  switch (form) {
    case models::DenseWeights::kBFloat16:
      return "bf16";
    case models::DenseWeights::kInt8:
      return "int8";
    case models::DenseWeights::kFloat32:
      break;
  }
  return "fp32";
}

double PackedMebibytes(const runtime::RequestRunner& runner) {
  size_t bytes = 0;
  for (const runtime::Program* program : runner.programs()) {
    bytes += program->packed_weight_bytes();
  }
  return static_cast<double>(bytes) / (1 << 20);
}

// How far float32 outputs are from those with fp32 weights, over all requests.
class OutputErrors {
 public:
  void Add(const std::vector<base::Tensor>& outputs,
           const std::vector<base::Tensor>& wanted) {
    errors_.resize(wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i].dtype() != base::DType::kFloat32) continue;
      const auto x = outputs[i].view().as<float>();
      const auto y = wanted[i].view().as<float>();
      Error& error = errors_[i];
      for (size_t j = 0; j < y.size(); ++j) {
        const double difference =
            std::abs(static_cast<double>(x[j]) - static_cast<double>(y[j]));
        // Infinity minus infinity is NaN: the same infinity on both sides, or
        // NaN on both, is no difference, though the subtraction says so.
        if (!std::isfinite(difference)) {
          const bool same =
              x[j] == y[j] || (std::isnan(x[j]) && std::isnan(y[j]));
          ++(same ? error.count : error.spoilt);
          continue;
        }
        ++error.count;
        error.most = std::max(error.most, difference);
        error.sum += difference;
        error.largest =
            std::max(error.largest, std::abs(static_cast<double>(y[j])));
      }
    }
  }

  void Print(const models::Graph& graph, absl::string_view form,
             std::ostream& out) const {
    for (size_t i = 0; i < errors_.size(); ++i) {
      const Error& error = errors_[i];
      if (error.count + error.spoilt == 0) continue;
      out << graph.output_names[i] << ": " << form
          << absl::StrFormat(
                 " weights change it by up to %.2g, on average %.2g (%d "
                 "values of up to %.3g)",
                 error.most,
                 error.sum / std::max(1.0, static_cast<double>(error.count)),
                 error.count, error.largest);
      if (error.spoilt > 0) {
        out << ", and " << error.spoilt
            << " become or cease to be NaN or infinite";
      }
      out << '\n';
    }
  }

 private:
  struct Error {
    double most = 0;
    double sum = 0;
    double largest = 0;
    int64_t count = 0;
    int64_t spoilt = 0;  // NaN or infinite here or there, in none of the above
  };
  std::vector<Error> errors_;
};

RunReport::Request RequestOf(const RunOptions& options, size_t i) {
  RunReport::Request request;
  request.inputs = options.inputs[i];
  request.outputs = options.outputs[i];
  return request;
}

absl::Status RunReferenceMode(const RunOptions& options,
                              const models::LoadedModel& model,
                              RunReport& report) {
  ReferenceRun run{.model_file = model.source_file,
                   .inputs = options.inputs,
                   .outputs = options.outputs,
                   .op_libraries = options.op_libraries};
  // PyTorch takes row numbers, so requests with ids are rewritten into files of
  // their own. The folder must outlive RunReference().
  std::optional<partitioner::ScratchFolder> scratch;
  if (options.by_ids) {
    REFRACT_ASSIGN_OR_RETURN(scratch,
                             partitioner::ScratchFolder::Create("refract-run"));
    for (size_t i = 0; i < run.inputs.size(); ++i) {
      REFRACT_ASSIGN_OR_RETURN(const std::vector<base::Tensor> inputs,
                               ReadRequest(run.inputs[i], model, true));
      std::vector<std::pair<std::string, base::TensorView>> tensors;
      for (size_t k = 0; k < inputs.size(); ++k) {
        tensors.emplace_back(model.graph.value(model.graph.inputs[k]).name,
                             inputs[k].view());
      }
      run.inputs[i] = *scratch / absl::StrCat(i, ".safetensors");
      REFRACT_RETURN_IF_ERROR(models::WriteSafetensors(run.inputs[i], tensors));
    }
  }
  // Versions with tables beside the model have stand-ins in the source file.
  std::string tables = absl::StrCat(model.folder, "/tables");
  std::error_code error;
  if (std::filesystem::is_directory(tables, error)) {
    run.tables_dir = std::move(tables);
  }
  REFRACT_ASSIGN_OR_RETURN(const std::vector<absl::Status> ran,
                           RunReference(run));
  for (size_t i = 0; i < ran.size(); ++i) {
    RunReport::Request request = RequestOf(options, i);
    if (!ran[i].ok()) {
      report.AddFailed(request, ran[i]);
      continue;
    }
    REFRACT_ASSIGN_OR_RETURN(const models::SafetensorsFile file,
                             models::SafetensorsFile::Open(run.outputs[i]));
    for (const models::SafetensorsEntry& entry : file.entries()) {
      request.names.push_back(entry.name);
      const base::TensorView view = file.View(entry);
      request.specs.push_back({view.dtype, view.dims});
    }
    report.Add(request);
  }
  return absl::OkStatus();
}

// Runs request `i` and writes its outputs; `exact` may be null.
absl::Status RunOne(const RunOptions& options, size_t i,
                    const models::LoadedModel& model,
                    runtime::RequestRunner& runner,
                    runtime::RequestRunner* exact, OutputErrors& errors,
                    RunReport::Request& request) {
  REFRACT_ASSIGN_OR_RETURN(
      const std::vector<base::Tensor> inputs,
      ReadRequest(options.inputs[i], model, options.by_ids));
  runtime::RunStats stats;
  const absl::Time begin = absl::Now();
  const auto outputs = runner.Run(models::ViewsOf(inputs), &stats);
  // The time of the run alone, without reading and writing files.
  request.elapsed = absl::Now() - begin;
  if (!outputs.ok()) {
    return base::Annotate(outputs.status(), options.inputs[i]);
  }
  REFRACT_RETURN_IF_ERROR(models::WriteOutputs(options.outputs[i], model.graph,
                                               models::ViewsOf(*outputs)));
  if (exact != nullptr) {
    REFRACT_ASSIGN_OR_RETURN(const auto wanted,
                             exact->Run(models::ViewsOf(inputs), nullptr));
    errors.Add(*outputs, wanted);
  }
  request.names = model.graph.output_names;
  for (const base::Tensor& output : *outputs) {
    request.specs.push_back({output.dtype(), output.view().dims});
  }
  request.replaced_ids = stats.replaced_ids;
  return absl::OkStatus();
}

absl::Status Finish(const RunOptions& options, const RunReport& report) {
  if (!options.json.empty()) {
    REFRACT_RETURN_IF_ERROR(options.json.Write(report.json()));
  }
  return report.status();
}

absl::Status Run(const RunOptions& options, std::ostream& out) {
  REFRACT_RETURN_IF_ERROR(CheckOptions(options));
  // The reference process loads the libraries itself.
  if (options.mode != "reference") {
    REFRACT_RETURN_IF_ERROR(LoadOpLibraries(options.op_libraries));
  }
  REFRACT_ASSIGN_OR_RETURN(const auto model, LoadModel(options.model));
  const models::DenseWeights form =
      models::ParseDenseWeights(options.dense_weights)
          .value_or(model->config.dense_weights);
  RunReport report(
      {{"model", model->name},
       {"version", model->version},
       {"mode", options.mode},
       {"device", options.device},
       {"dense_weights",
        options.mode == "reference" ? "fp32" : std::string(NameOf(form))}},
      options.inputs.size(), out);
  if (options.mode == "reference") {
    REFRACT_RETURN_IF_ERROR(RunReferenceMode(options, *model, report));
    return Finish(options, report);
  }
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<runtime::RequestRunner> runner,
                           MakeRunner(options, *model, form));
  // The exact runner runs beside the rounded weights, so that the report can
  // say how rounding changes the scores.
  std::unique_ptr<runtime::RequestRunner> exact;
  if (form != models::DenseWeights::kFloat32) {
    REFRACT_ASSIGN_OR_RETURN(
        exact, MakeRunner(options, *model, models::DenseWeights::kFloat32));
    out << absl::StrFormat("dense weights: %s, %.2f MiB instead of %.2f\n",
                           NameOf(form), PackedMebibytes(*runner),
                           PackedMebibytes(*exact));
  }
  OutputErrors errors;
  for (size_t i = 0; i < options.inputs.size(); ++i) {
    RunReport::Request request = RequestOf(options, i);
    const absl::Status ran =
        RunOne(options, i, *model, *runner, exact.get(), errors, request);
    // A request that fails does not end the others: the report names each, and
    // its status decides the exit status.
    if (ran.ok()) {
      report.Add(request);
    } else {
      report.AddFailed(request, ran);
    }
  }
  if (exact != nullptr) errors.Print(model->graph, NameOf(form), out);
  return Finish(options, report);
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
      ->check(base::CheckOutputFile)
      ->default_str("")
      ->allow_extra_args(false)
      ->required();
  AddByIdsOption(*command, options->by_ids);
  command
      ->add_option("--mode", options->mode,
                   "whole: one program; split: the plan's parts one after the "
                   "other; reference: PyTorch on the original file")
      ->type_name("whole|split|reference");
  command
      ->add_option("--device", options->device,
                   "where --mode whole runs, and --mode split its HN part; a "
                   "GPU in the type of gpu_precision in config.pbtxt")
      ->type_name("cpu|cuda|cuda:N");
  command
      ->add_option("--dense-weights", options->dense_weights,
                   "how dense layers keep their weights; prints what bf16 and "
                   "int8 change. Default: as config.pbtxt says")
      ->type_name("fp32|bf16|int8")
      ->default_str("");
  options->json.AddTo(*command, context, "a report on each request");
  AddOpLibraryOption(*command, options->op_libraries);
  SetAction(*command, context,
            [&context, options] { return Run(*options, context.out); });
}

}  // namespace refract::tools
