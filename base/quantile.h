#ifndef REFRACT_BASE_QUANTILE_H_
#define REFRACT_BASE_QUANTILE_H_

// Repeated measurements of one quantity, whatever its unit.

#include <vector>

#include "absl/types/span.h"

namespace refract::base {

// The q-quantile, 0 ≤ q ≤ 1, between the two nearest ranks in proportion, as
// R's type 7 and NumPy do. NaN of no values. `sorted` ascends.
double Quantile(absl::Span<const double> sorted, double q);

struct Quartiles {
  double least = 0;
  double q1 = 0;
  double median = 0;
  double q3 = 0;
};

// In any order, no NaN among them. All 0 of no values.
Quartiles QuartilesOf(std::vector<double> values);

}  // namespace refract::base

#endif  // REFRACT_BASE_QUANTILE_H_
