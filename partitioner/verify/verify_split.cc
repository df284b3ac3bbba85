#include "partitioner/verify/verify_split.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partitioner/verify/calibrate.h"
#include "partitioner/verify/cut_choice.h"

namespace refract::partitioner {
namespace {

// Gives every cut its forms, and the prediction and errors that follow from
// them.
absl::Status GiveForms(const models::LoadedModel& model,
                       const Conditions& conditions, const CutForms& forms,
                       std::vector<Cut>& cuts, std::ostream& out) {
  std::vector<Cut> kept;
  for (Cut& cut : cuts) {
    // Nothing crosses, so there are no forms.
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
    // Coding is priced by this cut's own forms. Message bytes are those that
    // the meter counted, because forms may depend on the data.
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
  // The alternatives mostly contain `chosen`. They lack it if --method names a
  // method that made none of them.
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
  REFRACT_ASSIGN_OR_RETURN(
      Verification verification,
      Verify(model, std::move(cuts), samples, options.run, progress, err));
  verification.batch = report.conditions.options.batch;
  return verification;
}

}  // namespace refract::partitioner
