#ifndef REFRACT_PARTITIONER_CUT_WEIGHTED_H_
#define REFRACT_PARTITIONER_CUT_WEIGHTED_H_

#include <vector>

#include "partitioner/cut/mixture.h"
#include "partitioner/cut/problem.h"

namespace refract::partitioner::cut {

// A weighted sum of measures in integers, and the bound that its minimum
// proves. Weights are real: every cost is scaled by a power of two and rounded
// down, so that the sum never overstates and the bound holds.
class WeightedMeasure {
 public:
  // `multipliers` as in Mixture. With one objective and no limits the sum is
  // that objective, unscaled.
  WeightedMeasure(const Problem& problem,
                  const std::vector<const Measure*>& objectives,
                  const std::vector<const Measure*>& limits,
                  const std::vector<Cost>& at_most,
                  const Multipliers& multipliers);

  const Measure& measure() const { return measure_; }
  int scale() const { return shift_; }  // measure() is in units of 2^−scale

  // If no choice of a set has a weighted sum below `least`, then no choice of
  // the set that meets the limits has a largest objective below the result.
  Cost LowerBound(Cost least) const;

 private:
  Measure measure_;
  int shift_ = 0;  // measure_ is the sum times 2^shift_
  // Σ multiplier · limit, plus the rounding error of the sum.
  long double allowance_ = 0;
  bool exact_ = false;
};

}  // namespace refract::partitioner::cut

#endif  // REFRACT_PARTITIONER_CUT_WEIGHTED_H_
