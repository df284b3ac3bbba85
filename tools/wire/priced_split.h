#ifndef REFRACT_TOOLS_WIRE_PRICED_SPLIT_H_
#define REFRACT_TOOLS_WIRE_PRICED_SPLIT_H_

// The optimal split where tensors cross in forms of their own.

#include "absl/status/statusor.h"
#include "models/repository/repository.h"
#include "partitioner/split/optimal.h"
#include "tools/partition/split_conditions.h"
#include "tools/wire/plan.h"
#include "tools/wire/pricing.h"

namespace refract::tools {

struct PricedSplit {
  partitioner::OptimalSplit split;
  WirePricing pricing;
};

// Cuts and chooses forms in turns until neither changes the other (WirePricing
// says why that ends), and leaves the prices in `conditions`, with a note on
// those that nobody measured. Without --wire-dtype auto forms do not depend on
// the cut, and one turn is enough; with it, the optimum and what it is compared
// with are priced in the forms that each of them gets under the bound, and the
// cheapest of them is the optimum.
//
// Errors as SplitOptimally and ChooseWireForms.
absl::StatusOr<PricedSplit> SplitWithForms(const WireOptions& options,
                                           const models::LoadedModel& model,
                                           const WireSamples& samples,
                                           SplitConditions& conditions);

}  // namespace refract::tools

#endif  // REFRACT_TOOLS_WIRE_PRICED_SPLIT_H_
