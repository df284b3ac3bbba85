#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/process/files.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "partitioner/measure/hardware_probe.h"
#include "partitioner/measure/profiler.h"
#include "partitioner/measure/wire_probe.h"
#include "partitioner/profile/hardware.h"
#include "partitioner/profile/profile.h"
#include "runtime/batch_padding.h"
#include "tools/bench_json.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/doctor/machine.h"
#include "tools/json_output.h"
#include "tools/loadgen/request_maker.h"
#include "tools/loadgen/revision.h"
#include "tools/profile/profile_report.h"
#include "tools/progress.h"
#include "tools/sizes.h"

namespace refract::tools {
namespace {

constexpr int kLeastRepetitions = 9;
constexpr size_t kLeastBatches = 3;
constexpr uint64_t kMaxTableMib = uint64_t{1} << 20;
// Largest batch: larger requests would not fit most machines.
constexpr int64_t kMaxBatch = int64_t{1} << 24;

struct ProfileOptions {
  std::string model;
  std::vector<int64_t> batches = {1, 16, 64, 256};
  bool batches_given = false;
  int repetitions = 21;
  std::vector<std::string> inputs;
  bool by_ids = false;
  std::vector<std::string> sizes;
  uint64_t seed = 1;
  std::string output;
  JsonOutput json;
  std::string hardware;
  uint64_t table_mib = 1024;
  std::vector<std::string> op_libraries;
};

absl::Status CheckOptions(ProfileOptions& options, const models::Graph& graph) {
  // The model's own bound of the batch, if it states one.
  int64_t most = kMaxBatch;
  for (const models::SymbolRange& range : graph.symbols) {
    if (range.symbol == graph.batch_symbol) most = std::min(most, range.max);
  }
  const int64_t least = runtime::SmallestBatch(graph);
  // Defaults are changed to what the model takes; duplicates that this makes go
  // away below.
  if (!options.batches_given) {
    for (int64_t& batch : options.batches) {
      batch = std::max(std::min(batch, most), least);
    }
  }
  std::sort(options.batches.begin(), options.batches.end());
  options.batches.erase(
      std::unique(options.batches.begin(), options.batches.end()),
      options.batches.end());
  for (const int64_t batch : options.batches) {
    if (batch < least || batch > most) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--batch ", batch, ": must be from ", least, " to ", most));
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

absl::StatusOr<std::unique_ptr<partitioner::RequestSource>> MakeSource(
    const ProfileOptions& options, const models::LoadedModel& model,
    Context& context) {
  if (options.inputs.empty()) {
    REFRACT_ASSIGN_OR_RETURN(const AssumedSizes sizes,
                             AssumeSizes(options.sizes, model));
    PrintSizes(sizes, context.out, context.err);
    return partitioner::RandomRequests(model.graph, sizes.per_item,
                                       options.seed);
  }
  const auto read =
      [&]() -> absl::StatusOr<std::vector<std::vector<base::Tensor>>> {
    std::vector<std::vector<base::Tensor>> requests;
    for (const std::string& path : options.inputs) {
      REFRACT_ASSIGN_OR_RETURN(requests.emplace_back(),
                               ReadRequest(path, model, options.by_ids));
    }
    return requests;
  };
  REFRACT_ASSIGN_OR_RETURN(auto samples, read());
  auto source = partitioner::SampledRequests(model.graph, std::move(samples),
                                             options.seed);
  if (!absl::IsUnimplemented(source.status())) {
    if (!source.ok()) return base::Annotate(source.status(), "--inputs");
    return source;
  }
  const absl::Status why = source.status();
  // Once more: the first samples went into SampledRequests().
  REFRACT_ASSIGN_OR_RETURN(samples, read());
  source = partitioner::WholeRequests(model.graph, std::move(samples));
  if (!source.ok()) return base::Annotate(source.status(), "--inputs");
  const std::vector<int64_t> batches = (*source)->batches();
  if (options.batches_given || batches.size() < kLeastBatches) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--inputs: requests are used whole, because items cannot be drawn from "
        "them (",
        why.message(), "); their batch sizes are ",
        absl::StrJoin(batches, ", "),
        options.batches_given
            ? ", leave out --batch"
            : absl::StrCat(", and costs are fitted to at least ",
                           kLeastBatches)));
  }
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

// The profile at `path`, if it can be read.
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
  REFRACT_ASSIGN_OR_RETURN(
      const std::unique_ptr<partitioner::RequestSource> source,
      MakeSource(options, *model, context));
  partitioner::ProfilerOptions measure;
  measure.batches = source->batches();
  if (measure.batches.empty()) measure.batches = options.batches;
  measure.repetitions = options.repetitions;
  Progress progress(context.err);
  measure.progress = [&](int done, int of) {
    progress.Show(absl::StrCat("measured ", done, " of ", of, " requests"));
  };
  // Long enough for the processor to turn to others or to idle.
  measure.wait = +[] { absl::SleepFor(absl::Milliseconds(1)); };
  auto measured = partitioner::MeasureProfile(*model, *source, measure);
  if (!measured.ok()) {
    return options.inputs.empty()
               ? loadgen::WithOptionForFiles(measured.status(), "--inputs")
               : measured.status();
  }
  partitioner::Profile profile = *std::move(measured);
  REFRACT_ASSIGN_OR_RETURN(profile.wire,
                           partitioner::MeasureWireRates(measure.repetitions));
  DescribeMachine(profile);
  PrintProfile(graph, profile, context.out);

  // Before the file is written: a new profile usually replaces the former one,
  // and the comparison tells whether plans made with it still hold.
  const std::string path =
      options.output.empty()
          ? absl::StrCat(model->folder, "/", partitioner::kProfileFile)
          : options.output;
  std::optional<ProfileDrift> drift;
  if (const auto former = FormerProfile(path, *model, context.out)) {
    drift = CompareProfiles(graph, *former, profile);
    PrintDrift(*drift, context.out);
  }
  const std::string text = partitioner::ProfileToText(graph, profile);
  // The former profile stays where the disk is full.
  REFRACT_RETURN_IF_ERROR(base::ReplaceText(path, text));
  context.out << "written: " << path << "\n";
  if (options.json.empty()) return absl::OkStatus();
  nlohmann::ordered_json json = BenchJson("profile");
  json["profile"] = ProfileToJson(graph, profile);
  json["drift"] = drift ? DriftToJson(*drift) : nlohmann::ordered_json();
  return options.json.Write(json);
}

// The machine itself instead of a model.
absl::Status MeasureMachine(const ProfileOptions& options, Context& context) {
  if (!options.model.empty() || !options.inputs.empty() ||
      !options.sizes.empty() || !options.output.empty() ||
      !options.json.empty()) {
    return absl::InvalidArgumentError(
        "--hardware: measures this machine, and takes neither a model nor its "
        "options");
  }
  if (options.repetitions < kLeastRepetitions) {
    return absl::InvalidArgumentError(
        absl::StrCat("--repeat ", options.repetitions, ": must be at least ",
                     kLeastRepetitions));
  }
  if (options.table_mib < 1 || options.table_mib > kMaxTableMib) {
    return absl::InvalidArgumentError(
        absl::StrCat("--table-mib ", options.table_mib, ": must be from 1 to ",
                     kMaxTableMib));
  }
  partitioner::ProbeOptions probe;
  probe.name = std::filesystem::path(options.hardware).stem().string();
  const Machine machine = ReadMachine("/");
  probe.machine = {.cpu = machine.cpu,
                   .kernel = machine.kernel,
                   .cpus = machine.cpus,
                   .cache_bytes = machine.cache_bytes,
                   .memory_bytes = machine.memory_bytes,
                   .available_bytes = machine.available_bytes};
  probe.repetitions = options.repetitions;
  probe.table_bytes = options.table_mib << 20;
  Progress progress(context.err);
  probe.progress = [&](absl::string_view what) {
    progress.Show(absl::StrCat("measuring ", what));
  };
  REFRACT_ASSIGN_OR_RETURN(const std::string text,
                           partitioner::ProbeHardware(probe));
  REFRACT_RETURN_IF_ERROR(base::WriteText(options.hardware, text));
  // Checks that refract partition can read the file.
  const auto hardware = partitioner::ParseHardware(text, options.hardware);
  if (!hardware.ok()) return absl::InternalError(hardware.status().message());
  context.out << text << "written: " << options.hardware << "\n";
  return absl::OkStatus();
}

absl::Status RunProfile(const ProfileOptions& options, Context& context) {
  if (!options.hardware.empty()) return MeasureMachine(options, context);
  if (options.model.empty()) {
    return absl::InvalidArgumentError(
        "model is required, or --hardware to measure this machine");
  }
  return MeasureModel(options, context);
}

}  // namespace

void AddProfileCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* command =
      app.add_subcommand("profile",
                         "Measures the times of a model's operators on this "
                         "machine, for refract partition");
  command
      ->add_option("model", options->model,
                   "DIR/NAME or DIR/NAME/VERSION (without: the newest)")
      ->type_name("MODEL");
  command
      ->add_option("--batch", options->batches,
                   "batch sizes to measure, at least three; they take turns")
      ->type_name("N,N,N…")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      ->add_option("--repeat", options->repetitions,
                   "requests per batch size, at least 9, each fresh")
      ->type_name("N");
  command
      ->add_option(
          "--inputs", options->inputs,
          "request to draw items from; may be repeated; requests of "
          "three or more batch sizes are used whole where items cannot "
          "be drawn; default: random ids, uniform over whole tables")
      ->type_name("X.safetensors")
      ->default_str("")
      ->allow_extra_args(false);
  AddByIdsOption(*command, options->by_ids);
  command->add_option("--seed", options->seed, "seed of the random requests")
      ->type_name("N");
  AddSizeOption(*command, options->sizes);
  AddOutputFile(*command, "--output", options->output,
                "file for the profile; default: profile.textproto beside "
                "the version, where refract partition finds it");
  options->json.AddTo(*command, context, "all figures");
  AddOutputFile(*command, "--hardware", options->hardware,
                "instead of a model, measure this machine for --cn and --hn of "
                "refract partition, and describe it in this file")
      ->type_name("OUT.textproto");
  command
      ->add_option(
          "--table-mib", options->table_mib,
          "for --hardware: size of the table for row look-ups; should far "
          "exceed the caches; at most a sixteenth of the free memory is used")
      ->type_name("MIB");
  AddOpLibraryOption(*command, options->op_libraries);
  command->callback([&context, options, command] {
    options->batches_given = command->count("--batch") > 0;
    context.action = [&context, options] {
      return RunProfile(*options, context);
    };
  });
}

}  // namespace refract::tools
