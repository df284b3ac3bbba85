#ifndef REFRACT_PARTITIONER_WIRE_PRICED_SPLIT_H_
#define REFRACT_PARTITIONER_WIRE_PRICED_SPLIT_H_

// The optimal split when tensors cross in wire forms.

#include "absl/status/statusor.h"
#include "models/repository/repository.h"
#include "partitioner/conditions/split_conditions.h"
#include "partitioner/split/optimal.h"
#include "partitioner/wire/forms.h"
#include "partitioner/wire/pricing.h"

namespace refract::partitioner {

struct PricedSplit {
  OptimalSplit split;
  WirePricing pricing;
};

// Cuts and chooses forms in turns until neither changes the other (WirePricing
// explains why that ends), and leaves the prices in `conditions`, with a note
// on prices without measurement. Without --wire-dtype auto forms do not depend
// on the cut, and one turn is enough; with it, the optimum and its alternatives
// are each priced in the forms that they get under the bound, and the cheapest
// of them is the optimum.
//
// Errors as SplitOptimally and ChooseWireForms.
absl::StatusOr<PricedSplit> SplitWithForms(const WireOptions& options,
                                           const models::LoadedModel& model,
                                           const WireSamples& samples,
                                           SplitConditions& conditions);

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_WIRE_PRICED_SPLIT_H_
