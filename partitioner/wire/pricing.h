#ifndef REFRACT_PARTITIONER_WIRE_PRICING_H_
#define REFRACT_PARTITIONER_WIRE_PRICING_H_

// Prices of values in their wire forms, for the cut search. Forms depend on the
// cut, because an error bound holds for all crossing tensors together, and the
// cut depends on the prices of the forms.

#include <vector>

#include "absl/status/statusor.h"
#include "models/repository/repository.h"
#include "models/repository/split_plan.h"
#include "partitioner/conditions/split_conditions.h"
#include "partitioner/costs/conditions.h"
#include "partitioner/wire/crossing_table.h"
#include "partitioner/wire/forms.h"
#include "partitioner/wire/meter.h"

namespace refract::partitioner {

// Begins with every value in its smallest form. Learn() then adds the forms
// that a cut really got. Prices only rise, so cutting and learning in turns
// ends.
class WirePricing {
 public:
  // `model` and `samples` must outlive the result.
  WirePricing(const WireOptions& options, const models::LoadedModel& model,
              const WireSamples& samples, const SplitConditions& conditions);

  const WirePrices& prices() const { return prices_; }
  // Prices of the forms of `plan` for the values that it sends, prices() for
  // all others.
  WirePrices PricesOf(const models::SplitPlan& plan) const;
  // Takes over the forms of the values that `plan` sends if they are larger
  // than priced so far. Returns whether a price has changed.
  bool Learn(const models::SplitPlan& plan);
  // Whether a form without a measured encoding rate was priced by the memory
  // bandwidth of the CN, or of the HN.
  bool assumed_cn() const { return assumed_cn_; }
  bool assumed_hn() const { return assumed_hn_; }

 private:
  WirePrice PriceOf(models::ValueId value, bool up, models::WireForm form);

  const CrossingTable& table_;
  Hardware cn_;
  Hardware hn_;
  std::vector<double> plain_bytes_;  // per value, at the sizes of the cut
  WirePrices prices_;
  bool assumed_cn_ = false;
  bool assumed_hn_ = false;
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_WIRE_PRICING_H_
