// The engine on one CPU thread beside LibTorch, as ratios of one run.
//
//   bench_runtime layers [--batches 1,16,64,256,1024]
//       MLPerf-v1's MLPs against at::linear + relu_, and against a loop of
//       fused multiply-adds
//   bench_runtime models DIR [--names a,b] [--batches 1,64]
//       whole models, against frozen TorchScript and AOTInductor where it is
//       there; DIR is what bench/runtime/prepare.py made
//   bench_runtime beside DIR [--names a,b] [--batches 1,64] [--busy 1]
//       what requests take beside processes that keep processors busy
//
// Variants take turns, so that a slow moment of the machine meets all of them;
// a ratio is taken within each round. Results are compared before anything is
// timed. JSON goes to stdout, or to --json FILE. Exit status: 2 bad usage or
// input, 1 results that differ.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/number_range.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "bench/runtime/baseline.h"
#include "bench/runtime/busy_processes.h"
#include "bench/runtime/layers.h"
#include "bench/runtime/timing.h"
#include "models/repository/files/safetensors.h"
#include "models/repository/repository.h"
#include "runtime/batch_padding.h"
#include "runtime/cpu/dense/tile.h"
#include "runtime/program.h"
#include "runtime/tensor_elements.h"
#include "runtime/torch/caller.h"
#include "tools/bench_json.h"

namespace refract::bench {
namespace {

constexpr double kTolerance = 1e-4;
constexpr double kRoundedTolerance = 0.1;

// A model made by prepare.py, its inputs for one batch, and its program.
struct Prepared {
  std::shared_ptr<const models::LoadedModel> model;
  std::vector<base::Tensor> tensors;
  std::vector<base::TensorView> inputs;
  std::unique_ptr<const runtime::Program> program;
  // The node's padding around each request (runtime/batch_padding.h).
  std::optional<runtime::BatchPadding> padding;

  absl::Status Run(runtime::RunContext& context, runtime::PaddedBatch& batch,
                   std::vector<base::TensorView>& outputs) const {
    REFRACT_RETURN_IF_ERROR(padding->Pad(inputs, batch));
    REFRACT_RETURN_IF_ERROR(program->Run(batch.inputs(), {}, context, outputs));
    padding->Trim(batch, absl::MakeSpan(outputs));
    return absl::OkStatus();
  }
};

// The elements as LibTorch converts them.
std::vector<float> FloatsOf(const base::TensorView& tensor) {
  std::vector<float> floats;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    floats.push_back(runtime::NumberAt<float>(tensor, i));
  }
  return floats;
}

// The largest difference of all outputs.
absl::StatusOr<double> LargestDifference(
    absl::Span<const base::TensorView> ours,
    const std::vector<std::vector<float>>& theirs) {
  if (ours.size() != theirs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(ours.size(), " outputs, unlike ", theirs.size()));
  }
  double most = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    most = std::max(most, Difference(FloatsOf(ours[i]), theirs[i]));
  }
  return most;
}

absl::StatusOr<Prepared> Prepare(const std::string& folder,
                                 const std::string& name, int64_t batch,
                                 models::DenseWeights weights) {
  Prepared prepared;
  REFRACT_ASSIGN_OR_RETURN(
      prepared.model,
      models::Repository(absl::StrCat(folder, "/repo")).Load(name));
  const models::Graph& graph = prepared.model->graph;
  REFRACT_ASSIGN_OR_RETURN(
      const auto file,
      models::SafetensorsFile::Open(
          absl::StrCat(folder, "/", name, "/batch", batch, ".safetensors")));
  for (const models::ValueId id : graph.inputs) {
    const auto* entry = file.Find(graph.value(id).name);
    if (entry == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("no input '", graph.value(id).name, "'"));
    }
    REFRACT_ASSIGN_OR_RETURN(base::Tensor tensor,
                             base::Tensor::CopyOf(file.View(*entry)));
    prepared.tensors.push_back(std::move(tensor));
  }
  for (const auto& tensor : prepared.tensors) {
    prepared.inputs.push_back(tensor.view());
  }
  models::ModelConfig config = prepared.model->config;
  config.dense_weights = weights;
  REFRACT_ASSIGN_OR_RETURN(
      prepared.program,
      runtime::Program::Compile(graph, runtime::Part::Whole(graph),
                                prepared.model->weights, {.config = config}));
  prepared.padding.emplace(graph);
  return prepared;
}

// Forms of TorchScript. Which is faster depends on model and batch.
constexpr char kFrozen[] = "torchscript_frozen";
constexpr char kOptimized[] = "torchscript_optimized";

// The result in `row` with the smaller median, and its label as `form`. `b` may
// be missing.
Json Faster(const Json& row, const char* a, const char* b) {
  const auto median = [&](const char* label) {
    return row[label]["us"]["median"].get<double>();
  };
  const char* const faster = row.contains(b) && median(b) < median(a) ? b : a;
  Json result = row[faster];
  result["form"] = faster;
  return result;
}

int RunModel(const std::string& folder, const std::string& name, int64_t batch,
             models::DenseWeights weights, int rounds, Clock clock,
             Json& json) {
  const std::string stem = absl::StrCat(folder, "/", name, "/", name);
  const auto fail = [&](const absl::Status& status) {
    std::fprintf(stderr, "bench_runtime: %s: %s\n", name.c_str(),
                 std::string(status.message()).c_str());
    return 2;
  };
  const auto prepared = Prepare(folder, name, batch, weights);
  if (!prepared.ok()) return fail(prepared.status());
  const models::LoadedModel* const model = prepared->model.get();
  const runtime::Program* const program = prepared->program.get();
  runtime::RunContext context(*program);
  runtime::PaddedBatch padded;
  std::vector<base::TensorView> outputs;
  absl::Status status;
  const auto ours = [&] { status = prepared->Run(context, padded, outputs); };
  ours();
  if (!status.ok()) return fail(status);
  std::vector<std::pair<std::string, std::unique_ptr<Baseline>>> baselines;
  for (const bool optimized : {false, true}) {
    auto script = LoadTorchScript(stem + ".pt", optimized);
    if (!script.ok()) return fail(script.status());
    baselines.emplace_back(optimized ? kOptimized : kFrozen,
                           *std::move(script));
  }
  if (std::ifstream(stem + ".aoti.pt2").good()) {
    auto package = LoadAotPackage(stem + ".aoti.pt2");
    if (!package.ok()) return fail(package.status());
    baselines.emplace_back("aotinductor", *std::move(package));
  }
  std::vector<Variant> variants = {{"refract", ours}};
  Json row = {{"model", name}, {"batch", batch}};
  const bool rounds_weights = weights != models::DenseWeights::kFloat32;
  for (auto& [label, baseline] : baselines) {
    Baseline* const other = baseline.get();
    other->Bind(prepared->inputs);
    // The profiling executor specialises in the first runs.
    for (int i = 0; i < 3; ++i) other->Run();
    const auto compared = LargestDifference(outputs, other->Results());
    if (!compared.ok()) return fail(compared.status());
    const double difference = *compared;
    row["largest_difference"][label] = difference;
    // The effect of rounded weights is a result, not a fault.
    if (difference > (rounds_weights ? kRoundedTolerance : kTolerance)) {
      // Optimising numerics may change scores (models/zoo/README.md): such a
      // model is compared with the frozen form alone.
      if (label == kOptimized) continue;
      std::fprintf(stderr, "bench_runtime: %s: differs from %s by %g\n",
                   name.c_str(), label.c_str(), difference);
      return 1;
    }
    variants.emplace_back(label, [other] { other->Run(); });
  }
  row.update(Compare(variants, rounds, clock));
  row["torchscript"] = Faster(row, kFrozen, kOptimized);
  // Medians of single runs per step, the costliest steps first.
  const auto steps = program->steps();
  std::vector<std::vector<int64_t>> spent(steps.size());
  for (int i = 0; i < 21; ++i) {
    runtime::StepTimes times;
    status = program->RunTimed(padded.inputs(), {}, context, outputs, times);
    if (!status.ok()) return fail(status);
    for (size_t s = 0; s < steps.size(); ++s) {
      spent[s].push_back(times.steps[s]);
    }
  }
  std::vector<std::pair<int64_t, std::string>> costs;
  for (size_t s = 0; s < steps.size(); ++s) {
    std::sort(spent[s].begin(), spent[s].end());
    costs.emplace_back(
        spent[s][10],
        absl::StrCat(steps[s].kernel, " (",
                     model->graph.nodes[steps[s].nodes.front()].name, ")"));
  }
  std::sort(costs.rbegin(), costs.rend());
  row["num_steps"] = steps.size();
  int64_t all_steps = 0;
  for (const auto& cost : costs) all_steps += cost.first;
  row["all_steps_us"] = static_cast<double>(all_steps) / 1e3;
  for (size_t s = 0; s < std::min<size_t>(costs.size(), 12); ++s) {
    row["costliest_steps_us"][costs[s].second] =
        static_cast<double>(costs[s].first) / 1e3;
  }
  json["models"].push_back(row);
  return 0;
}

// One thread, one request after the other, with and without busy processes
// beside it in turns of `seconds`. The times of requests are compared.
int RunBeside(const std::string& folder, const std::string& name, int64_t batch,
              int rounds, double seconds, BusyProcesses& neighbours,
              Json& json) {
  const auto fail = [&](const absl::Status& status) {
    std::fprintf(stderr, "bench_runtime: %s: %s\n", name.c_str(),
                 std::string(status.message()).c_str());
    return 2;
  };
  const auto prepared =
      Prepare(folder, name, batch, models::DenseWeights::kFloat32);
  if (!prepared.ok()) return fail(prepared.status());
  runtime::RunContext context(*prepared->program);
  runtime::PaddedBatch padded;
  std::vector<base::TensorView> outputs;
  absl::Status status;
  const auto run = [&] { status = prepared->Run(context, padded, outputs); };
  for (int i = 0; i < 3; ++i) run();
  if (!status.ok()) return fail(status);
  std::vector<double> all[2];  // microseconds
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    double p99[2] = {};
    // The first variant changes with the round.
    for (const int busy : {round % 2, 1 - round % 2}) {
      if (busy == 1) neighbours.Go();
      std::vector<double> took;
      double spent = 0;
      while (spent < seconds) {
        took.push_back(Seconds(run, 1));
        spent += took.back();
      }
      if (busy == 1) neighbours.Stop();
      for (double each : took) all[busy].push_back(each * 1e6);
      p99[busy] = Percentile(took, 0.99);
    }
    ratios.push_back(p99[1] / p99[0]);
  }
  Json row = {{"model", name}, {"batch", batch}};
  for (const int busy : {0, 1}) {
    Json& each = row[busy == 1 ? "beside_busy" : "alone"];
    each["requests"] = all[busy].size();
    for (const auto& [label, p] : {std::pair{"p50_us", 0.5},
                                   {"p90_us", 0.9},
                                   {"p99_us", 0.99},
                                   {"p99.9_us", 0.999}}) {
      each[label] = Percentile(all[busy], p);
    }
  }
  row["p99_beside_over_alone"] = row["beside_busy"]["p99_us"].get<double>() /
                                 row["alone"]["p99_us"].get<double>();
  row["p99_ratio_per_round"] = Quartiles(ratios);
  json["beside"].push_back(row);
  return 0;
}

// Geometric means of the first quartiles' ratios, and the least of them.
void Summarise(Json& json) {
  for (const char* label : {"torchscript", "aotinductor"}) {
    std::map<int64_t, std::vector<double>> ratios;
    for (const Json& row : json["models"]) {
      if (!row.contains(label)) continue;
      ratios[row["batch"].get<int64_t>()].push_back(
          row[label]["time_over_refract"]["q25"].get<double>());
    }
    for (const auto& [batch, values] : ratios) {
      // The geometric mean: a ratio and its reverse then cancel out.
      double logs = 0;
      for (double value : values) logs += std::log(value);
      json["summary"].push_back(
          {{"against", label},
           {"batch", batch},
           {"geometric_mean",
            std::exp(logs / static_cast<double>(values.size()))},
           {"least", *std::min_element(values.begin(), values.end())},
           {"models", values.size()}});
    }
  }
}

int Main(int argc, char** argv) {
  CLI::App app("The engine on one CPU thread beside LibTorch.");
  app.option_defaults()->always_capture_default();
  app.require_subcommand(1);
  std::vector<int64_t> batches;
  std::vector<std::string> names = {"dlrm",   "dlrm_dcnv2", "wide_deep",
                                    "deepfm", "din",        "two_tower"};
  std::string folder;
  std::string file;
  int rounds = 21;
  auto* const layers = app.add_subcommand("layers", "MLPerf-v1's MLPs");
  auto* const whole = app.add_subcommand("models", "whole models");
  whole->add_option("dir", folder, "folder that bench/runtime/prepare.py made")
      ->required();
  whole->add_option("--names", names, "names of the models")->delimiter(',');
  const std::map<std::string, models::DenseWeights> forms = {
      {"fp32", models::DenseWeights::kFloat32},
      {"bf16", models::DenseWeights::kBFloat16},
      {"int8", models::DenseWeights::kInt8}};
  auto weights = models::DenseWeights::kFloat32;
  whole
      ->add_option("--dense-weights", weights,
                   "of Refract's dense layers: fp32, bf16 or int8")
      ->transform(CLI::CheckedTransformer(forms))
      ->default_str("fp32");
  bool thread_time = false;
  for (auto* command : {layers, whole}) {
    command->add_flag("--thread-time", thread_time,
                      "the thread's processor time instead of the clock's, "
                      "where others use the machine too");
  }
  auto* const beside = app.add_subcommand(
      "beside", "requests beside busy processes of the same machine");
  double seconds = 0.5;
  int busy = 1;
  beside->add_option("dir", folder, "folder that bench/runtime/prepare.py made")
      ->required();
  beside->add_option("--names", names, "names of the models")->delimiter(',');
  beside->add_option("--busy", busy, "number of busy processes")
      ->check(CLI::Range(1, 1024));
  beside
      ->add_option("--seconds", seconds,
                   "seconds of one turn with or without busy processes")
      ->check(base::NumberIn(0.01, 600.0));
  for (auto* command : {layers, whole, beside}) {
    command->add_option("--batches", batches, "items per request")
        ->delimiter(',')
        ->check(base::NumberIn(1, 1 << 20));
    command->add_option("--rounds", rounds, "repetitions, at least 5")
        ->check(CLI::Range(5, 10000));
    command->add_option("--json", file, "file to write the result to")
        ->check(base::CheckOutputFile);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  // Before anything starts a thread.
  BusyProcesses neighbours(beside->parsed() ? busy : 0);
  if (beside->parsed() && neighbours.count() < busy) {
    std::fprintf(stderr, "bench_runtime: only %d of %d processes started\n",
                 neighbours.count(), busy);
    return 1;
  }
  runtime::aten::UseOneThread();
  Json json = tools::BenchJson("runtime");
  const Clock clock = thread_time ? &ThreadSeconds : &ClockSeconds;
  if (thread_time) json["time"] = "of the thread";
  json["isa"] = runtime::cpu::ChosenTileSet().name;
  for (const char* limit : {"ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS",
                            "ONEDNN_MAX_CPU_ISA"}) {
    const char* const value = std::getenv(limit);
    if (value != nullptr) json["libtorch_limits"][limit] = value;
  }
  int status = 0;
  if (layers->parsed()) {
    if (batches.empty()) batches = {1, 16, 64, 256, 1024};
    status = RunLayers(batches, rounds, clock, json);
  } else if (beside->parsed()) {
    if (batches.empty()) batches = {1, 64};
    json["busy_processes"] = busy;
    json["rounds"] = rounds;
    json["seconds_per_turn"] = seconds;
    for (const std::string& name : names) {
      for (const int64_t batch : batches) {
        status = std::max(status, RunBeside(folder, name, batch, rounds,
                                            seconds, neighbours, json));
      }
    }
  } else {
    if (batches.empty()) batches = {1, 64};
    for (const auto& [label, form] : forms) {
      if (form == weights) json["dense_weights"] = label;
    }
    for (const std::string& name : names) {
      for (const int64_t batch : batches) {
        // A failure does not keep the others from being measured.
        status = std::max(status, RunModel(folder, name, batch, weights, rounds,
                                           clock, json));
      }
    }
    Summarise(json);
  }
  if (file.empty()) {
    std::cout << base::FormatJson(json, 2) << "\n";
  } else if (!(std::ofstream(file) << base::FormatJson(json, 2) << "\n")) {
    std::fprintf(stderr, "bench_runtime: cannot write %s\n", file.c_str());
    return 2;
  }
  return status;
}

}  // namespace
}  // namespace refract::bench

int main(int argc, char** argv) { return refract::bench::Main(argc, argv); }
