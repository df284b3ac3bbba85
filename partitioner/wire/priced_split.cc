#include "partitioner/wire/priced_split.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partitioner/split/split_search.h"

namespace refract::partitioner {
namespace {

// Each turn raises the price of at least one value; far fewer turns are usual.
constexpr int kMostTurns = 16;

// `alternative` in the forms that its own cut gets.
absl::Status Rejudge(const WireOptions& options,
                     const models::LoadedModel& model,
                     const WireSamples& samples, const WirePricing& pricing,
                     const SplitConditions& conditions,
                     Alternative& alternative) {
  models::SplitPlan plan = alternative.plan;
  REFRACT_RETURN_IF_ERROR(
      ChooseWireForms(options, model, samples, plan).status());
  Conditions own = conditions.conditions;
  own.wire = pricing.PricesOf(plan);
  REFRACT_ASSIGN_OR_RETURN(
      const auto search,
      SplitSearch::Create(model.graph, model.digest, own, conditions.goal));
  alternative = search.Judge(std::move(plan));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PricedSplit> SplitWithForms(const WireOptions& options,
                                           const models::LoadedModel& model,
                                           const WireSamples& samples,
                                           SplitConditions& conditions) {
  WirePricing pricing(options, model, samples, conditions);
  const auto assumed = [&](const char* side, const std::string& hardware) {
    conditions.notes.push_back(absl::StrCat(
        "encoding on the ", side, ": not measured on ", hardware,
        ", so each encoding is priced as one read and one write of memory"));
  };
  if (pricing.assumed_cn()) assumed("CN", conditions.cn.name);
  if (pricing.assumed_hn()) assumed("HN", conditions.hn.name);
  // With auto: cut, choose forms for the values that cross, raise the prices of
  // values whose forms are larger than priced, and cut again.
  const bool automatic = options.dtype == "auto";
  OptimalSplit split;
  for (int turn = 0; turn < kMostTurns; ++turn) {
    conditions.conditions.wire = pricing.prices();
    REFRACT_ASSIGN_OR_RETURN(
        split, SplitOptimally(model.graph, model.digest, conditions.conditions,
                              conditions.goal));
    if (!automatic) return PricedSplit{std::move(split), std::move(pricing)};
    models::SplitPlan plan = split.best.plan;
    REFRACT_RETURN_IF_ERROR(
        ChooseWireForms(options, model, samples, plan).status());
    // No value of this cut has a larger form than it was priced with.
    if (!pricing.Learn(plan)) break;
  }
  REFRACT_RETURN_IF_ERROR(
      Rejudge(options, model, samples, pricing, conditions, split.best));
  // The bound on the error is shared by all values of a plan, so another plan
  // may get better forms than the optimum of the search.
  for (Alternative& other : split.others) {
    REFRACT_RETURN_IF_ERROR(
        Rejudge(options, model, samples, pricing, conditions, other));
    if (other.over.empty() && other.cost < split.best.cost) {
      split.best = other;
      split.best.plan.method = "optimal";
    }
  }
  // The lower bound was found at prices that are at most the real ones. Where
  // an alternative became the best plan, its cost may be below that bound.
  split.lower_bound = std::min(split.lower_bound, split.best.cost);
  return PricedSplit{std::move(split), std::move(pricing)};
}

}  // namespace refract::partitioner
