#include "tools/verify/verify_command.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/verify/calibrate.h"
#include "tools/verify/cut_choice.h"
#include "tools/verify/options.h"
#include "tools/verify/progress.h"

namespace refract::tools {
namespace {

// Enough that no request finds its rows in a cache because it just came.
constexpr int kDrawnRequests = 24;

}  // namespace

void AddVerifyOptions(CLI::App& command, VerifyCommandOptions& options) {
  command.add_flag("--verify", options.verify,
                   "run the plan, its alternatives and forced cuts with a CN "
                   "and an HN on this machine, and compare with what was "
                   "predicted; the HN's hardware is then --cn's unless --hn "
                   "says otherwise");
  command
      .add_option("--verify-cuts", options.forced_cuts,
                  "for --verify: forced cuts beside the alternatives")
      ->type_name("N")
      ->capture_default_str();
  command
      .add_option("--verify-rounds", options.run.rounds,
                  "for --verify: how often every cut has its turn, of one "
                  "request that does not count and four that do")
      ->type_name("N")
      ->capture_default_str();
  AddNodeOptions(command, options.run.nodes);
}

absl::Status CheckVerifyOptions(const VerifyCommandOptions& options) {
  if (!options.verify) return absl::OkStatus();
  if (options.forced_cuts < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--verify-cuts ", options.forced_cuts, ": must be at least 0"));
  }
  if (options.run.rounds < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--verify-rounds ", options.run.rounds, ": must be at least 1"));
  }
  REFRACT_RETURN_IF_ERROR(CheckTransport(options.run.nodes.transport));
  return FindNodePrograms(options.run.nodes).status();
}

absl::StatusOr<SampleRequests> SamplesFor(
    const VerifyCommandOptions& options, const models::LoadedModel& model,
    std::optional<int64_t> batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item) {
  if (options.sample.empty()) {
    return DrawRequests(model, batch.value_or(1), per_item, kDrawnRequests);
  }
  absl::StatusOr<SampleRequests> samples = ReadSample(options.sample, model);
  if (!samples.ok()) return base::Annotate(samples.status(), "--sample");
  if (batch && *batch != samples->batch && !model.graph.batch_symbol.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sample ", options.sample, ": has ", samples->batch,
                     " items, --batch says ", *batch));
  }
  return samples;
}

absl::StatusOr<Calibration> CalibrateFor(const VerifyCommandOptions& options,
                                         std::ostream& err) {
  Progress progress(err);
  return Calibrate(
      {.nodes = options.run.nodes},
      [&](const std::string& text) { progress.Show(text); }, err);
}

absl::StatusOr<Verification> VerifySplit(const VerifyCommandOptions& options,
                                         const models::LoadedModel& model,
                                         const models::SplitPlan& chosen,
                                         const SplitReport& report,
                                         const SampleRequests& samples,
                                         std::ostream& err) {
  const partitioner::Conditions& conditions = report.conditions.conditions;
  REFRACT_ASSIGN_OR_RETURN(
      std::vector<Cut> cuts,
      ChooseCuts(model.graph, model.digest, conditions, report.split,
                 report.forced_cuts, static_cast<size_t>(options.forced_cuts)));
  // It is one of the alternatives, unless a method is added that is none.
  const auto is_chosen = [&](const Cut& cut) {
    return cut.plan.stages == chosen.stages;
  };
  if (std::none_of(cuts.begin(), cuts.end(), is_chosen)) {
    cuts.insert(cuts.begin(), {.name = chosen.method,
                               .plan = chosen,
                               .prediction = partitioner::Predict(
                                   model.graph, chosen, conditions)});
  }
  Progress progress(err);
  return Verify(
      model, std::move(cuts), samples, options.run,
      [&](const std::string& text) { progress.Show(text); }, err);
}

}  // namespace refract::tools
