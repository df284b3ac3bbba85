#ifndef REFRACT_PARTITIONER_WIRE_PRICING_H_
#define REFRACT_PARTITIONER_WIRE_PRICING_H_

// What values cost in their forms, for the cut: forms depend on the cut (an
// error bound holds for all that crosses together) and the cut on the forms.

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

// Begins with every value in the smallest form that the options let it have.
// Learn() then takes in the forms that a cut really got; prices only rise, so
// cutting and learning in turns ends.
class WirePricing {
 public:
  // Errors as CrossingTable. `model` must outlive it.
  static absl::StatusOr<WirePricing> Create(const WireOptions& options,
                                            const models::LoadedModel& model,
                                            const WireSamples& samples,
                                            const SplitConditions& conditions);

  const WirePrices& prices() const { return prices_; }
  // Of a plan with forms: those of what it sends, as prices() for the rest.
  WirePrices PricesOf(const models::SplitPlan& plan) const;
  // Takes the forms of what `plan` sends for known where they are larger than
  // was thought. Whether some were.
  bool Learn(const models::SplitPlan& plan);
  // Forms whose encoding nobody measured on the CN or the HN were priced by its
  // memory bandwidth.
  bool assumed_cn() const { return assumed_cn_; }
  bool assumed_hn() const { return assumed_hn_; }

 private:
  WirePricing(const models::LoadedModel& model, CrossingTable table,
              const SplitConditions& conditions);
  models::WireForm SmallestForm(const WireOptions& options,
                                const std::vector<models::WireType>& lossy,
                                models::ValueId value, bool up) const;
  WirePrice PriceOf(models::ValueId value, bool up, models::WireForm form);

  const models::LoadedModel& model_;
  CrossingTable table_;
  Hardware cn_;
  Hardware hn_;
  std::vector<double> plain_bytes_;  // per value, at the sizes of the cut
  WirePrices prices_;
  bool assumed_cn_ = false;
  bool assumed_hn_ = false;
};

}  // namespace refract::partitioner

#endif  // REFRACT_PARTITIONER_WIRE_PRICING_H_
