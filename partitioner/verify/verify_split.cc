#include "partitioner/verify/verify_split.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "partitioner/verify/calibrate.h"
#include "partitioner/verify/cut_choice.h"

namespace refract::partitioner {
namespace {

// Enough that no request finds its rows in a cache because it just came.
constexpr int kDrawnRequests = 24;

// Gives every cut its forms, and what follows from them.
absl::Status GiveForms(const models::LoadedModel& model,
                       const Conditions& conditions, const CutForms& forms,
                       std::vector<Cut>& cuts, std::ostream& out) {
  std::vector<Cut> kept;
  for (Cut& cut : cuts) {
    if (cut.plan.up.empty() && cut.plan.down.empty()) {
      kept.push_back(std::move(cut));
      continue;
    }
    const absl::StatusOr<std::optional<WireReport>> chosen =
        ChooseWireForms(forms.options, model, forms.samples, cut.plan);
    if (absl::IsFailedPrecondition(chosen.status())) {
      out << "not verified: " << cut.name << ": " << chosen.status().message()
          << "\n";
      continue;
    }
    REFRACT_RETURN_IF_ERROR(chosen.status());
    const WireReading& reading = (*chosen)->chosen;
    Conditions own = conditions;
    own.wire = forms.pricing.PricesOf(cut.plan);
    cut.prediction = Predict(model.graph, cut.plan, own);
    cut.prediction.message_bytes_up = reading.message_bytes_up;
    cut.prediction.message_bytes_down = reading.message_bytes_down;
    cut.errors = reading.errors;
    kept.push_back(std::move(cut));
  }
  cuts = std::move(kept);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckVerifyOptions(const VerifySplitOptions& options) {
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
    const VerifySplitOptions& options, const models::LoadedModel& model,
    std::optional<int64_t> batch,
    const absl::flat_hash_map<std::string, int64_t>& per_item) {
  if (options.samples.empty()) {
    return DrawRequests(model, batch.value_or(1), per_item, kDrawnRequests);
  }
  std::optional<SampleRequests> all;
  for (const std::string& path : options.samples) {
    absl::StatusOr<SampleRequests> samples = ReadSample(path, model);
    if (!samples.ok()) return base::Annotate(samples.status(), "--sample");
    if (!all) {
      all = *std::move(samples);
      continue;
    }
    if (samples->sizes != all->sizes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--sample ", path, ": has other sizes than ", options.samples.front(),
          "; with --verify all have the same, for which plans are priced"));
    }
    all->requests.push_back(std::move(samples->requests.front()));
  }
  if (batch && *batch != all->batch && !model.graph.batch_symbol.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sample ", options.samples.front(), ": has ", all->batch,
                     " items, --batch says ", *batch));
  }
  return *std::move(all);
}

absl::StatusOr<WireSamples> ServedSamples(const VerifySplitOptions& options,
                                          const models::LoadedModel& model,
                                          const SampleRequests& samples) {
  std::vector<WireSample> requests;
  for (const std::vector<base::Tensor>& inputs : samples.requests) {
    WireSample& request = requests.emplace_back();
    const size_t number = requests.size();
    request.name = options.samples.empty()
                       ? absl::StrCat("drawn request ", number)
                       : options.samples[number - 1];
    for (const base::Tensor& input : inputs) {
      REFRACT_ASSIGN_OR_RETURN(base::Tensor copy,
                               base::Tensor::CopyOf(input.view()));
      request.inputs.push_back(std::move(copy));
    }
  }
  return AnswerSamples(
      model,
      options.samples.empty()
          ? absl::StrCat("drawn and served, ", samples.batch, " items each")
          : absl::StrJoin(options.samples, ", "),
      std::move(requests));
}

absl::StatusOr<Verification> VerifySplit(
    const VerifySplitOptions& options, const models::LoadedModel& model,
    const models::SplitPlan& chosen, const SplitReport& report,
    const SampleRequests& samples, const CutForms* forms,
    const ProgressFn& progress, std::ostream& out, std::ostream& err) {
  const Conditions& conditions = report.conditions.conditions;
  REFRACT_ASSIGN_OR_RETURN(
      std::vector<Cut> cuts,
      ChooseCuts(model.graph, model.digest, conditions, report.split,
                 report.forced_cuts, static_cast<size_t>(options.forced_cuts)));
  // It is one of the alternatives, unless a method is added that is none.
  const auto is_chosen = [&](const Cut& cut) {
    return cut.plan.stages == chosen.stages;
  };
  if (std::none_of(cuts.begin(), cuts.end(), is_chosen)) {
    cuts.insert(cuts.begin(),
                {.name = chosen.method,
                 .plan = chosen,
                 .prediction = Predict(model.graph, chosen, conditions)});
  }
  if (forms != nullptr) {
    REFRACT_RETURN_IF_ERROR(GiveForms(model, conditions, *forms, cuts, out));
  }
  return Verify(model, std::move(cuts), samples, options.run, progress, err);
}

}  // namespace refract::partitioner
