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
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"
#include "models/rows/row_dependence.h"
#include "models/table_ids.h"
#include "nlohmann/json.hpp"
#include "partitioner/conditions/cost_profiles.h"
#include "partitioner/conditions/split_conditions.h"
#include "partitioner/costs/work.h"
#include "partitioner/report/split_report.h"
#include "partitioner/shards/divide_tables.h"
#include "partitioner/split/ancestors.h"
#include "partitioner/split/forced_cuts.h"
#include "partitioner/split/heuristic.h"
#include "partitioner/split/optimal.h"
#include "partitioner/split/split_search.h"
#include "partitioner/verify/calibrate.h"
#include "partitioner/verify/interrupt.h"
#include "partitioner/verify/verify_split.h"
#include "partitioner/wire/forms.h"
#include "partitioner/wire/priced_split.h"
#include "runtime/batch_padding.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/doctor/machine.h"
#include "tools/inspect/model_summary.h"
#include "tools/json_output.h"
#include "tools/loadgen/request_maker.h"
#include "tools/partition/partition_options.h"
#include "tools/partition/print.h"
#include "tools/progress.h"
#include "tools/sizes.h"

namespace refract::tools {
namespace {

using partitioner::ConditionOptions;
using partitioner::CostProfiles;
using partitioner::CutForms;
using partitioner::SampleRequests;
using partitioner::SplitConditions;
using partitioner::SplitReport;
using partitioner::VerifySplitOptions;
using partitioner::WireOptions;
using partitioner::WireReport;
using partitioner::WireSamples;

struct PartitionOptions {
  std::string model;
  std::string method = "optimal";
  bool write = false;
  std::string plan_file;
  JsonOutput json;
  std::string report;
  int64_t forced_cuts = 12;
  std::vector<std::string> sizes;
  std::vector<std::string> op_libraries;
  ConditionOptions conditions;
  bool batch_given = false;
  VerifySplitOptions verify;
  WireOptions wire;
  bool by_ids = false;  // the samples of `wire`
  size_t shards = 0;    // 0: no table is divided
  double shard_tables_from_mib = 16;
};

struct Planned {
  models::SplitPlan plan;
  // With --method optimal, --report, --json or --verify.
  std::optional<SplitReport> report;
  std::optional<partitioner::WirePricing> pricing;  // with forms as well
  std::string message_note;  // partitioner::MessageNote()
};

bool NeedsCosts(const PartitionOptions& options) {
  return options.method == "optimal" || !options.report.empty() ||
         options.verify.verify;
}

// The plan becomes the version's if it has none yet, or with --write. Otherwise
// the version keeps its plan: a look at another split changes nothing that
// nodes load. --plan-out keeps the new plan for refract activate.
absl::Status KeepPlan(const PartitionOptions& options,
                      const models::LoadedModel& model,
                      const models::SplitPlan& plan, std::ostream& out) {
  if (!options.plan_file.empty()) {
    REFRACT_RETURN_IF_ERROR(
        models::SavePlan(model.graph, plan, options.plan_file));
    out << "plan kept in: " << options.plan_file << "\n";
  }
  if (!options.write && models::HasPlan(model.folder)) {
    out << "not written: " << model.folder
        << " keeps its plan; --write replaces it\n";
    return absl::OkStatus();
  }
  REFRACT_RETURN_IF_ERROR(
      models::ActivatePlan(model.graph, model.digest, plan, model.folder));
  out << "written: " << model.folder << "/" << models::kSplitPlanFile << "\n";
  return absl::OkStatus();
}

// The profiles that the options name, or if costs matter the profile beside the
// version.
absl::StatusOr<CostProfiles> FindProfiles(const PartitionOptions& options,
                                          const models::LoadedModel& model) {
  partitioner::ProfileChoice choice = {
      .cn = options.conditions.cn_profile,
      .hn = options.conditions.hn_profile,
      .cn_hardware_given = options.conditions.cn_given};
  if (choice.cn.empty() && !NeedsCosts(options)) choice.cn = "none";
  REFRACT_ASSIGN_OR_RETURN(CostProfiles profiles,
                           partitioner::LoadCostProfiles(choice, model));
  if (options.verify.verify && choice.hn.empty() &&
      !options.conditions.hn_given) {
    profiles.hn = profiles.cn;  // the HN that is started is this machine too
  }
  if (NeedsCosts(options)) partitioner::FindSteps(model, profiles);
  return profiles;
}

// The optimum, its alternatives and, if the report or JSON shows them, forced
// cuts. `samples`: requests on which forms are chosen, or null.
absl::Status MakeReport(const PartitionOptions& options,
                        const models::LoadedModel& model,
                        const absl::flat_hash_map<std::string, int64_t>& sizes,
                        const CostProfiles& profiles,
                        const WireSamples* samples, Planned& planned) {
  SplitReport& report = planned.report.emplace();
  report.chosen = options.method;
  report.written = options.write || !models::HasPlan(model.folder);
  REFRACT_ASSIGN_OR_RETURN(
      report.conditions,
      partitioner::MakeConditions(options.conditions, model.graph, model.config,
                                  sizes, profiles));
  const partitioner::Conditions& conditions = report.conditions.conditions;
  const partitioner::OptimalOptions& goal = report.conditions.goal;
  if (samples != nullptr) {
    REFRACT_ASSIGN_OR_RETURN(
        partitioner::PricedSplit priced,
        partitioner::SplitWithForms(options.wire, model, *samples,
                                    report.conditions));
    report.split = std::move(priced.split);
    planned.pricing.emplace(std::move(priced.pricing));
  } else {
    REFRACT_ASSIGN_OR_RETURN(
        report.split, partitioner::SplitOptimally(model.graph, model.digest,
                                                  conditions, goal));
  }
  if (options.json.empty() && options.report.empty() &&
      !options.verify.verify) {
    return absl::OkStatus();
  }
  REFRACT_ASSIGN_OR_RETURN(
      report.forced_cuts,
      partitioner::FindForcedCuts(model.graph, model.digest, conditions, goal,
                                  report.split, options.forced_cuts));
  return absl::OkStatus();
}

// Methods other than optimal do not search within limits, but their plans must
// keep the given limits and the transport's limits, too. Adds the note about
// messages.
absl::Status CheckLimits(const PartitionOptions& options,
                         const models::LoadedModel& model,
                         const absl::flat_hash_map<std::string, int64_t>& sizes,
                         const CostProfiles& profiles, Planned& planned) {
  std::optional<SplitConditions> made;
  if (!planned.report) {
    REFRACT_ASSIGN_OR_RETURN(
        made, partitioner::MakeConditions(options.conditions, model.graph,
                                          model.config, sizes, profiles));
  }
  const SplitConditions& conditions =
      planned.report ? planned.report->conditions : *made;
  const partitioner::Prediction prediction =
      partitioner::Predict(model.graph, planned.plan, conditions.conditions);
  planned.message_note = partitioner::MessageNote(conditions, prediction);
  if (options.method == "optimal") return absl::OkStatus();
  const ConditionOptions& asked = options.conditions;
  partitioner::Budget budget = conditions.goal.budget;
  // The memory of hardware that was not asked about limits nobody.
  if (!asked.cn_memory_gib) budget.cn_memory_bytes.reset();
  if (!asked.hn_memory_gib) budget.hn_memory_bytes.reset();
  const std::string over = partitioner::OverBudget(prediction, budget);
  if (over.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "--method ", options.method, ": ", over,
      planned.message_note.empty() ? ""
                                   : absl::StrCat("; ", planned.message_note),
      "; --method optimal looks for plans within the limits"));
}

absl::StatusOr<Planned> MakePlan(
    const PartitionOptions& options, const models::LoadedModel& model,
    const absl::flat_hash_map<std::string, int64_t>& sizes,
    const CostProfiles& profiles, const WireSamples* samples) {
  const models::Graph& graph = model.graph;
  Planned planned;
  if (NeedsCosts(options)) {
    REFRACT_RETURN_IF_ERROR(
        MakeReport(options, model, sizes, profiles, samples, planned));
  }
  if (options.method == "optimal") {
    planned.plan = planned.report->split.best.plan;
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
  REFRACT_RETURN_IF_ERROR(
      CheckLimits(options, model, sizes, profiles, planned));
  return planned;
}

absl::StatusOr<partitioner::Calibration> Calibrate(
    const partitioner::NodeOptions& nodes, std::ostream& err) {
  Progress progress(err);
  const Machine machine = ReadMachine("/");
  return partitioner::Calibrate(
      {.nodes = nodes,
       .machine = absl::StrCat(machine.cpu, ", ", machine.cpus, " CPUs")},
      [&](const std::string& text) { progress.Show(text); }, err);
}

// The requests that forms are chosen on and that --verify sends.
absl::StatusOr<SampleRequests> RequestsFor(
    const PartitionOptions& options, const models::LoadedModel& model,
    const absl::flat_hash_map<std::string, int64_t>& sizes) {
  const models::Graph& graph = model.graph;
  if (!options.wire.samples.empty()) {
    REFRACT_ASSIGN_OR_RETURN(
        SampleRequests requests,
        partitioner::ReadSamples(options.wire.samples, graph));
    for (partitioner::SampleRequest& request : requests.requests) {
      if (!options.by_ids) break;
      REFRACT_RETURN_IF_ERROR(base::Annotate(
          models::IdsToRowNumbers(model, absl::MakeSpan(request.inputs)),
          absl::StrCat("--sample: ", request.name)));
    }
    return requests;
  }
  // Errors of 256 items each differ little between four requests. With
  // --verify no request may find its rows in a cache because it just came.
  const int count = options.verify.verify ? 24 : 4;
  return partitioner::DrawRequests(graph, options.conditions.batch, sizes,
                                   count, options.wire.seed);
}

// Prepares --verify before there is a plan: sizes of the requests and the
// calibration of their time outside the model.
absl::Status PrepareToVerify(
    const models::LoadedModel& model, const SampleRequests& requests,
    const absl::flat_hash_map<std::string, int64_t>& sizes,
    const CostProfiles& profiles, PartitionOptions& options,
    std::ostream& err) {
  ConditionOptions& conditions = options.conditions;
  const models::Graph& graph = model.graph;
  REFRACT_ASSIGN_OR_RETURN(conditions.request_sizes,
                           partitioner::CommonSizes(graph, requests));
  if (!options.wire.samples.empty()) {
    const auto found = conditions.request_sizes->find(graph.batch_symbol);
    // Without a batch symbol the batch is 1.
    const int64_t batch =
        found == conditions.request_sizes->end() ? 1 : found->second;
    if (options.batch_given && batch != conditions.batch &&
        !graph.batch_symbol.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sample ", options.wire.samples.front(), ": has ",
                       batch, " items, --batch says ", conditions.batch));
    }
    conditions.batch = batch;
  }
  if (!conditions.hn_given) conditions.hn = conditions.cn;
  // Wrong options are found before any process is started.
  REFRACT_RETURN_IF_ERROR(partitioner::MakeConditions(
                              conditions, graph, model.config, sizes, profiles)
                              .status());
  if (conditions.calibration.empty()) {
    REFRACT_ASSIGN_OR_RETURN(conditions.measured,
                             Calibrate(options.verify.run.nodes, err));
  }
  return absl::OkStatus();
}

absl::Status Partition(PartitionOptions options, std::ostream& out,
                       std::ostream& err) {
  // In this order: options that need no model, the model, sizes and costs, the
  // sample requests, and only then anything that starts processes or searches.
  REFRACT_RETURN_IF_ERROR(partitioner::CheckVerifyOptions(options.verify));
  options.verify.run.nodes.op_libraries = options.op_libraries;
  if (options.forced_cuts < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--forced-cuts ", options.forced_cuts, ": must be at least 0"));
  }
  REFRACT_RETURN_IF_ERROR(partitioner::CheckWireOptions(options.wire));
  REFRACT_RETURN_IF_ERROR(LoadOpLibraries(options.op_libraries));
  // The plan of an earlier run will be replaced, so it may be damaged.
  REFRACT_ASSIGN_OR_RETURN(const auto model,
                           LoadModel(options.model, {.with_plan = false}));
  // The default batch is changed to what the model takes; a batch that was
  // given is not changed silently.
  for (const models::SymbolRange& range : model->graph.symbols) {
    if (options.batch_given || range.symbol != model->graph.batch_symbol)
      continue;
    options.conditions.batch = std::min(options.conditions.batch, range.max);
  }
  REFRACT_RETURN_IF_ERROR(
      partitioner::CheckConditionOptions(options.conditions, model->graph));
  if (const int64_t least = runtime::SmallestBatch(model->graph);
      options.conditions.batch < least) {
    if (options.batch_given) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--batch ", options.conditions.batch, ": the model needs ", least,
          " or more, as its rows depend on each other"));
    }
    options.conditions.batch = least;
  }
  REFRACT_ASSIGN_OR_RETURN(const CostProfiles profiles,
                           FindProfiles(options, *model));
  REFRACT_ASSIGN_OR_RETURN(const AssumedSizes assumed,
                           AssumeSizes(options.sizes, *model, &profiles));
  const absl::flat_hash_map<std::string, int64_t>& sizes = assumed.per_item;
  std::optional<partitioner::InterruptGuard> guard;
  SampleRequests requests;
  if (options.verify.verify || options.wire.given) {
    REFRACT_ASSIGN_OR_RETURN(requests, RequestsFor(options, *model, sizes));
  }
  if (options.verify.verify) {
    // From here on processes of nodes may run: a signal must not end this
    // process before their destructors.
    guard.emplace();
    REFRACT_RETURN_IF_ERROR(
        PrepareToVerify(*model, requests, sizes, profiles, options, err));
  }
  std::optional<WireSamples> wire_samples;
  if (options.wire.given) {
    auto answered = partitioner::AnswerSamples(*model, requests);
    if (!answered.ok()) {
      return options.wire.samples.empty()
                 ? loadgen::WithOptionForFiles(answered.status(), "--sample")
                 : answered.status();
    }
    wire_samples = *std::move(answered);
  }
  REFRACT_ASSIGN_OR_RETURN(Planned planned,
                           MakePlan(options, *model, sizes, profiles,
                                    wire_samples ? &*wire_samples : nullptr));
  // The plan has its stages and crossings now. Row dependence, shards and wire
  // forms are properties of a plan; they must be complete before KeepPlan()
  // writes it.
  models::MarkRows(model->graph, planned.plan);
  if (options.shards > 0) {
    REFRACT_RETURN_IF_ERROR(partitioner::DivideTables(
        model->graph, *model->weights, options.shards,
        static_cast<int64_t>(options.shard_tables_from_mib * 0x1p20),
        planned.plan));
  }
  std::optional<WireReport> wire;
  if (wire_samples) {
    REFRACT_ASSIGN_OR_RETURN(
        wire, partitioner::ChooseWireForms(options.wire, *model, *wire_samples,
                                           planned.plan));
    if (wire) {
      REFRACT_RETURN_IF_ERROR(partitioner::MeasureEachForm(
          *model, *wire_samples, planned.plan, *wire));
    }
  }
  if (planned.report) {
    planned.report->rows = planned.plan.rows;
    planned.report->hn_rows = planned.plan.hn_rows;
    planned.report->wire = wire;
  }
  const ModelSummary summary = Summarize(*model, &planned.plan, sizes);
  PrintPlan(*summary.plan, out);
  // --verify takes the sizes of its sample requests.
  if (options.verify.verify && !options.wire.samples.empty()) {
    out << "sizes per item: those of --sample\n";
  } else {
    PrintSizes(assumed, out, err);
  }
  if (planned.report) PrintSplit(model->graph, *planned.report, out);
  if (wire) PrintWire(model->graph, planned.plan, *wire, out);
  if (!planned.message_note.empty()) {
    err << "warning: " << planned.message_note << "\n";
  }
  // Before --verify, which takes long and may fail: the plan is kept in any
  // case.
  REFRACT_RETURN_IF_ERROR(KeepPlan(options, *model, planned.plan, out));
  if (options.verify.verify) {
    std::optional<CutForms> forms;
    if (wire_samples) {
      forms.emplace(CutForms{options.wire, *wire_samples, *planned.pricing});
    }
    Progress progress(err);
    auto verification = partitioner::VerifySplit(
        options.verify, *model, planned.plan, *planned.report, requests,
        forms ? &*forms : nullptr,
        [&](const std::string& text) { progress.Show(text); }, out, err);
    if (!verification.ok()) {
      return options.wire.samples.empty()
                 ? loadgen::WithOptionForFiles(verification.status(),
                                               "--sample")
                 : verification.status();
    }
    planned.report->verification = *std::move(verification);
    PrintCalibration(*planned.report->conditions.calibration, out);
    PrintVerification(*planned.report->verification,
                      *planned.report->conditions.calibration, out);
  }
  if (!options.json.empty()) {
    nlohmann::ordered_json json = base::ParseOrderedJson(ToJson(summary));
    if (planned.report) {
      json["partition"] =
          partitioner::SplitToJson(model->graph, *planned.report);
    }
    if (wire) {
      json["wire"] = partitioner::WireToJson(model->graph, planned.plan, *wire);
    }
    REFRACT_RETURN_IF_ERROR(options.json.Write(json));
  }
  if (!options.report.empty()) {
    REFRACT_RETURN_IF_ERROR(base::WriteText(
        options.report,
        partitioner::SplitToHtml(*model, planned.plan, *planned.report)));
    out << "report: " << options.report << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddPartitionCommand(CLI::App& app, Context& context) {
  auto options = std::make_shared<PartitionOptions>();
  CLI::App* command =
      app.add_subcommand("partition",
                         "Cuts a model into its CN and HN parts; with --write "
                         "the nodes that start later serve it so");
  command
      ->add_option("model", options->model,
                   "DIR/NAME or DIR/NAME/VERSION (without: the newest)")
      ->type_name("MODEL")
      ->required();
  command
      ->add_option("--method", options->method,
                   "optimal: the least cost under the conditions below; "
                   "heuristic: grow the HN part from the dense operators; "
                   "all-cn: no split; all-hn: every operator on the HN that "
                   "may run there")
      ->type_name("optimal|heuristic|all-cn|all-hn");
  command->add_flag("--write", options->write,
                    "replace the version's plan, for nodes that load it from "
                    "now on; running nodes keep theirs. The plan before is "
                    "kept: refract activate --previous. A version without a "
                    "plan gets this one in any case");
  AddOutputFile(*command, "--plan-out", options->plan_file,
                "keep the plan in this file, for refract activate --plan");
  options->json.AddTo(
      *command, context,
      "the model's facts, the plan and, with optimal, all costs");
  AddOutputFile(*command, "--report", options->report,
                "also write the optimum, its alternatives and the graph of "
                "each plan to this file, as one HTML page");
  command
      ->add_option(
          "--forced-cuts", options->forced_cuts,
          "for --json and --report: number of forced cuts, each the best plan "
          "that sends a given tensor or does not; largest tensors first")
      ->type_name("N");
  AddConditionOptions(*command, options->conditions);
  CLI::Option* const shards =
      command
          ->add_option(
              "--shards", options->shards,
              "number of CPU nodes that large tables are divided over; these "
              "nodes form a shard group; default: each CPU node has all "
              "tables (docs/how-to/shards.md)")
          ->type_name("N")
          ->check(CLI::Range(size_t{2}, models::kMaxShards));
  command
      ->add_option("--shard-tables-from", options->shard_tables_from_mib,
                   "for --shards: size from which a table is divided, MiB; "
                   "every CPU node has the smaller tables whole")
      ->type_name("MIB")
      ->check(base::NumberIn(0, 1e9))
      ->needs(shards);
  AddSizeOption(*command, options->sizes);
  AddOpLibraryOption(*command, options->op_libraries);
  AddVerifyOptions(*command, options->verify);
  AddWireOptions(*command, options->wire);
  AddByIdsOption(*command, options->by_ids);
  command->callback([&context, options, command] {
    options->batch_given = command->count("--batch") > 0;
    // With --verify, --sample alone only names the requests to send and changes
    // no forms.
    options->wire.given =
        command->count("--wire-dtype") > 0 ||
        command->count("--wire-error-bound") > 0 ||
        (!options->wire.samples.empty() && !options->verify.verify);
    const bool shown = !options->json.empty() || !options->report.empty() ||
                       options->verify.verify;
    const absl::Status ignored = RefuseIgnored(
        *command, {.method = options->method,
                   .costs = NeedsCosts(*options),
                   .cuts = NeedsCosts(*options) && shown,
                   .verify = options->verify.verify,
                   .draws = (options->wire.given || options->verify.verify) &&
                            options->wire.samples.empty()});
    context.action = [&context, options, ignored] {
      REFRACT_RETURN_IF_ERROR(ignored);
      return Partition(*options, context.out, context.err);
    };
  });
}

}  // namespace refract::tools
