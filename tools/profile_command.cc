#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "partitioner/profile.h"
#include "tools/bench_json.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/files.h"
#include "tools/loadgen/revision.h"
#include "tools/machine.h"
#include "tools/profile/profile_report.h"
#include "tools/profile/profiler.h"

namespace refract::tools {
namespace {

constexpr int kLeastRepetitions = 9;
constexpr size_t kLeastBatches = 3;
// Requests of more would not fit most machines.
constexpr int64_t kMaxBatch = int64_t{1} << 24;

struct ProfileOptions {
  std::string model;
  std::vector<int64_t> batches = {1, 16, 64, 256};
  int repetitions = 21;
  std::vector<std::string> inputs;
  std::vector<std::string> sizes;
  uint64_t seed = 1;
  std::string output;
  std::string json;
  std::vector<std::string> op_libraries;
};

absl::Status CheckOptions(ProfileOptions& options, const models::Graph& graph) {
  int64_t most = kMaxBatch;
  for (const models::SymbolRange& range : graph.symbols) {
    if (range.symbol == graph.batch_symbol) most = std::min(most, range.max);
  }
  std::sort(options.batches.begin(), options.batches.end());
  options.batches.erase(
      std::unique(options.batches.begin(), options.batches.end()),
      options.batches.end());
  for (const int64_t batch : options.batches) {
    if (batch < 1 || batch > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("--batch ", batch, ": must be from 1 to ", most));
    }
  }
  if (options.batches.size() < kLeastBatches) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch: ", options.batches.size(),
                     " sizes; costs are fitted to at least ", kLeastBatches));
  }
  if (options.repetitions < kLeastRepetitions) {
    return absl::InvalidArgumentError(
        absl::StrCat("--repeat ", options.repetitions, ": must be at least ",
                     kLeastRepetitions));
  }
  if (!options.inputs.empty() && !options.sizes.empty()) {
    return absl::InvalidArgumentError(
        "--size: the samples of --inputs say how large requests are");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RequestSource>> MakeSource(
    const ProfileOptions& options, const models::LoadedModel& model) {
  if (options.inputs.empty()) {
    REFRACT_ASSIGN_OR_RETURN(const auto sizes,
                             ParseSizes(options.sizes, model.graph));
    return RandomRequests(model.graph, sizes, options.seed);
  }
  std::vector<std::vector<base::Tensor>> samples;
  for (const std::string& path : options.inputs) {
    REFRACT_ASSIGN_OR_RETURN(samples.emplace_back(),
                             ReadInputs(path, model.graph));
  }
  auto source = SampledRequests(model.graph, std::move(samples), options.seed);
  if (!source.ok()) return base::Annotate(source.status(), "--inputs");
  return source;
}

void DescribeMachine(partitioner::Profile& profile) {
  const Machine machine = ReadMachine("/");
  profile.cpu = machine.cpu;
  profile.cpus = static_cast<uint32_t>(std::max(machine.cpus, 1));
  profile.memory_bytes = std::max<uint64_t>(machine.memory_bytes, 1);
  profile.kernel = machine.kernel;
  profile.revision = std::string(loadgen::BuiltRevision());
  profile.time = absl::FormatTime(absl::Now(), absl::UTCTimeZone());
}

// One line on a terminal, written over and over.
std::function<void(int, int)> Progress(std::ostream& err) {
  if (isatty(STDERR_FILENO) != 1) return nullptr;
  return [&err](int done, int of) {
    err << "\rmeasured " << done << " of " << of << " requests"
        << (done == of ? "\n" : "") << std::flush;
  };
}

// The profile that stands at `path`, if there is one that can be read.
std::optional<partitioner::Profile> FormerProfile(
    const std::string& path, const models::LoadedModel& model,
    std::ostream& out) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  auto former = partitioner::LoadProfile(path, model.graph, model.digest);
  if (former.ok()) return *std::move(former);
  out << "the former profile cannot be compared: "
      << OneLine(std::string(former.status().message())) << "\n";
  return std::nullopt;
}

absl::Status MeasureModel(ProfileOptions options, Context& context) {
  REFRACT_RETURN_IF_ERROR(LoadOpLibraries(options.op_libraries));
  // The plan plays no part here, good or bad.
  REFRACT_ASSIGN_OR_RETURN(const auto model,
                           LoadModel(options.model, {.with_plan = false}));
  const models::Graph& graph = model->graph;
  REFRACT_RETURN_IF_ERROR(CheckOptions(options, graph));
  REFRACT_ASSIGN_OR_RETURN(const std::unique_ptr<RequestSource> source,
                           MakeSource(options, *model));
  ProfilerOptions measure;
  measure.batches = options.batches;
  measure.repetitions = options.repetitions;
  measure.progress = Progress(context.err);
  REFRACT_ASSIGN_OR_RETURN(partitioner::Profile profile,
                           MeasureProfile(*model, *source, measure));
  DescribeMachine(profile);
  PrintProfile(graph, profile, context.out);

  const std::string path =
      options.output.empty()
          ? absl::StrCat(model->folder, "/", partitioner::kProfileFile)
          : options.output;
  std::optional<ProfileDrift> drift;
  if (const auto former = FormerProfile(path, *model, context.out)) {
    drift = CompareProfiles(graph, *former, profile);
    PrintDrift(*drift, context.out);
  }
  REFRACT_RETURN_IF_ERROR(
      WriteText(path, partitioner::ProfileToText(graph, profile)));
  context.out << "written: " << path << "\n";
  if (options.json.empty()) return absl::OkStatus();
  nlohmann::ordered_json json = BenchJson("profile");
  json["profile"] = ProfileToJson(graph, profile);
  json["drift"] = drift ? DriftToJson(*drift) : nlohmann::ordered_json();
  return WriteText(options.json,
                   json.dump(2, ' ', false,
                             nlohmann::ordered_json::error_handler_t::replace) +
                       "\n");
}

}  // namespace

void AddProfileCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* command = app.add_subcommand(
      "profile",
      "Measures what a model's operators take on this machine, for refract "
      "partition");
  command
      ->add_option("model", options->model,
                   "DIR/NAME or DIR/NAME/VERSION (without: the newest)")
      ->type_name("MODEL")
      ->required();
  command
      ->add_option("--batch", options->batches,
                   "items of a request; at least three sizes, in turns")
      ->type_name("N,N,N…")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option("--repeat", options->repetitions,
                   "requests per size, at least 9, each a fresh one")
      ->type_name("N");
  command
      ->add_option("--inputs", options->inputs,
                   "a request to draw items from; may be repeated; default: "
                   "random ids, uniform over whole tables")
      ->type_name("X.safetensors")
      ->default_str("")
      ->allow_extra_args(false);
  command->add_option("--seed", options->seed, "of what is drawn")
      ->type_name("N");
  AddSizeOption(*command, options->sizes);
  command
      ->add_option("--output", options->output,
                   "file for the profile; default: profile.textproto beside "
                   "the version, where refract partition finds it")
      ->type_name("FILE");
  command
      ->add_option("--json", options->json,
                   "also write all figures to this file as JSON")
      ->type_name("FILE");
  AddOpLibraryOption(*command, options->op_libraries);
  command->callback([&context, options] {
    context.action = [&context, options] {
      return MeasureModel(*options, context);
    };
  });
}

}  // namespace refract::tools
